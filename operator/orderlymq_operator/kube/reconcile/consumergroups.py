"""
Tends the consumer groups of every Cluster: divides queues for members that ask, and wakes groups with orphaned queues.

Rule: only while this process leads, and only Clusters of which every raft group had answered at the last pass; what is
decided and how often is looked stands in `grouptending`.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from orderlymq_operator.brokers.admin import Admin
from orderlymq_operator.brokers.consumergroups import GroupTending
from orderlymq_operator.kube.observe.inventory import ClusterKey
from orderlymq_operator.kube.observe.zones import Zones
from orderlymq_operator.resources.kinds import Desired

_log = logging.getLogger(__name__)

_LOOK_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Tended:
    """A Cluster at its last pass, by raft group.

    Attributes:
        addresses: where its leader answers.
        nodes: on which node that is.
        queues: how many queues it has of each topic.
    """

    admin: Admin
    desired: Desired
    addresses: Mapping[str, str]
    nodes: Mapping[str, str]
    queues: Mapping[str, Mapping[str, int]]


class ClusterTending:
    """Tends all Clusters; `run` until cancelled."""

    def __init__(
        self,
        clusters: Callable[[], Mapping[ClusterKey, Tended]],
        leads: Callable[[], bool],
        zones: Zones,
    ) -> None:
        self._clusters = clusters
        self._leads = leads
        self._zones = zones
        self._tending: dict[ClusterKey, tuple[int, GroupTending]] = {}

    async def run(self) -> None:
        """Look at every group about once a second until cancelled."""
        while True:
            if self._leads():
                clusters = self._clusters()
                for key in self._tending.keys() - clusters.keys():
                    del self._tending[key]
                await asyncio.gather(*(self._tend(key, one) for key, one in clusters.items()))
            await asyncio.sleep(_LOOK_S)

    async def _tend(self, key: ClusterKey, one: Tended) -> None:
        known = self._tending.get(key)
        # Whoever leads anew decides anew, under its own token.
        if known is None or known[0] != one.admin.operator_token:
            tending = GroupTending(one.admin, self._zones.of_address)
            known = self._tending[key] = (one.admin.operator_token, tending)
        now_ms = time.monotonic_ns() // 1_000_000
        try:
            zones = {group: self._zones.of_node(node) for group, node in one.nodes.items()}
            await known[1].tend(one.desired, one.addresses, one.queues, now_ms, zones)
        except Exception:
            # A look at one Cluster must not end those at others, nor the operator.
            _log.exception("tending the groups of %s/%s failed", *key)
