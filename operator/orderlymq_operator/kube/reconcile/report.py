"""
The last step of a reconcile: turns its findings into conditions and facts, metrics and events.

Rules: a change of `Ready` that may be over in a second is not written (`debounce`). Members and lag of consumer groups
are written at intervals. `status` computes the texts, `writer` writes them.
"""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from orderlymq_operator.kube.metrics import OperatorMetrics
from orderlymq_operator.kube.observe.capacity import capacity
from orderlymq_operator.kube.observe.consumergroups import ObservedConsumerGroup
from orderlymq_operator.kube.observe.inventory import ClusterKey, Item
from orderlymq_operator.kube.reconcile.canary import ORDER_VERIFIED
from orderlymq_operator.kube.reconcile.certificates import in_use
from orderlymq_operator.kube.reconcile.debounce import Debounce
from orderlymq_operator.kube.reconcile.scope import Scope
from orderlymq_operator.kube.reconcile.status import (
    cluster_conditions,
    cluster_facts,
    condition_of,
    health_conditions,
    health_facts,
    listener_facts,
    previous_conditions,
    previous_facts,
)
from orderlymq_operator.kube.reconcile.writer import StatusWriter
from orderlymq_operator.kube.resources import TIME_FORMAT
from orderlymq_operator.plan.actions import ConditionReport, Observed
from orderlymq_runtime.wallclock import monotonic_ms

# The minimal interval between writes of members and lag: they change all the time, and metrics show them immediately.
CONSUMER_GROUPS_S: Final = 30.0


class Report:
    """Reports the reconciles of Clusters."""

    def __init__(
        self, writer: StatusWriter, metrics: OperatorMetrics, zone_of: Callable[[str], str]
    ) -> None:
        self._writer = writer
        self._metrics = metrics
        self._zone_of = zone_of
        self._observed_at: dict[ClusterKey, float] = {}
        self._debounce = Debounce()

    async def write(self, scope: Scope, observed: Observed, failed: list[Exception]) -> None:
        """Write the findings of a reconcile: conditions and facts of the Cluster and its parts, and events."""
        now = datetime.now(UTC).strftime(TIME_FORMAT)
        cluster = scope.state.desired.cluster
        backend = scope.backend
        previous = previous_conditions(scope.item).get("CapacitySufficient")
        scope.found.capacity = capacity(cluster, scope.live, previous)
        conditions = cluster_conditions(
            cluster, backend.reports, observed, scope.live, scope.found, backend.environment
        )
        facts = cluster_facts(
            scope.item, cluster, observed, scope.live, backend.environment, scope.found, now
        )
        reached = scope.item.status.get("listeners") or []
        facts |= listener_facts(cluster, backend.outside, scope.live, reached)
        if self._is_debounced(scope, conditions["Ready"]):
            return  # the next reconcile follows within a second
        before = condition_of(scope.item.status, ORDER_VERIFIED)
        await self._writer.write(scope.item, conditions, facts)
        await self._writer.announce_order(scope.item, before, scope.found.order)
        await self._writer.announce_room(scope.item, previous_conditions(scope.item), conditions)
        consumer_groups = await self._consumer_groups(scope)
        await self._writer.write_parts(
            scope.state, backend.reports, observed, consumer_groups, said=bool(failed)
        )

    async def write_health(self, item: Item, scope: Scope, observed: Observed) -> None:
        """Write the brokers' health for a Cluster whose objects are refused; keep the other, older status of *item*."""
        cluster, said = scope.state.desired.cluster, previous_conditions(item)
        if "Ready" in said:
            conditions = said | health_conditions(cluster, observed)
            facts = health_facts(cluster, observed, scope.live, scope.found)
            await self._writer.write(item, conditions, previous_facts(item) | facts)
        reports = scope.backend.reports
        await self._writer.write_parts(scope.state, reports, observed, {}, said=True)

    def set_groups(self, scope: Scope, observed: Observed) -> None:
        """Set the metrics of a Cluster's raft groups and certificates."""
        cluster = scope.state.desired.cluster
        self._metrics.set_groups(
            scope.item.key,
            observed.groups,
            cluster.group_names,
            cluster.spec.replicas_per_group,
        )
        self._metrics.set_certificates(
            scope.item.key,
            in_use(cluster, scope.live),
            cluster.group_names,
        )

    def _is_debounced(self, scope: Scope, ready: ConditionReport) -> bool:
        item = scope.item
        previous = condition_of(item.status, "Ready")
        now_ms = monotonic_ms()
        return self._debounce.hold(item.key, previous, ready, item.generation, now_ms)

    async def _consumer_groups(self, scope: Scope) -> dict[str, ObservedConsumerGroup]:
        """Observe all consumer groups; empty if that was done recently or a raft group does not answer."""
        key = scope.item.key
        now = time.monotonic()
        names = [group.group_name for group in scope.state.desired.consumer_groups]
        if not names or now - self._observed_at.get(key, -CONSUMER_GROUPS_S) < CONSUMER_GROUPS_S:
            return {}
        found = await scope.backend.consumer_groups(names, self._zone_of)
        if found is None:
            return {}
        self._observed_at[key] = now
        return found
