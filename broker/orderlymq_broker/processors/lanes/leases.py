"""
The leader's clock of attempts.

The rules: a lease runs from the moment at which the hand-out was applied here, or at which the member has asked for a
renewal; a new leader runs every lease in full from the start of its term: longer than needed, never shorter. That a lease is
over is a record, and an attempt that has ended meanwhile is passed over by it. A renewal needs no record: its answer leaves
only from a leader that a majority has confirmed since (``replication/leaderlease.py``).
"""

from collections.abc import Iterable, Iterator
from typing import Final

from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.entrybuilder import in_pieces
from orderlymq_broker.core.leaseclocks import LeaseClocks
from orderlymq_broker.core.longwalks import walk
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import LaneRef, LanesExpired, LanesGranted
from orderlymq_broker.state.lanes.queue import LaneQueue

# Attempts that one record ends: some 100 KiB.
EXPIRED_MAX: Final = 1_024

# Group, topic, queue, lane, attempt.
Attempt = tuple[str, str, int, int, int]


class LaneLeases:
    """When each attempt ends, and when a parked lane is due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._clocks: LeaseClocks[Attempt] = LeaseClocks()
        # By last attempt: lanes that were parked at a time that is still to come by this clock.
        self._due_ms: dict[Attempt, int] = {}
        self._wall_ms = 0
        # Whether a walk over all that is known is under way, and whether something has gone since it began.
        self._walks = False
        self._has_gone = False

    def start(self, now: Now) -> None:
        """Run every lease in full, and the pauses that the clock of a former leader would make longer."""
        self.stop()
        for queue in self._context.state.lanes.all():
            for lane in queue.in_state(LaneState.IN_HAND):
                self._clocks.run(
                    (*queue.place, lane.number, lane.attempt), now.monotonic_ms + lane.lease_ms
                )
        self._bound_pauses(now)

    def _bound_pauses(self, now: Now) -> None:
        """Count the pauses from now on that a clock ahead has begun."""
        self._wall_ms = now.wall_ms
        known, self._due_ms = self._due_ms, {}
        for queue in self._context.state.lanes.all():
            for lane in queue.in_state(LaneState.PARKED):
                attempt = (*queue.place, lane.number, lane.attempt)
                if lane.since_ms > now.wall_ms:
                    self._due_ms[attempt] = now.wall_ms + lane.due_ms - lane.since_ms
                elif attempt in known:
                    self._due_ms[attempt] = known[attempt]

    def stop(self) -> None:
        """Forget all leases."""
        self._clocks.clear()
        self._due_ms.clear()
        self._walks = self._has_gone = False

    def due(self, queue: LaneQueue, wall_ms: int) -> list[Lane]:
        """Return the parked lanes of a queue that are handed out now."""
        if not self._due_ms:
            return queue.due(wall_ms)

        return [
            lane
            for lane in queue.in_state(LaneState.PARKED)
            if self._due_ms.get((*queue.place, lane.number, lane.attempt), lane.due_ms) <= wall_ms
        ]

    def granted(self, outcome: LanesGranted, now: Now) -> None:
        """Begin the leases of what was handed out."""
        end_ms = now.monotonic_ms + outcome.lease_ms
        for each in outcome.granted:
            place = (outcome.group, outcome.topic, each.queue_id)
            self._clocks.run((*place, each.lane, each.attempt), end_ms)

    def renew(self, attempt: Attempt, lease_ms: int, now: Now) -> bool:
        """Begin the lease of an attempt again; false when its end is under way already."""
        if attempt not in self._clocks.ends:
            return False
        self._clocks.run(attempt, now.monotonic_ms + lease_ms)

        return True

    def ended(self, attempts: Iterable[Attempt]) -> None:
        """Stop the leases of attempts that are over."""
        for attempt in attempts:
            self._clocks.stop(attempt)

    def forget_gone(self, now: Now) -> list[Effect]:
        """Forget the attempts and pauses of lanes that went with their topic or group, the last in later turns."""
        walks, self._has_gone = self._walks, True
        if walks:
            return []
        self._walks = True

        return walk(self._context, self._known(), self._judge, now)

    def _known(self) -> Iterator[Attempt]:
        """Yield all attempts and pauses, and again while something has gone meanwhile."""
        while self._has_gone:
            self._has_gone = False
            yield from (*self._clocks.ends, *self._due_ms)
        self._walks = False

    def _judge(self, attempts: Iterable[Attempt], _: Now) -> list[Effect]:
        lanes = self._context.state.lanes
        for attempt in attempts:
            group, topic, queue_id, number, attempt_number = attempt
            queue = lanes.queues_of(group, topic).get(queue_id)
            lane = None if queue is None else queue.lanes.get(number)
            if lane is None or lane.attempt != attempt_number:
                self._clocks.stop(attempt)
                self._due_ms.pop(attempt, None)

        return []

    def tick(self, now: Now) -> list[Effect]:
        """Propose the end of the attempts whose leases are over."""
        if now.was_ahead(self._wall_ms):
            self._bound_pauses(now)
        self._wall_ms = now.wall_ms
        over: dict[str, list[LaneRef]] = {}
        for attempt in self._clocks.over(now.monotonic_ms):
            group, topic, queue_id, lane, number = attempt
            over.setdefault(group, []).append(LaneRef(topic, queue_id, lane, number))
        if not over:
            return []
        self._context.counters["lanes_expired"] += sum(map(len, over.values()))

        return in_pieces(
            LanesExpired(group, tuple(refs[start : start + EXPIRED_MAX]))
            for group, refs in over.items()
            for start in range(0, len(refs), EXPIRED_MAX)
        )
