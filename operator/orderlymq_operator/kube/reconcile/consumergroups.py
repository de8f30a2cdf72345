"""
The loop that reconciles the consumer groups of every Cluster about once a second.

Rules: the loop works only while this process leads, and only on Clusters in which every raft group answered at the last
reconcile. A slow Cluster does not delay others. `brokers.consumergroups` does the work.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.consumergroups import GroupReconciler
from orderlymq_operator.kube.objects import names
from orderlymq_operator.kube.observe.cluster import Live
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.observe.zones import Zones
from orderlymq_operator.plan.actions import ObservedGroup, TopicConfig
from orderlymq_operator.resources.kinds import Desired
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.sockets.addresses import join_address
from orderlymq_runtime.wallclock import monotonic_ms

_log = logging.getLogger(__name__)

_POLL_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class AssignmentTarget:
    """The state of a Cluster at its last reconcile, by raft group.

    Attributes:
        addresses: the address of the raft group's leader.
        nodes: the node on which the leader runs.
        topics: the topics of the raft group.
    """

    admin: Admin
    desired: Desired
    addresses: Mapping[str, str]
    nodes: Mapping[str, str]
    topics: Mapping[str, Mapping[str, TopicConfig]]


def target_of(
    admin: Admin, desired: Desired, live: Live, groups: Mapping[str, ObservedGroup]
) -> AssignmentTarget | None:
    """Return the target for a Cluster in which every raft group answers; None otherwise, or without consumer groups."""
    leaders = {name: live.leader(name) for name in groups}
    topics: dict[str, Mapping[str, TopicConfig]] = {}
    for name, group in groups.items():
        if leaders[name] is None or group.topics is None:
            return None
        topics[name] = group.topics
    if not groups or not desired.consumer_groups:
        return None
    leading = {name: pod for name, pod in leaders.items() if pod is not None}
    addresses = {name: join_address(pod.ip, names.BROKER_PORT) for name, pod in leading.items()}
    nodes = {name: pod.node for name, pod in leading.items()}
    return AssignmentTarget(admin, desired, addresses, nodes, topics)


class ConsumerGroupLoop:
    """Reconciles the consumer groups of all Clusters; `run` until cancelled."""

    def __init__(
        self,
        clusters: Callable[[], Mapping[ClusterKey, AssignmentTarget]],
        leads: Callable[[], bool],
        zones: Zones,
    ) -> None:
        self._clusters = clusters
        self._leads = leads
        self._zones = zones
        self._consumer_groups: dict[ClusterKey, tuple[int, GroupReconciler]] = {}
        self._reconciles: dict[ClusterKey, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Reconcile every consumer group about once a second until cancelled."""
        try:
            while True:
                if self._leads():
                    self._begin_reconciles()
                await asyncio.sleep(_POLL_S)
        finally:
            await end_tasks(self._reconciles.values())

    def _begin_reconciles(self) -> None:
        """Begin the reconcile of each Cluster, unless its previous reconcile is still running."""
        clusters = self._clusters()
        for key in self._consumer_groups.keys() - clusters.keys():
            del self._consumer_groups[key]
        going_on = {key: task for key, task in self._reconciles.items() if not task.done()}
        self._reconciles = going_on | {
            key: asyncio.create_task(self._reconcile(key, one), name="consumer groups")
            for key, one in clusters.items()
            if key not in going_on
        }

    async def _reconcile(self, key: ClusterKey, one: AssignmentTarget) -> None:
        known = self._consumer_groups.get(key)
        # After a change of the token, this process decides again with a new reconciler.
        if known is None or known[0] != one.admin.operator_token:
            reconciler = GroupReconciler(one.admin, self._zones.of_address)
            known = self._consumer_groups[key] = (one.admin.operator_token, reconciler)
        now_ms = monotonic_ms()
        try:
            zones = {group: self._zones.of_node(node) for group, node in one.nodes.items()}
            await known[1].reconcile(one.desired, one.addresses, one.topics, now_ms, zones)
        except Exception:
            # An error in one Cluster must not end the reconciles of others, nor the operator.
            _log.exception("the reconcile of the consumer groups of %s/%s failed", *key)
