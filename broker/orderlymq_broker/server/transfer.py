"""
Transfer of leadership: on request, when this replica leaves, and when it cannot serve.

The rule: a planned move fails no request, and nothing here waits without a limit, because a process that was told
to end has only seconds.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.server.address import LeaderAddress
from orderlymq_broker.server.leadership import LAST_ANSWERS_S, Leadership
from orderlymq_broker.settings import BrokerSettings
from orderlymq_raft import NotLeader, ProposalRefused
from orderlymq_raft.types import NodeId

_log = logging.getLogger(__name__)

# Raft gives a transfer up after one election time-out; then another replica is elected within three more.
MOVE_TIMEOUT_FACTOR: Final = 5
# The request to run for election, its votes and the first entry of the next leader need this many round trips.
MOVE_ROUND_TRIPS: Final = 4
# With long election time-outs, a planned end would otherwise take longer than the whole process has.
MOVE_MAX_S: Final = 5.0
DRAIN_S: Final = 1.0
POLL_S: Final = 0.005


class LeadershipTransfer:
    """Moves leadership from this replica to another; *instance* returns the present one."""

    def __init__(
        self,
        settings: BrokerSettings,
        instance: Callable[[], Instance],
        leadership: Leadership,
        transport: Transport,
        address: LeaderAddress | None,
    ) -> None:
        self._settings = settings
        self._instance = instance
        self._leadership = leadership
        self._transport = transport
        self._address = address

    async def move(self, target: NodeId | None) -> NodeId:
        """Transfer the leadership to *target*, or to the best other replica; return the new leader.

        Raises:
            NotLeader: this replica does not lead.
            ProposalRefused: no other replica could lead, it did not take over in time, or a replica other than
                *target* did.
        """
        instance = self._instance()
        node, loop = instance.node, instance.loop
        if not node.is_leader:
            raise NotLeader(node.leader)
        chosen = self._best_successor() if target is None else target
        timeout_s = self._timeout_s()
        moved = await self._leadership.move(
            settled=lambda: not loop.collected and not loop.pending,
            transfer=lambda: loop.transfer(chosen),
            given_up=lambda: node.is_leader and not node.is_transferring,
            timeout_s=timeout_s,
        )
        leader = self._leadership.leader
        if not moved or leader is None:
            raise ProposalRefused(f"node {chosen} did not take over within {timeout_s:.1f} s")
        _log.info("node %d leads now", leader)
        if target is not None and leader != target:
            raise ProposalRefused(
                f"node {leader} leads now: it was elected instead of node {target}"
            )
        return leader

    async def give_up(self, reason: str) -> None:
        """Hand over because this leader cannot serve; continue if no other replica takes over."""
        _log.warning("%s, another replica should lead", reason)
        try:
            await self.move(None)
        except (NotLeader, ProposalRefused) as error:
            _log.warning("leadership was not handed over: %s", error)

    async def leave(self) -> None:
        """Hand over and let the clients go, so that a planned end fails no request."""
        _log.info("leaving")
        is_open = self._settings.bind == "always"
        until = self._leadership.needed_until() if is_open else None
        loop = self._instance().loop
        if loop.serving:
            try:
                await self.move(None)
            except (NotLeader, ProposalRefused) as error:
                _log.info("leadership was not handed over: %s", error)
        if loop.serving:
            await self._finish_alone()
        if until is not None:
            await self._leadership.pass_on(until)
        await self._leadership.drain(DRAIN_S if until is None else LAST_ANSWERS_S)

    async def _finish_alone(self) -> None:
        """Accept no new requests and answer those in the log, because there is no other replica to hand over to."""
        if self._address is not None:
            self._address.release()
        clock = asyncio.get_running_loop()
        deadline = clock.time() + DRAIN_S
        instance = self._instance()
        replication = instance.loop
        # Polled once in the life of a process, so the loop has no event for it.
        while (replication.collected or replication.pending) and clock.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        replication.submit(instance.core.become_follower(leader_known=False))

    def _timeout_s(self) -> float:
        raft = self._settings.raft
        round_trips_ms = MOVE_ROUND_TRIPS * self._instance().node.round_trip_ticks * raft.tick_ms
        return min((MOVE_TIMEOUT_FACTOR * raft.election_ms + round_trips_ms) / 1000, MOVE_MAX_S)

    def _best_successor(self) -> NodeId:
        status = self._instance().node.status()
        candidates = [
            (peer.match, -node, node)
            for node, peer in status.progress.items()
            if node != status.id
            and node in status.membership.voters
            and peer.is_alive
            and self._transport.is_connected(node)
        ]
        if not candidates:
            raise ProposalRefused("no other voter of the group can be reached")
        return max(candidates)[2]
