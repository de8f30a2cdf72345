"""
The status writer: statuses, events, and the label of a leader that its broker could not write.

Rules: every write follows a comparison, so that nothing is written twice. A status is written only to the object that
it is about, never to a newer object of the same name. It is written even if another client has changed the object
meanwhile, because each field has one owner.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Final

from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import must_have_read
from orderlymq_operator.kube.errors import ApiError, ConflictError
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.consumergroups import (
    ObservedConsumerGroup,
    group_conditions,
    group_facts,
)
from orderlymq_operator.kube.observe.desired import DesiredState
from orderlymq_operator.kube.observe.inventory import ClusterKey, Inventory, Item
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.reconcile.backoff import Failures
from orderlymq_operator.kube.reconcile.canary import ORDER_VERIFIED
from orderlymq_operator.kube.reconcile.status import (
    account_facts,
    condition_of,
    previous_conditions,
    previous_facts,
    status_object,
    topic_facts,
)
from orderlymq_operator.kube.resources import EVENTS, PODS, TIME_FORMAT, Json
from orderlymq_operator.plan.actions import ConditionReport, Observed, Subject
from orderlymq_operator.resources.conditions.table import BY_NAME
from orderlymq_operator.resources.kinds import ConsumerGroup, Topic, User

_log = logging.getLogger(__name__)

# Writes of statuses at the same time: the writes for thousands of Topics must leave room for others.
_AT_ONCE: Final = 8
_PASSING: Final = {"Progressing"}
# Reasons that pass by themselves, such as an election. A condition reports them; events for them would hide other
# events.
QUIET: Final = _PASSING | {"GroupNotReady", "BrokerUnavailable", "NameServerUnavailable"}

# Conditions about space and load, whose changes cause events like those of Ready.
ROOM: Final = ("StorageReady", "CapacitySufficient")


class StatusWriter:
    """Writes statuses of one operator."""

    def __init__(self, api: Api, inventory: Inventory, metrics: OperatorMetrics) -> None:
        self._api = api
        self._metrics = metrics
        self._inventory = inventory
        self._mislabelled: dict[ClusterKey, set[tuple[str, int]]] = {}
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self.failures = Failures()

    async def write(
        self, item: Item, conditions: Mapping[str, ConditionReport], facts: Json
    ) -> None:
        """Write the status of an object if it contains something new.

        Raises:
            ApiError: it could not be written.
        """
        if item.kind == "Cluster":
            is_ready = conditions["Ready"].status == "True"
            self._metrics.set_ready(item.key, ready=is_ready)
            if len(conditions) > 1:  # a lone Ready says nothing about the other conditions
                order = conditions.get(ORDER_VERIFIED)
                self._metrics.set_order(item.key, None if order is None else order.status)
        elif item.kind == "ScheduledBackup":
            ready = conditions["Ready"]
            self._metrics.set_schedule(item.key, ready.status, ready.reason)
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        made = status_object(item, conditions, facts, now)
        if made is None:
            return
        if item.kind == "Cluster":
            # Facts of a former Cluster, such as its restore, must not get into the status of a new one.
            must_have_read()
        async with self._gate:
            try:
                found = await self._apply(item, made)
            except ApiError as error:
                if error.status == 404:
                    self._inventory.invalidate(item.kind)
                elif _is_of(item, error):
                    what = (item.kind, item.namespace, item.name)
                    _log.error("%s %s/%s keeps its previous status: %s", *what, error)
                else:
                    raise
                return
        if found is not None:
            self._inventory.written(item.resource, found)
            await self._announce(item, conditions["Ready"])

    async def _apply(self, item: Item, made: Json) -> Json | None:
        """Apply a status and return the object; None if another object has the name now.

        The API server ignores a UID here, but refuses any version except the current one. That is the version of the
        operator's own last write, unless another client has written since.
        """
        known = self._inventory.item(item.kind, item.key) or item
        if known.uid != item.uid:
            return None
        try:
            return await self._api.apply_status(made, known.version)
        except ConflictError:
            present = await self._inventory.read_changed(item)
        if present is None or present.uid != item.uid:
            _log.info("%s %s/%s was replaced by a new object", item.kind, item.namespace, item.name)
            return None
        return await self._api.apply_status(made, present.version)

    async def not_ready(self, item: Item, reason: str, message: str) -> None:
        """Write why an object is not Ready; keep its other facts.

        Raises:
            ApiError: it could not be written.
        """
        ready = {"Ready": ConditionReport("False", reason, message)}
        await self.write(item, ready, previous_facts(item))

    @asynccontextmanager
    async def saying_refusals(self, item: Item) -> AsyncIterator[None]:
        """Report an API error of the block in Ready of an object, unless the error is temporary.

        Raises:
            ApiError: the error of the block, or the status could not be written.
        """
        try:
            yield
        except ApiError as error:
            if self.failures.stays(item.key, error):
                await self.not_ready(item, error.condition, str(error))
            raise
        self.failures.forget(item.key)

    async def write_parts(
        self,
        state: DesiredState,
        reports: Mapping[Subject, ConditionReport],
        observed: Observed,
        consumer_groups: Mapping[str, ObservedConsumerGroup],
        *,
        said: bool,
    ) -> None:
        """Write the statuses of Topics, ConsumerGroups and Users; *consumer_groups* are by the name that clients use.

        Progress is reported only after a failure (*said*); otherwise the next reconcile reports the result.

        Raises:
            ApiError: a status could not be written; the others were written.
        """
        # Compare in another thread, because thousands of statuses take long and the loop must serve others.
        news = await beside_loop(
            lambda: iter(list(_news(state, reports, observed, consumer_groups, said=said)))
        )
        failed: list[ApiError] = []

        async def write_next() -> None:
            for item, conditions, facts in news:
                try:
                    await self.write(item, conditions, facts)
                except ApiError as error:
                    failed.append(error)

        await asyncio.gather(*(write_next() for _ in range(_AT_ONCE)))
        if failed:
            raise failed[0]

    async def repair_labels(self, item: Item, live: Live, groups: Iterable[str]) -> int:
        """Correct the leader's label on pods if brokers have not done so; return how many pods had a wrong label.

        A label is corrected only if it was wrong in the last reconcile, too, in the same term. Normally a broker
        corrects it earlier, and the observed state may be slightly out of date.
        """
        key = item.key
        wrong: set[tuple[str, int]] = set()
        for group in groups:
            leader = live.leader(group)
            if leader is None:
                continue
            term = live.statuses[leader.name].term
            for pod in live.group_pods(group).values():
                leads = pod.name == leader.name
                if pod.leads == leads or pod.deleting or (not leads and pod.term > term):
                    continue
                wrong.add((pod.name, term))
                if (pod.name, term) in self._mislabelled.get(key, ()):
                    await self._label_leader(pod, term if leads else None)
        self._mislabelled[key] = wrong
        return len(wrong)

    async def _label_leader(self, pod: PodFacts, term: int | None) -> None:
        """Set the leader's label on a pod, or remove it if *term* is None."""
        change: Json = {"labels": {names.LABEL_ROLE: None if term is None else names.LEADER}}
        if term is not None:
            change["annotations"] = {names.ANNOTATION_TERM: str(term)}
        _log.info(
            "pod %s: the leader label was %s", pod.name, "set" if term is not None else "removed"
        )
        await self._api.patch(
            PODS, pod.namespace, pod.name, {"metadata": {"uid": pod.uid, **change}}
        )

    async def _announce(self, item: Item, ready: ConditionReport) -> None:
        """Write an event when the reason of Ready changes, except from or to reasons that pass by themselves."""
        previous = condition_of(item.status, "Ready")
        known = (previous or {}).get("reason")
        if ready.reason in {known, *QUIET} or known in {None, *QUIET}:
            return
        await self._tell(item, ready)

    async def announce_room(
        self,
        item: Item,
        before: Mapping[str, ConditionReport],
        conditions: Mapping[str, ConditionReport],
    ) -> None:
        """Write an event when volumes grow or cannot, when a leader or disk lacks capacity, and when that ends."""
        ready = conditions["Ready"].reason  # this reason has an event of its own
        for name in ROOM:
            known, report = before.get(name), conditions[name]
            if known is not None and report.reason not in (known.reason, ready):
                await self._tell(item, report)

    async def _tell(self, item: Item, report: ConditionReport) -> None:
        # Only a reason with a cure for a person is a warning, not, for example, a normal step.
        warns = report.status != "True" and bool(BY_NAME[report.reason].cure)
        await self.event(item, "Warning" if warns else "Normal", report.reason, report.message)

    async def announce_order(
        self, item: Item, before: Json | None, order: ConditionReport | None
    ) -> None:
        """Write an event when the order is found broken, and when it is verified again.

        The status Unknown, which occurs in each election, causes no event.
        """
        known = (before or {}).get("status")
        if order is None or order.status in (known, "Unknown"):
            return
        if "False" in (order.status, known):
            kind = "Warning" if order.status == "False" else "Normal"
            await self.event(item, kind, order.reason, order.message)

    async def event(self, item: Item, kind: str, reason: str, text: str) -> None:
        """Write an event; a failure is only logged."""
        now = datetime.now(UTC)
        stamp = now.strftime(TIME_FORMAT)
        made: Json = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {
                "name": f"{item.name[:200]}.{now.timestamp():.6f}".replace("_", "-"),
                "namespace": item.namespace,
            },
            "involvedObject": {
                "apiVersion": item.resource.api_version,
                "kind": item.kind,
                "namespace": item.namespace,
                "name": item.name,
                "uid": item.uid,
            },
            "reason": reason,
            "message": text[:1024],
            "type": kind,
            "source": {"component": "orderlymq-operator"},
            "firstTimestamp": stamp,
            "lastTimestamp": stamp,
            "count": 1,
        }
        try:
            await self._api.create(EVENTS, item.namespace, made)
        except ApiError as error:
            _log.info("event %s about %s %s: %s", reason, item.kind, item.name, error)


