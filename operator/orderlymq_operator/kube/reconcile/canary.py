"""
The verdicts of the canaries: read about once a second, reported in the condition OrderVerified.

Rules: a canary that does not answer proves nothing, neither order nor its violation. A reconcile uses the loop's last
verdict. The loop wakes the reconcile only when the status or reason of the verdict changes.
"""

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import aiohttp
import orjson

from orderlymq_operator.brokers.pages import read_page
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.objects.canary import canary_name
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.observe.pods import PodFacts
from orderlymq_operator.kube.resources import DEPLOYMENTS
from orderlymq_operator.plan.actions import ConditionReport
from orderlymq_operator.resources.cluster.canary import (
    CANARY_COMPONENT,
    CANARY_PORT,
    CANARY_PREFIX,
    canary_topic,
)
from orderlymq_operator.resources.conditions.table import BY_NAME
from orderlymq_operator.resources.kinds import Cluster, Desired
from orderlymq_runtime.sockets.addresses import join_address

ORDER_VERIFIED: Final = "OrderVerified"
POLL_S: Final = 1.0
_TIMEOUT_S: Final = 1.0
# A canary may be silent for this long while its pod is replaced; that does not mean that the order was broken.
SILENT_S: Final = 15.0
SILENT: Final = ConditionReport("Unknown", "CanarySilent", "the canary does not answer")


class Canaries:
    """The canaries of all Clusters; `run` until cancelled.

    Args:
        clusters: returns the URL of each canary's status page, by Cluster; empty if its pod does not run.
        orders: the last verdict of each canary; reconciles read it.
        changed: called with a Cluster whose verdict has another status or reason.
    """

    def __init__(
        self,
        clusters: Callable[[], Mapping[ClusterKey, str]],
        orders: dict[ClusterKey, ConditionReport],
        leads: Callable[[], bool],
        changed: Callable[[ClusterKey], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clusters = clusters
        self._leads = leads
        self._changed = changed
        self._clock = clock
        self._orders = orders
        self._heard_at: dict[ClusterKey, float] = {}

    async def run(self) -> None:
        """Read every canary's verdict about once a second until cancelled."""
        async with aiohttp.ClientSession() as session:
            while True:
                if self._leads():
                    await self.look(session)
                else:
                    self._forget()
                await asyncio.sleep(POLL_S)

    async def look(self, session: aiohttp.ClientSession) -> None:
        """Read every canary's verdict once."""
        clusters = self._clusters()
        for key in self._orders.keys() - clusters.keys():
            del self._orders[key]
            self._heard_at.pop(key, None)
        said = await asyncio.gather(*(_ask(session, url) for url in clusters.values()))
        for key, report in zip(clusters, said, strict=True):
            self._hear(key, report)

    def _forget(self) -> None:
        """Drop all verdicts, because a process that leads again later must not report old ones."""
        self._orders.clear()
        self._heard_at.clear()

    def _hear(self, key: ClusterKey, report: ConditionReport | None) -> None:
        before, now = self._orders.get(key, SILENT), self._clock()
        if report is not None:
            self._heard_at[key] = now
        elif now - self._heard_at.get(key, 0.0) >= SILENT_S:
            report = SILENT
        else:
            return
        self._orders[key] = report
        if (before.status, before.reason) != (report.status, report.reason):
            self._changed(key)


def canary_page(live: Live) -> str:
    """Return the URL of the canary's status page; empty if no canary runs."""
    for pod in _pods(live):
        if pod.running and not pod.deleting:
            return f"http://{join_address(pod.ip, CANARY_PORT)}/status"
    return ""


def groups_in_use(live: Live, cluster: Cluster) -> frozenset[str]:
    """Return the broker groups that a canary may send to: those in its Deployment and in pods that have not ended."""
    made = live.find(DEPLOYMENTS, canary_name(cluster))
    notes = [pod.annotations for pod in _pods(live) if not pod.is_over]
    if made is not None:
        notes.append(made["spec"]["template"]["metadata"].get("annotations") or {})
    # An operator of an earlier version wrote no annotation, and its canaries send to all broker groups.
    texts = [each.get(names.ANNOTATION_GROUPS) for each in notes]
    return frozenset(
        group
        for text in texts
        for group in (cluster.group_names if text is None else text.split(","))
    )


def _pods(live: Live) -> Iterator[PodFacts]:
    for pod in live.pods.values():
        if pod.labels.get("app.kubernetes.io/component") == CANARY_COMPONENT:
            yield pod


def with_canary(desired: Desired, used: frozenset[str] = frozenset()) -> Desired:
    """Return *desired* with a canary topic in each broker group that stays, and other canary data marked for deletion.

    A topic that a user has declared under such a name stays. A topic in a broker group of *used* stays, too, while a
    canary may send there, because the canary would report the deletion of its topic as a loss of messages.
    """
    cluster = desired.cluster
    enabled = cluster.spec.canary.enabled
    left = desired.draining if enabled else cluster.group_names
    declared = {topic.topic_name for topic in desired.topics}
    topics = {canary_topic(group) for group in left if group not in used}
    topics -= declared
    groups = set() if enabled or used else {CANARY_PREFIX}
    groups -= {group.group_name for group in desired.consumer_groups}
    stay = {
        group
        for group in cluster.group_names
        if group not in left and canary_topic(group) not in declared
    }
    return replace(
        desired,
        canary_groups=frozenset(stay),
        deleted_topics=desired.deleted_topics | topics,
        deleted_consumer_groups=desired.deleted_consumer_groups | groups,
    )


async def _ask(session: aiohttp.ClientSession, url: str) -> ConditionReport | None:
    """Return a canary's verdict; None if it does not answer or the answer is invalid."""
    if not url:
        return None
    try:
        return parse_verdict(orjson.loads(await read_page(session, url, _TIMEOUT_S)))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, KeyError, TypeError):
        return None


def parse_verdict(data: Mapping[str, Any]) -> ConditionReport:
    """Return the verdict in the JSON of /status.

    Raises:
        KeyError, TypeError, ValueError: the JSON lacks a field or has another form.
    """
    status, reason = data["status"], data["reason"]
    if status not in ("True", "False", "Unknown") or reason not in BY_NAME:
        raise ValueError(f"{status} and {reason} are not a valid verdict")
    return ConditionReport(status, reason, str(data["message"]))
