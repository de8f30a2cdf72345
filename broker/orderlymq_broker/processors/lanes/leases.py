"""
The leader's lease clock of attempts.

The rules: a lease runs from the moment at which this leader applied the hand-out, or at which the member asked for a
renewal. A new leader runs every lease in full from the start of its term: longer than needed, never shorter. The end
of a lease is a record; applying it ignores an attempt that ended meanwhile. A renewal needs no record: its answer
leaves only from a leader that a majority has confirmed since (``replication/leaderlease.py``).
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final

from orderlymq_broker.core.deadlines import DeadlineQueue
from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.entrybuilder import in_pieces, parts
from orderlymq_broker.core.longwalks import walk
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import LaneRef, LanesExpired, LanesGranted
from orderlymq_broker.state.lanes.queue import LaneQueue

# Attempts that one tick ends: about 15 ms.
ENDED_MAX: Final = 4_096

# Group, topic, queue, lane, attempt.
Attempt = tuple[str, str, int, int, int]
_Place = tuple[str, str, int]


class LaneLeases:
    """Knows when each attempt ends and when a parked lane is due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._deadlines: DeadlineQueue[Attempt] = DeadlineQueue()
        # For lanes that were parked by a clock far ahead: by queue and lane number, the last attempt and when the
        # lane is due.
        self._due_ms: dict[_Place, dict[int, tuple[int, int]]] = {}
        self._wall_ms = 0
        # Whether a walk over all known attempts is in progress, and whether lanes were deleted since it began.
        self._walks = False
        self._has_gone = False
        # Whether a new leader has not started all leases yet.
        self._starts = False

    def start(self, now: Now) -> list[Effect]:
        """Run every lease in full, and limit pauses that a former leader's clock would lengthen, some in later turns."""
        self.stop()
        self._wall_ms = now.wall_ms
        self._starts = True

        return walk(self._context, self._starting(), self._begin, now)

    def _starting(self) -> Iterator[Attempt | None]:
        yield from self._in_state(LaneState.IN_HAND, LaneState.PARKED)
        self._starts = False

    def _in_state(self, *states: LaneState) -> Iterator[Attempt | None]:
        """Yield the last attempts of all lanes in some states, and a None for each queue."""
        for queue in self._context.state.lanes.all():
            yield None
            for state in states:
                for lane in list(queue.in_state(state)):
                    yield (*queue.place, lane.number, lane.attempt)

    def _begin(self, attempts: Sequence[Attempt | None], now: Now) -> list[Effect]:
        for attempt in filter(None, attempts):
            lane = self._lane(attempt)
            if lane is None or lane.state != LaneState.IN_HAND:
                continue
            # An attempt that was handed out or renewed meanwhile has a running lease already.
            if attempt not in self._deadlines.ends:
                self._deadlines.set(attempt, now.monotonic_ms + lane.lease_ms)

        return self._bound(attempts, now)

    def _bound_pauses(self, now: Now) -> list[Effect]:
        """Restart from now the pauses that a clock ahead of this one began, and remove those that are over."""
        places = chain(list(self._bounded()), self._in_state(LaneState.PARKED))

        return walk(self._context, places, self._bound, now)

    def _bound(self, attempts: Sequence[Attempt | None], now: Now) -> list[Effect]:
        for attempt in filter(None, attempts):
            lane = self._lane(attempt)
            if lane is None or lane.state != LaneState.PARKED:
                self._unbound(attempt)
            elif now.was_ahead(lane.since_ms):
                due_ms = now.wall_ms + lane.due_ms - lane.since_ms
                self._due_ms.setdefault(attempt[:3], {})[lane.number] = (lane.attempt, due_ms)

        return []

    def _bounded(self) -> Iterator[Attempt]:
        """Yield the last attempts of the lanes whose pauses are limited."""
        for place, bounded in self._due_ms.items():
            yield from ((*place, number, attempt) for number, (attempt, _) in bounded.items())

    def _unbound(self, attempt: Attempt) -> None:
        """Remove the limited pause of a lane after this attempt."""
        *_, number, attempt_number = attempt
        bounded = self._due_ms.get(attempt[:3], {})
        if bounded.get(number, (0, 0))[0] == attempt_number:
            del bounded[number]
            if not bounded:
                del self._due_ms[attempt[:3]]

    def _lane(self, attempt: Attempt) -> Lane | None:
        """Return the lane whose last attempt this is, or None."""
        group, topic, queue_id, number, attempt_number = attempt
        queue = self._context.state.lanes.queues_of(group, topic).get(queue_id)
        lane = None if queue is None else queue.lanes.get(number)

        return lane if lane is not None and lane.attempt == attempt_number else None

    def stop(self) -> None:
        """Clear all leases."""
        self._deadlines.clear()
        self._due_ms.clear()
        self._walks = self._has_gone = self._starts = False

    def due(self, queue: LaneQueue, wall_ms: int) -> list[Lane]:
        """Return the parked lanes of a queue that are due now."""
        found = queue.due(wall_ms)
        if queue.place not in self._due_ms:
            return found
        numbers = {lane.number for lane in found}
        for number, (attempt, due_ms) in list(self._due_ms[queue.place].items()):
            lane = queue.lanes.get(number)
            if lane is None or lane.state != LaneState.PARKED or lane.attempt != attempt:
                self._unbound((*queue.place, number, attempt))
            elif due_ms <= wall_ms and number not in numbers:
                found.append(lane)

        return found

    def granted(self, outcome: LanesGranted, now: Now) -> None:
        """Start the leases of the lanes that were handed out."""
        end_ms = now.monotonic_ms + outcome.lease_ms
        for each in outcome.granted:
            place = (outcome.group, outcome.topic, each.queue_id)
            self._deadlines.set((*place, each.lane, each.attempt), end_ms)

    def renew(self, attempt: Attempt, lease_ms: int, now: Now) -> bool:
        """Restart the lease of an attempt in hand; return False if its end is already proposed."""
        if attempt not in self._deadlines.ends and not self._starts:
            return False
        self._deadlines.set(attempt, now.monotonic_ms + lease_ms)

        return True

    def ended(self, attempts: Iterable[Attempt]) -> None:
        """Stop the leases of attempts that have ended."""
        for attempt in attempts:
            self._deadlines.cancel(attempt)

    def forget_gone(self, now: Now) -> list[Effect]:
        """Remove the attempts and pauses of lanes deleted with their topic or group; if many, some in later turns."""
        walks, self._has_gone = self._walks, True
        if walks:
            return []
        self._walks = True

        return walk(self._context, self._known(), self._judge, now)

    def _known(self) -> Iterator[Attempt]:
        """Yield all attempts and pauses; start over if more lanes are deleted meanwhile."""
        while self._has_gone:
            self._has_gone = False
            yield from (*self._deadlines.ends, *self._bounded())
        self._walks = False

    def _judge(self, attempts: Iterable[Attempt], _: Now) -> list[Effect]:
        for attempt in attempts:
            if self._lane(attempt) is None:
                self._deadlines.cancel(attempt)
                self._unbound(attempt)

        return []

    def tick(self, now: Now) -> list[Effect]:
        """Propose the end of the attempts whose leases have expired; if there are many, some in the next ticks."""
        effects = self._bound_pauses(now) if now.was_ahead(self._wall_ms) else []
        self._wall_ms = now.wall_ms
        if self._starts:
            # No lease expires before all of them run, so that no renewal comes too late for a lease that does not run yet.
            return effects
        over: dict[str, list[LaneRef]] = {}
        for attempt in islice(self._deadlines.pop_expired(now.monotonic_ms), ENDED_MAX):
            group, topic, queue_id, lane, number = attempt
            over.setdefault(group, []).append(LaneRef(topic, queue_id, lane, number))
        if not over:
            return effects
        self._context.counters["lanes_expired"] += sum(map(len, over.values()))

        return [
            *effects,
            *in_pieces(
                LanesExpired(group, part) for group, refs in over.items() for part in parts(refs)
            ),
        ]
