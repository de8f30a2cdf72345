"""
The leader's clock of attempts.

The rules: a lease runs from the moment at which the hand-out was applied here, or at which the member has asked for a
renewal; a new leader runs every lease in full from the start of its term: longer than needed, never shorter. That a lease is
over is a record, and an attempt that has ended meanwhile is passed over by it. A renewal needs no record: its answer leaves
only from a leader that a majority has confirmed since (``replication/leaderlease.py``). A member that has had a message
for longer than its group's consumeTimeout gets no renewal, so that nobody else has it before the member knows; when the
lease is over, that is a failure of the message.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.entrybuilder import in_pieces
from orderlymq_broker.core.leaseclocks import LeaseClocks
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.lanes.failures import failed
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    LaneRecord,
    LaneRef,
    LanesExpired,
    LanesGranted,
    LanesReported,
)
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_protocol.body.lanes import RETRY, LaneReport

# Attempts that one record ends: some 100 KiB.
EXPIRED_MAX: Final = 1_024

_MINUTE_MS: Final = 60_000
_TIMED_OUT: Final = (
    "{client} had it in work for longer than the group's consumeTimeout, {minutes} min"
)

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
        # Since when each attempt is at its first message, and of which the group's minutes are over.
        self._since_ms: dict[Attempt, int] = {}
        self._timed_out: dict[Attempt, int] = {}

    def start(self, now: Now) -> None:
        """Run every lease in full, and the pauses that the clock of a former leader would make longer."""
        self.stop()
        for queue in self._context.state.lanes.all():
            for lane in queue.in_state(LaneState.IN_HAND):
                self._begin((*queue.place, lane.number, lane.attempt), lane.lease_ms, now)
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
        self._since_ms.clear()
        self._timed_out.clear()

    def due_ms(self, queue: LaneQueue, lane: Lane) -> int:
        """Return from which time of this leader on a parked lane is handed out."""
        return self._due_ms.get((*queue.place, lane.number, lane.attempt), lane.due_ms)

    def granted(self, outcome: LanesGranted, now: Now) -> None:
        """Begin the leases of what was handed out."""
        for each in outcome.granted:
            place = (outcome.group, outcome.topic, each.queue_id)
            self._begin((*place, each.lane, each.attempt), outcome.lease_ms, now)

    def progressed(self, attempt: Attempt, now: Now) -> None:
        """Begin the time of an attempt's next message."""
        self._since_ms[attempt] = now.monotonic_ms
        self._timed_out.pop(attempt, None)

    def time_out(self, attempt: Attempt, minutes: int, now: Now) -> bool:
        """Tell whether a message is in work for longer than the group's *minutes*, and note it; none are no bound."""
        since_ms = self._since_ms.get(attempt, now.monotonic_ms)
        if minutes <= 0 or now.monotonic_ms - since_ms < minutes * _MINUTE_MS:
            return False
        self._timed_out[attempt] = minutes

        return True

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
            self._forget(attempt)

    def forget_gone(self) -> None:
        """Forget the attempts and pauses of lanes that went with their topic or group."""
        lanes = self._context.state.lanes

        def is_gone(attempt: Attempt) -> bool:
            group, topic, queue_id, number, attempt_number = attempt
            queue = lanes.queues_of(group, topic).get(queue_id)
            lane = None if queue is None else queue.lanes.get(number)
            return lane is None or lane.attempt != attempt_number

        self.ended([each for each in self._clocks.ends if is_gone(each)])
        for each in [each for each in self._due_ms if is_gone(each)]:
            del self._due_ms[each]

    def tick(self, now: Now) -> list[Effect]:
        """Propose the end of the attempts whose leases are over."""
        if now.was_ahead(self._wall_ms):
            self._bound_pauses(now)
        self._wall_ms = now.wall_ms
        over: dict[str, list[LaneRef]] = {}
        records: list[LaneRecord] = []
        for attempt in self._clocks.over(now.monotonic_ms):
            group, topic, queue_id, lane, number = attempt
            minutes = self._timed_out.get(attempt)
            self._forget(attempt)
            if minutes is not None:
                records += self._failed(attempt, minutes, now)
            else:
                over.setdefault(group, []).append(LaneRef(topic, queue_id, lane, number))
        self._context.counters["lanes_timed_out"] += len(records)
        self._context.counters["lanes_expired"] += sum(map(len, over.values()))
        records += (
            LanesExpired(group, tuple(refs[start : start + EXPIRED_MAX]))
            for group, refs in over.items()
            for start in range(0, len(refs), EXPIRED_MAX)
        )

        return in_pieces(records)

    # -- parts -------------------------------------------------------------------------------------

    def _begin(self, attempt: Attempt, lease_ms: int, now: Now) -> None:
        self._clocks.run(attempt, now.monotonic_ms + lease_ms)
        self._since_ms[attempt] = now.monotonic_ms

    def _forget(self, attempt: Attempt) -> None:
        self._since_ms.pop(attempt, None)
        self._timed_out.pop(attempt, None)

    def _failed(self, attempt: Attempt, minutes: int, now: Now) -> Iterator[LanesReported]:
        """Yield what says of an attempt whose time is up that its message has failed; nothing when it is over."""
        group, topic, queue_id, number, attempt_number = attempt
        state = self._context.state
        config, queue = state.groups.get(group), state.lanes.queues_of(group, topic).get(queue_id)
        lane = None if queue is None else queue.attempt_of(number, attempt_number)
        if config is None or lane is None:
            return
        reason = _TIMED_OUT.format(client=lane.holder, minutes=minutes)
        report = LaneReport(queue_id, number, attempt_number, RETRY, reason=reason)
        yield LanesReported(group, topic, lane.holder, (failed(report, lane, config, now),))
