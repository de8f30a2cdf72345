"""
One reconcile of one Cluster: observe, plan, apply, report.

To follow a reconcile, read five modules: `observe.cluster` reads the objects, `observation` reads the custom resources
and their inputs, `plan.planner` decides, `executor` performs the actions through `backend`, and `report` writes the
`status`.

Rules: a reconcile that changes something decides only from state that it read itself, including the Cluster, and may be
repeated at any time. A reconcile that deletes the topic, consumer group or user of an object has listed that kind in
all namespaces. The next reconcile repeats failed actions. A reconcile that uses cached state may only find that there
is nothing to do. Nothing is written twice. A failure that a person must fix becomes a condition; any other failure
causes a retry.
"""

import logging
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import AdminError
from orderlymq_operator.brokers.objectthread import beside_loop
from orderlymq_operator.kube.api import Api
from orderlymq_operator.kube.cachedstate import NotReadError, deciding_from_cache
from orderlymq_operator.kube.certificates.authority import CertificateError
from orderlymq_operator.kube.errors import ApiError, RetryLaterError
from orderlymq_operator.kube.fanout import for_each
from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.cluster import CHANGING, Live, read_objects
from orderlymq_operator.kube.observe.credentials import Credentials
from orderlymq_operator.kube.observe.desired import MESSAGE_MAX
from orderlymq_operator.kube.observe.gateway import GatewayApi, may_have_routes
from orderlymq_operator.kube.observe.inventory import ClusterKey, Inventory, Item
from orderlymq_operator.kube.observe.lister import WATCHED_KEPT_S, Lister
from orderlymq_operator.kube.observe.nodes import Nodes
from orderlymq_operator.kube.reconcile import groupremoval, volumes
from orderlymq_operator.kube.reconcile.accepted import named, obstacle
from orderlymq_operator.kube.reconcile.backend import Defaults
from orderlymq_operator.kube.reconcile.backoff import Backoff, Failures
from orderlymq_operator.kube.reconcile.backups.bootstrap import Bootstrap
from orderlymq_operator.kube.reconcile.canary import SILENT
from orderlymq_operator.kube.reconcile.executor import execute
from orderlymq_operator.kube.reconcile.finalizers import Finalizers
from orderlymq_operator.kube.reconcile.observation import Observer
from orderlymq_operator.kube.reconcile.report import Report
from orderlymq_operator.kube.reconcile.scope import LastScopes, Scope
from orderlymq_operator.kube.reconcile.status import previous_conditions, previous_facts, step_of
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import ACCESSORY, CLUSTERS, Json, Resource
from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    Observed,
    ReportCondition,
    Subject,
    chain_of,
)
from orderlymq_operator.plan.expansion import topics_under_way
from orderlymq_operator.plan.planner import plan_accepted

_log = logging.getLogger(__name__)

# The pause before the next reconcile while there is work to do.
AT_WORK_S: Final = 0.2
EXPANDING_S: Final = 0.5  # short, because brokers refuse writes while a topic is fenced