def _news(
    state: DesiredState,
    reports: Mapping[Subject, ConditionReport],
    observed: Observed,
    consumer_groups: Mapping[str, ObservedConsumerGroup],
    *,
    said: bool,
) -> Iterator[tuple[Item, dict[str, ConditionReport], Json]]:
    """Yield the parts whose statuses are out of date, with their new conditions and facts."""
    for subject, item in state.subjects.items():
        report = state.verdicts.get(subject) or reports.get(subject)
        if report is None or (report.reason in _PASSING and not said):
            continue
        facts = previous_facts(item)
        if isinstance(item.manifest, Topic) and report.reason != "BrokerUnavailable":
            facts = topic_facts(item.manifest, state.desired, observed)
        if isinstance(item.manifest, User):
            kept_facts = facts if report.reason == "BrokerUnavailable" else {}
            facts = kept_facts | account_facts(item.manifest, item.name, observed)
        kept = previous_conditions(item)
        if isinstance(item.manifest, ConsumerGroup) and subject not in state.verdicts:
            seen = consumer_groups.get(item.manifest.group_name)
            if seen is not None:
                facts = group_facts(item.manifest, seen, observed)
                kept = group_conditions(item.manifest, seen, observed)
        conditions = {"Ready": report, **{k: v for k, v in kept.items() if k != "Ready"}}
        if status_object(item, conditions, facts, now="") is not None:
            yield item, conditions, facts


def _is_of(item: Item, error: ApiError) -> bool:
    """Return whether a refusal concerns only one object, so that it must not block the whole Cluster.

    The object's spec may break a newer rule of the schema (422), or its namespace may have lost its Role (403).
    """
    return error.status == 422 or (error.status == 403 and item.kind != "Cluster")