class ClusterReconciler:
    """Reconciles Clusters; `reconcile` is called for one key at a time.

    Attributes:
        seen: the scope of the last reconcile of each Cluster.
        orders: the last verdict of each Cluster's canary, filled by `canary.Canaries`.
    """

    def __init__(
        self,
        api: Api,
        inventory: Inventory,
        defaults: Defaults,
        metrics: OperatorMetrics,
        access: Credentials,
        zone_of: Callable[[str], str],
        clock: Callable[[], float] = time.monotonic,
        label_of: Callable[[str, str], str | None] = lambda node, key: "",
    ) -> None:
        self._api = api
        self.inventory = inventory
        self._lists = Lister(api, clock, WATCHED_KEPT_S)
        self.nodes = Nodes(api, clock)
        self._observer = Observer(api, inventory, defaults, access, self.nodes, label_of)
        self._gateway = GatewayApi(api, clock)
        self._backoff = Backoff()
        self._repeats = Backoff()
        self._failures = Failures()
        self._metrics = metrics
        self._finalizers = Finalizers(api, inventory, clock)
        self._writer = StatusWriter(api, inventory, metrics)
        self._report = Report(self._writer, metrics, zone_of)
        self._bootstrap = Bootstrap(api)
        self._expanding: dict[ClusterKey, frozenset[str]] = {}
        self.seen = LastScopes()
        self.orders: dict[ClusterKey, ConditionReport] = {}

    async def close(self) -> None:
        """Close all connections."""
        await self._observer.close()

    async def reconcile(self, key: ClusterKey) -> float | None:
        """Reconcile once; return the seconds until the next reconcile is due, or None if none is planned.

        Raises:
            ApiError: the API server could not be read or written; try again.
        """
        with self._metrics.reconciles.time():
            await self.inventory.refresh(key)
            if self._lists.keeps(owner_of(key)) or self.inventory.cluster(key) is None:
                try:
                    with deciding_from_cache():
                        return await self._reconcile(key)
                except NotReadError:
                    self._lists.forget(owner_of(key))
            await self.inventory.read(CLUSTERS, key)
            async with self._observer.leaving_listed(key):
                return await self._reconcile(key)

    async def _reconcile(self, key: ClusterKey) -> float | None:
        item = self.inventory.cluster(key)
        seen = self.seen.get(key)
        gone = item is None or item.deleting_since is not None
        if gone or (seen is not None and item is not None and seen.item.uid != item.uid):
            self.seen.pop(key, None)
            self._forget(key)
        if item is None or gone:
            await self._without_cluster(key)
            return None
        steps = (*key, "steps")
        try:
            pause_s = await self._steps(item)
        except CertificateError as error:
            await self._write_problem(item, "SecretMissing", str(error))
            await self._give_up(item)
            return self._backoff.pause_s(key, str(error))
        except ApiError as error:
            if self._failures.stays(steps, error):
                await self._write_problem(item, error.condition, str(error))
                await self._give_up(item)
            raise
        self._failures.forget(steps)
        return pause_s

    async def _give_up(self, item: Item) -> float | None:
        """Release leaving parts of a Cluster that cannot be reconciled, after a while; return when to try again (s).

        During a pause they wait, and None is returned.
        """
        if item.is_paused:
            return None
        return await self._finalizers.give_up(self.inventory.parts(item.key))

    def shown(self, key: ClusterKey, found: Json, *, gone: bool) -> bool:
        """Note an object of a Cluster from a watch event; return False if the object is known in this version."""
        return self._lists.shown(owner_of(key), found, gone=gone)

    def interrupted(self, kinds: Collection[str]) -> None:
        """Have *kinds* read again, because their watches may have missed changes."""
        self._lists.interrupted(kinds)

    def _forget(self, key: ClusterKey) -> None:
        self._observer.forget(key)
        self._lists.forget(owner_of(key))
        self._backoff.forget(key)
        self._repeats.forget(key)
        for failing in (key, (*key, "steps"), (*key, "actions")):
            self._failures.forget(failing)
        self._metrics.forget_groups(key)

    async def _write_problem(self, item: Item, reason: str, text: str) -> None:
        report = ConditionReport("False", reason, text)
        item = self._present(item)
        previous, facts = previous_conditions(item), previous_facts(item)
        types = ("Ready", "Confirmed") if reason == "ConfirmationMissing" else ("Ready",)
        try:
            await self._writer.write(item, {**previous, **dict.fromkeys(types, report)}, facts)
        except ApiError as error:
            _log.error("%s %s/%s: %s: %s", item.kind, item.namespace, item.name, text, error)

    def _present(self, item: Item) -> Item:
        """Return the Cluster with the status that this reconcile has written already."""
        written = self.inventory.cluster(item.key)
        return written if written is not None and written.uid == item.uid else item

    async def _without_cluster(self, key: ClusterKey) -> None:
        """Report ClusterNotFound on all parts of a missing Cluster, and remove the finalizers of leaving parts."""
        report = ConditionReport(
            "False", "ClusterNotFound", f"there is no Cluster {key[1]!r} in namespace {key[0]!r}"
        )

        async def settle(item: Item) -> None:
            found = self.inventory.cluster(key)
            if found is not None and found.deleting_since is None:
                return  # the Cluster was made meanwhile, and its reconcile will report more
            if item.deleting_since is not None:
                await self._finalizers.release(item)
            else:
                await self._writer.write(item, {"Ready": report}, {})

        await for_each(self.inventory.parts(key), settle)

    # -- the steps of a reconcile --------------------------------------------------------------------------------

    async def _steps(self, item: Item) -> float | None:
        routes = await self._gateway.routes() if may_have_routes(item) else None
        live = await read_objects(self._lists, named(item), ACCESSORY, routes)
        if live.former:
            text = f"{live.former} belongs to a former Cluster of this name and is deleted first"
            await self._write_problem(item, "Progressing", text)
            await self._give_up(item)
            return self._wait_s(item.key, live, text)
        if (waits := obstacle(item, live)) is not None:
            self._lists.keep(owner_of(item.key))
            await self._write_problem(item, waits.reason, waits.message)
            return await self._give_up(item)
        scope = await self._observe(item, live)
        backend = scope.backend
        if item.is_paused:
            backend.observe_outside()
            scope.found.listeners = backend.outside.condition()
            observed = await backend.observe()
            self._report.set_groups(scope, observed)
            self.seen[item.key] = scope
            # The operator changes nothing; it only reports the current state.
            found = await self._plan(scope, observed)
            reports = [action for action in found if isinstance(action, ReportCondition)]
            await execute(backend, reports, self._metrics)
            await self._report.write(scope, observed, [])
            return self._pause_s(scope)
        if scope.backup_id is None:
            return await self._restore(scope)
        applied = await self._ensure(scope)
        applied += await self._bootstrap.release(backend)
        if backend.refused:
            error = backend.refused[0]
            report = ConditionReport("False", error.condition, str(error)[:MESSAGE_MAX])
            scope.found.problem = scope.found.problem or report
        scope.found.listeners = backend.outside.condition()
        observed, actions = await self._observe_and_plan(scope)
        expanding = self._expanding[item.key]
        scope.found.step = step_of(actions, applied)
        failed, work = await self._carry_out(scope, observed, actions)
        mislabelled = 0
        with _going_on(failed):
            mislabelled = await self._writer.repair_labels(item, live, backend.environment.groups)
        self._note_refusals(scope, failed)
        await self._finish(scope, observed)
        await self._report.write(scope, observed, failed)
        if failed and not (expanding and all(isinstance(each, AdminError) for each in failed)):
            raise failed[0]
        if failed:
            # Brokers refuse writes to a fenced topic, so its expansion must not wait until other failures are fixed.
            self._metrics.failures.inc()
            _log.warning("%s/%s: %s", item.namespace, item.name, failed[0])
            return EXPANDING_S
        if work or applied:
            # Repeated actions without effect must not run as fast as possible.
            steps = tuple(each for each in actions if not isinstance(each, ReportCondition))
            done = (steps, work, applied)
            pause_s = self._repeats.pause_s(item.key, done, AT_WORK_S)
            return min(pause_s, EXPANDING_S) if expanding else pause_s
        self._repeats.forget(item.key)
        if expanding:
            return EXPANDING_S
        return self._pause_s(scope, mislabelled)

    async def _observe(self, item: Item, live: Live) -> Scope:
        key = item.key
        expanding = self._expanding.get(key, frozenset())
        scope = await self._observer.observe(item, live, self.seen.get(key), expanding)
        if scope.cluster.spec.canary.enabled:
            scope.found.order = self.orders.get(key, SILENT)
        return scope

    async def _ensure(self, scope: Scope) -> int:
        """Make the objects of a Cluster; return how many were changed. If one is refused, still serve the brokers."""
        item = scope.item
        try:
            applied = await scope.backend.ensure()
        except RetryLaterError as error:
            if self._failures.stays(item.key, error):
                await self._write_problem(item, error.condition, str(error))
                await self._serve_parts(scope)
            raise
        except ApiError:
            await self._serve_parts(scope)
            raise
        self._failures.forget(item.key)
        return applied

    async def _observe_and_plan(self, scope: Scope) -> tuple[Observed, list[Action]]:
        """Return the observed state, and the actions of the plan."""
        key = scope.item.key
        observed = await scope.backend.observe()
        self._report.set_groups(scope, observed)
        scope.observed = observed
        # Set only now: the leaders are unknown until the brokers have answered. That takes seconds when a node is lost,
        # which is when takeovers need the leaders of the last reconcile.
        self.seen[key] = scope
        self._expanding[key] = topics_under_way(observed.groups)
        actions = await self._plan(scope, observed)
        if refused := await self._finalizers.settle(scope.state, observed):
            unheld = frozenset((subject.kind, subject.name) for subject in refused)
            scope.state.desired = replace(scope.state.desired, unheld=unheld)
            actions = await self._plan(scope, observed)
        return observed, actions

    async def _carry_out(
        self, scope: Scope, observed: Observed, actions: list[Action]
    ) -> tuple[list[Exception], int]:
        """Execute the plan, and the work outside it (volumes, removals); return failures and the number of changes."""
        backend = scope.backend
        failed, work = await execute(backend, actions, self._metrics)
        backend.name_failures()
        with _going_on(failed):
            work += await volumes.settle(backend, scope.found)
        surplus = groupremoval.surplus_groups(scope.cluster, scope.live)
        with _going_on(failed):
            work += await groupremoval.settle(self._api, backend, surplus, scope.found, observed)
        if backend.held:
            scope.found.step = ("RollingUpdate", backend.held[0])
        return failed, work

    def _note_refusals(self, scope: Scope, failed: Sequence[Exception]) -> None:
        """Report the API server's refusal of an action in Ready, unless it is temporary."""
        key = (scope.item.namespace, scope.item.name, "actions")
        refused = [error for error in failed if isinstance(error, ApiError)]
        if not refused:
            self._failures.forget(key)
        elif self._failures.stays(key, refused[0]):
            text = str(refused[0])[:MESSAGE_MAX]
            report = ConditionReport("False", refused[0].condition, text)
            scope.found.problem = scope.found.problem or report

    async def _serve_parts(self, scope: Scope) -> None:
        """Execute the actions that need only brokers, while objects cannot be made, and report the brokers' health."""
        observed, actions = await self._observe_and_plan(scope)
        remote = [each for each in actions if chain_of(each)[0] not in ("RaftGroup", "NameServer")]
        await execute(scope.backend, remote, self._metrics)
        scope.backend.name_failures()
        await self._finish(scope, observed)
        await self._report.write_health(self._present(scope.item), scope, observed)

    async def _finish(self, scope: Scope, observed: Observed) -> None:
        """Remove the finalizers of deleted parts, and report what a ConsumerGroup in use waits for."""
        in_use = scope.backend.in_use
        await self._finalizers.finish(scope.state, observed, in_use.keys())
        for item in scope.state.leaving:
            if text := in_use.get((item.kind, item.declared)):
                await self._writer.not_ready(item, "InUse", text[:MESSAGE_MAX])

    def _pause_s(self, scope: Scope, mislabelled: int = 0) -> float | None:
        """Return the pause (s) after a reconcile that had nothing to do; None if the operator waits for nothing."""
        key = scope.item.key
        if self._is_calm(scope) and not mislabelled:
            self._lists.keep(owner_of(key), _unwatched(scope.live))
            self._backoff.forget(key)
            return None
        reports = tuple(sorted(scope.backend.reports.items()))
        return self._wait_s(key, scope.live, (reports, scope.found.step, mislabelled))

    def _wait_s(self, key: ClusterKey, live: Live, found: Hashable) -> float:
        """Return the pause (s) after a reconcile that *found* this and only waits; the next one lists few kinds."""
        self._lists.keep(owner_of(key), (*CHANGING, *_unwatched(live)))
        return self._backoff.pause_s(key, found)

    async def _restore(self, scope: Scope) -> float:
        """Take the next step of the restore of a new Cluster; no broker runs meanwhile."""
        item = scope.item
        progress = await self._bootstrap.advance(item, scope.state.desired.cluster, scope.backend)
        conditions = {"Ready": progress.condition, "Restored": progress.condition}
        facts = previous_facts(item) | ({"restored": progress.facts} if progress.facts else {})
        await self._writer.write(item, {**previous_conditions(item), **conditions}, facts)
        await self._give_up(item)
        if progress.pause_s is not None:
            return progress.pause_s
        found = (progress.condition, progress.applied)
        if progress.applied:
            return self._backoff.pause_s(item.key, found)
        return self._wait_s(item.key, scope.live, found)

    @staticmethod
    async def _plan(scope: Scope, observed: Observed) -> list[Action]:
        actions, refused = await beside_loop(plan_accepted, scope.state.desired, observed)
        for refusal in refused:
            report = ConditionReport("False", "ResourceConflict", str(refusal))
            scope.state.verdicts[Subject(refusal.kind, refusal.name)] = report
        return actions

    def _is_calm(self, scope: Scope) -> bool:
        reports = scope.backend.reports
        key = Subject("Cluster", scope.item.name)
        listeners = scope.found.listeners
        return {report.status for report in reports.values()} <= {"True"} and (
            not scope.backend.refused
            and not scope.state.unsure
            and not scope.backend.in_use
            and reports.get(key) is not None
            and scope.found.step is None
            and (scope.found.problem is None or scope.found.problem.reason != "SecretMissing")
            and (listeners is None or listeners.status == "True")
        )


@contextmanager
def _going_on(failed: list[Exception]) -> Iterator[None]:
    """Note a refusal and continue, because independent work must still be done and reported."""
    try:
        yield
    except (AdminError, ApiError) as error:
        if isinstance(error, ApiError) and not error.is_refusal:
            raise
        failed.append(error)


def _unwatched(live: Live) -> tuple[Resource, ...]:
    """Return the kinds without a watch."""
    return () if live.routes is None else (live.routes,)


def owner_of(key: ClusterKey) -> tuple[str, ...]:
    """Return the name under which `Lister` keeps the objects of a Cluster."""
    return ("Cluster", *key)
