"""
The lanes of one queue of a group: the rules by which attempts begin and end.

The rules: every offset below *scanned* is complete or owed by exactly one lane, so completions need no list of their
own. A key has one lane while it owes messages. A lane has one attempt at a time, and reports about any other attempt
change nothing. Apply reads no disk: the record that removes runs from the index contains them. ``table.py`` has the
tables.
"""

from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, TypeAlias

from orderlymq_broker.state.groups.failurepolicy import (
    DeadPolicy,
    after_death,
    dead_policy,
    is_dead,
)
from orderlymq_broker.state.lanes.busyqueues import BusyQueues
from orderlymq_broker.state.lanes.lane import (
    RUN_MAX,
    Lane,
    LaneRow,
    LaneState,
    QueueRow,
)
from orderlymq_broker.state.lanes.lanerecords import (
    Answered,
    Granted,
    HandOut,
    LanesFetched,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import GroupSet
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store.layout import Table, numbered_key, table_key
from orderlymq_protocol.body import lanes as wire

# The outdated entries that a heap may have before it is rebuilt.
_HEAP_SLACK: Final = 64

_NEVER: Final = "this attempt was never handed out"
_COMPLETE: Final = Answered(wire.DONE)
_OVER: Final = "the attempt has ended; its messages are handed out again"
# The state of a lane whose first message has failed, by what follows; None: the message is not dead.
_STATES: Final = {
    None: LaneState.PARKED,
    DeadPolicy.STOP: LaneState.PARKED,
    DeadPolicy.HOLD: LaneState.HELD,
    DeadPolicy.CONTINUE: LaneState.DEAD_LETTERING,
}
_VERDICTS: Final = {
    LaneState.PARKED: wire.PARKED,
    LaneState.HELD: wire.HELD,
    LaneState.DEAD_LETTERING: wire.DEAD,
}


# Queues by group, topic and number; and those that have lanes in a state.
Queues: TypeAlias = "dict[tuple[str, str, int], LaneQueue]"
Having: TypeAlias = Mapping[LaneState, Queues]

# Shared by all queues without lanes, because a group may have begun a hundred thousand. These stay empty.
_NO_LANES: Final[dict[int, Lane]] = {}
_NO_STATES: Final[dict[LaneState, dict[int, None]]] = {state: {} for state in LaneState}
_NO_KEYS: Final[dict[str, int]] = {}
_NO_HEAP: Final[list[tuple[int, int]]] = []


class LaneQueue:
    """One queue of a group, its lanes, and how far it was scanned.

    Without lanes it takes about 300 bytes.

    Attributes:
        scanned: every offset below is complete or owed.
        serial: the last number given to a lane or attempt.
        owed: the number of messages that the lanes owe.
        by_state: the numbers of the lanes in each state, in the order in which they entered it.
        stopping: the number of lanes that stop the queue.

    It adds itself to *busy* while it has lanes, and to *having* while it has lanes in one of the states there. It
    counts its lanes in *counts*, which is its group's, and in *totals*, which is that of all groups.
    """

    __slots__ = (
        "_busy",
        "_by_key",
        "_counts",
        "_due",
        "_firsts",
        "_having",
        "_rows",
        "_totals",
        "by_state",
        "lanes",
        "owed",
        "place",
        "scanned",
        "serial",
        "stopping",
    )

    def __init__(
        self,
        place: tuple[str, str, int],
        scanned: int,
        serial: int,
        *,
        busy: BusyQueues,
        having: Having,
        counts: dict[LaneState, int],
        totals: dict[LaneState, int],
    ) -> None:
        self.place = place
        self._busy = busy
        self._having = having
        self._counts = counts
        self._totals = totals
        self.scanned = scanned
        self.serial = serial
        self.owed = 0
        self.stopping = 0
        self._rest()

    def _rest(self) -> None:
        """Drop everything that a queue without lanes does not need."""
        self._rows = b""
        self.lanes = _NO_LANES
        self.by_state = _NO_STATES
        self._by_key = _NO_KEYS
        self._firsts = self._due = _NO_HEAP
        self._busy.discard(self)

    def _rise(self) -> None:
        """Create the containers for lanes."""
        # Each message writes and removes a row of its lane, so the names in the key are encoded once.
        self._rows = table_key(Table.LANES, *self.place)
        self.lanes = {}
        self.by_state = {state: {} for state in LaneState}
        self._by_key = {}
        self._firsts = []
        # (due time, lane number) of parked lanes; entries of lanes that left the state or got another due time are skipped.
        self._due = []
        self._busy.add(self)

    # -- questions ---------------------------------------------------------------------------------

    def of_key(self, key: str) -> Lane | None:
        """Return the lane of a key, or None if it is idle."""
        number = self._by_key.get(key) if key else None

        return None if number is None else self.lanes[number]

    def in_state(self, state: LaneState) -> Iterator[Lane]:
        """Yield the lanes in a state, in the order in which they entered it."""
        return (self.lanes[number] for number in self.by_state[state])

    def due(self, wall_ms: int) -> list[Lane]:
        """Return the parked lanes that are due, without visiting the others, of which there may be 16,384."""
        while self._due and not self._is_parked(*self._due[0]):
            heappop(self._due)
        found: dict[int, Lane] = {}
        places = [0]
        while places:
            place = places.pop()
            # Children of a heap entry are not due earlier.
            if place < len(self._due) and self._due[place][0] <= wall_ms:
                places += (2 * place + 1, 2 * place + 2)
                number = self._due[place][1]
                if self._is_parked(*self._due[place]):
                    found[number] = self.lanes[number]

        return list(found.values())

    def low_water(self) -> int:
        """Return the first owed offset, or the scan position if nothing is owed."""
        while self._firsts:
            first, number = self._firsts[0]
            lane = self.lanes.get(number)
            if lane is not None and lane.first == first:
                return first
            heappop(self._firsts)

        return self.scanned

    def attempt_of(self, number: int, attempt: int) -> Lane | None:
        """Return the lane if this attempt still has it."""
        lane = self.lanes.get(number)
        is_current = (
            lane is not None and lane.state == LaneState.IN_HAND and lane.attempt == attempt
        )

        return lane if is_current else None

    # -- hand out ----------------------------------------------------------------------------------

    def fetch(
        self, record: LanesFetched, part: QueueFetch, wall_ms: int, writes: TableWrites
    ) -> list[Granted]:
        """Hand lanes out and add the messages that the scan has found; the caller has compared *start*."""
        taken: list[Lane] = []
        self.scanned = max(self.scanned, part.scanned)
        for hand_out in part.hand_outs:
            lane = self.lanes.get(hand_out.lane)
            if lane is None or hand_out.first not in (-1, lane.first):
                continue
            if lane.state in (LaneState.READY, LaneState.PARKED):
                taken += self._hand_out(lane, hand_out, record, wall_ms, writes)
        for found in part.found:
            lane = self.of_key(found.key)
            if lane is not None:
                self._append(lane, found.offsets, writes)
                self._store(lane, writes)
                continue
            lane = Lane(self._next(), found.key, since_ms=wall_ms)
            self._add(lane)
            self._append(lane, found.offsets, writes)
            if found.take:
                self._begin(lane, found.take, record, wall_ms)
                taken.append(lane)
            self._store(lane, writes)
        self.store_head(writes)

        return [_granted(self.place[2], lane) for lane in taken]

    def _hand_out(
        self, lane: Lane, hand_out: HandOut, record: LanesFetched, wall_ms: int, writes: TableWrites
    ) -> list[Lane]:
        if hand_out.load and not lane.head and lane.then == hand_out.load[0]:
            # It is not known which offsets begin a run. Deleting a key that does not exist costs a microsecond.
            rows = (*self.place, lane.number)
            writes.delete_numbered(Table.LANE_OFFSETS, *rows, numbers=hand_out.load)
            lane.head, lane.then = hand_out.load, hand_out.then
            lane.behind -= len(hand_out.load)
            if lane.then < 0:
                lane.last = -1
        if hand_out.gone:
            self._pop(lane, hand_out.gone)
        if hand_out.take and lane.head:
            self._begin(lane, hand_out.take, record, wall_ms)
            self._store(lane, writes)
            return [lane]
        # The message that had failed is gone.
        self._settle(lane, LaneState.READY, wall_ms, writes)

        return []

    def _begin(self, lane: Lane, take: int, record: LanesFetched, wall_ms: int) -> None:
        self._move(lane, LaneState.IN_HAND, wall_ms)
        lane.attempt = lane.number if lane.attempt == 0 else self._next()
        lane.taken = min(take, len(lane.head))
        lane.holder, lane.sequence, lane.lease_ms = (
            record.client_id,
            record.sequence,
            record.lease_ms,
        )

    # -- end ---------------------------------------------------------------------------------------

    def report(
        self, client_id: str, report: Report, wall_ms: int, writes: TableWrites
    ) -> tuple[Answered, bool]:
        """Apply a member's report about an attempt; return the answer, and whether the attempt has ended."""
        lane = self.attempt_of(report.lane, report.attempt)
        if lane is None or lane.holder != client_id:
            return self._judge_over(client_id, report), False
        if report.kind != ReportKind.RENEW and lane.ends_at(report.offset):
            # Hot path: nearly all lanes end here.
            self._remove(lane, writes)
            return _COMPLETE, True
        complete = sum(1 for offset in lane.head[: lane.taken] if offset <= report.offset)
        if complete:
            lane.taken -= complete
            self._pop(lane, complete)
        is_all = lane.taken == 0
        match report.kind:
            case ReportKind.RENEW:
                self._store(lane, writes)
                return Answered(wire.RENEWED, lane.tries), False
            case ReportKind.RETRY if not is_all:
                return self._fail(lane, report, wall_ms, writes), True
        self.end(lane, wall_ms, writes)
        verdict = wire.DONE if is_all else wire.RELEASED

        return Answered(verdict, lane.tries), True

    def end(self, lane: Lane, wall_ms: int, writes: TableWrites) -> None:
        """End the attempt of a lane; its messages are handed out again."""
        lane.taken = 0
        self._settle(lane, LaneState.READY, wall_ms, writes)

    def lose(
        self, lane: Lane, reason: str, config: GroupSet, wall_ms: int, writes: TableWrites
    ) -> None:
        """End the attempt of a lane whose member ended without a report; this counts as a try of its first message.

        The other messages of the attempt may not have been begun. The first time, the lane continues without a pause,
        because most members die for another reason. A message is not dead before it was in hand as a suspect.
        """
        if not lane.taken:
            self.end(lane, wall_ms, writes)
            return
        was_suspect = lane.is_suspect
        lane.taken = 0
        lane.tries += 1
        lane.lost += 1
        lane.reason = reason
        is_last = lane.stops or (was_suspect and is_dead(lane.tries, config.retry_max_times))
        if lane.lost == 1:
            self._settle(lane, LaneState.READY, wall_ms, writes)
            return
        policy = dead_policy(config.on_dead_letter) if is_last else None
        self._park(lane, wall_ms + config.pause_ms(lane.lost - 1), policy, wall_ms, writes)

    def _fail(self, lane: Lane, report: Report, wall_ms: int, writes: TableWrites) -> Answered:
        lane.tries += 1
        lane.lost = lane.taken = 0
        lane.reason = report.reason
        policy = report.policy if is_dead(lane.tries, report.tries_max) else None
        self._park(lane, report.due_ms, policy, wall_ms, writes)

        return _parked(lane)

    def _park(
        self,
        lane: Lane,
        due_ms: int,
        policy: DeadPolicy | None,
        wall_ms: int,
        writes: TableWrites,
    ) -> None:
        """Let a lane wait until it is due or, if its first message is dead, as *policy* says."""
        lane.due_ms = due_ms
        follows = None if policy is None else after_death(policy, lane.key)
        self.stopping += (follows == DeadPolicy.STOP) - lane.stops
        lane.stops = follows == DeadPolicy.STOP
        self._move(lane, _STATES[follows], wall_ms)
        self._note_due(lane)
        self._store(lane, writes)

    def _judge_over(self, client_id: str, report: Report) -> Answered:
        """Answer a report about an attempt that has ended or belongs to another member."""
        if max(report.lane, report.attempt) > self.serial:
            return Answered(wire.STALE, remark=_NEVER)
        lane = self.lanes.get(report.lane)
        is_last = (
            lane is not None
            and lane.attempt == report.attempt
            and lane.holder == client_id
            and lane.state != LaneState.IN_HAND
        )
        if report.kind == ReportKind.RETRY:
            if lane is not None and is_last and lane.state in _VERDICTS:
                return _parked(lane)
        elif report.kind != ReportKind.RENEW:
            if report.kind == ReportKind.RELEASE and lane is not None and is_last:
                if lane.state == LaneState.READY:
                    return Answered(wire.RELEASED, lane.tries)
            elif lane is None or not 0 <= lane.first <= report.offset:
                return Answered(wire.DONE)

        return Answered(wire.STALE, remark=_OVER)

    def free(self, lane: Lane, *, skip: bool, wall_ms: int, writes: TableWrites) -> None:
        """Hand a parked or held lane out again, or let its first message become a dead letter."""
        lane.due_ms = 0
        self.stopping -= lane.stops
        lane.stops = False
        if not skip:
            lane.tries = lane.lost = 0
        self._move(lane, LaneState.DEAD_LETTERING if skip else LaneState.READY, wall_ms)
        self._store(lane, writes)

    def dead_lettered(self, number: int, offset: int, wall_ms: int, writes: TableWrites) -> bool:
        """Continue a lane after its first message became a dead letter; return False if the lane or message is another."""
        lane = self.lanes.get(number)
        if lane is None or lane.state != LaneState.DEAD_LETTERING or lane.first != offset:
            return False
        self._pop(lane, 1)
        self._settle(lane, LaneState.READY, wall_ms, writes)

        return True

    def reset(self, offset: int, writes: TableWrites) -> None:
        """Begin again at *offset*: nothing is owed, but lanes in hand stay until their attempts end."""
        writes.delete_range(Table.LANE_OFFSETS, *self.place)
        for lane in list(self.lanes.values()):
            if lane.state != LaneState.IN_HAND:
                self._remove(lane, writes)
                continue
            self._pop(lane, len(lane.head))
            self.owed -= lane.behind
            lane.taken = 0
            lane.then = lane.last = -1
            lane.behind = 0
            self._store(lane, writes)
        self._firsts.clear()
        self.scanned = offset
        self.store_head(writes)

    # -- rows --------------------------------------------------------------------------------------

    def store_head(self, writes: TableWrites) -> None:
        """Write the row of the queue itself."""
        writes.put(
            Table.LANE_QUEUES, *self.place, value=QueueRow(*self.place, self.scanned, self.serial)
        )

    def load(self, lane: Lane) -> None:
        """Add a lane that was read from the store."""
        self._add(lane)
        self.owed += lane.owed
        self.stopping += lane.stops
        self._note_first(lane)
        self._note_due(lane)

    def check(self) -> None:
        """Assert the invariants."""
        seen: set[int] = set()
        for number, lane in self.lanes.items():
            assert lane.number == number <= self.serial, lane
            assert lane.attempt <= self.serial, lane
            lane.check(self.scanned)
            assert not seen & set(lane.head), f"an offset has two lanes: {lane}"
            seen |= set(lane.head)
            assert number in self.by_state[lane.state], lane
            assert not lane.key or self._by_key.get(lane.key) == number, lane
        assert sum(map(len, self.by_state.values())) == len(self.lanes)
        assert len(self._by_key) == sum(1 for lane in self.lanes.values() if lane.key)
        assert self.owed == sum(lane.owed for lane in self.lanes.values())
        assert self.stopping == sum(lane.stops for lane in self.lanes.values())
        firsts = [lane.first for lane in self.lanes.values() if lane.owed]
        assert self.low_water() == min(firsts, default=self.scanned)
        assert len(self._firsts) <= 2 * len(self.lanes) + _HEAP_SLACK
        parked = {(lane.due_ms, lane.number) for lane in self.in_state(LaneState.PARKED)}
        assert parked <= set(self._due), "a parked lane would never be due"
        is_busy = self._busy.by_place.get(self.place) is self
        assert is_busy == bool(self.lanes) == (self.lanes is not _NO_LANES), self.place
        shared = (_NO_LANES, *_NO_STATES.values(), _NO_KEYS, _NO_HEAP)
        assert not any(shared), "an empty collection that all queues share is not empty"

    # -- parts -------------------------------------------------------------------------------------

    def _next(self) -> int:
        self.serial += 1

        return self.serial

    def _append(self, lane: Lane, offsets: Sequence[int], writes: TableWrites) -> None:
        """Add offsets to a lane: in memory while there is room and the index is empty, otherwise in the index."""
        was_idle = not lane.owed
        self.owed += len(offsets)
        if lane.then < 0:
            room = RUN_MAX - len(lane.head)
            lane.head += tuple(offsets[:room])
            offsets = offsets[room:]
        for start in range(0, len(offsets), RUN_MAX):
            run = tuple(offsets[start : start + RUN_MAX])
            writes.put(Table.LANE_OFFSETS, *self.place, lane.number, run[0], value=run)
            if lane.then < 0:
                lane.then = run[0]
            lane.last = run[-1]
            lane.behind += len(run)
        if was_idle:
            self._note_first(lane)

    def _pop(self, lane: Lane, count: int) -> None:
        """Remove the first *count* messages of a lane's head, which are complete."""
        count = min(count, len(lane.head))
        lane.head = lane.head[count:]
        lane.tries = lane.lost = 0
        lane.reason = ""
        self.stopping -= lane.stops
        lane.stops = False
        self.owed -= count
        self._note_first(lane)

    def _note_first(self, lane: Lane) -> None:
        if lane.owed:
            heappush(self._firsts, (lane.first, lane.number))
        self._trim()

    def _is_parked(self, due_ms: int, number: int) -> bool:
        lane = self.lanes.get(number)

        return lane is not None and lane.state == LaneState.PARKED and lane.due_ms == due_ms

    def _note_due(self, lane: Lane) -> None:
        if lane.state == LaneState.PARKED:
            heappush(self._due, (lane.due_ms, lane.number))
        if len(self._due) > 2 * len(self.by_state[LaneState.PARKED]) + _HEAP_SLACK:
            self._due = [(each.due_ms, each.number) for each in self.in_state(LaneState.PARKED)]
            heapify(self._due)

    def _trim(self) -> None:
        """Rebuild the heap of first offsets once most of its entries are outdated."""
        if len(self._firsts) > 2 * len(self.lanes) + _HEAP_SLACK:
            self._firsts = [(each.first, each.number) for each in self.lanes.values() if each.owed]
            heapify(self._firsts)

    def _add(self, lane: Lane) -> None:
        if not self.lanes:
            self._rise()
        self.lanes[lane.number] = lane
        self._enter(lane.state, lane.number)
        if lane.key:
            self._by_key[lane.key] = lane.number

    def _enter(self, state: LaneState, number: int) -> None:
        self.by_state[state][number] = None
        self._counts[state] += 1
        self._totals[state] += 1
        if state in self._having:
            self._having[state][self.place] = self

    def _leave(self, state: LaneState, number: int) -> None:
        del self.by_state[state][number]
        self._counts[state] -= 1
        self._totals[state] -= 1
        if state in self._having and not self.by_state[state]:
            del self._having[state][self.place]

    def _move(self, lane: Lane, state: LaneState, wall_ms: int) -> None:
        if state != lane.state:
            self._leave(lane.state, lane.number)
            self._enter(state, lane.number)
            lane.since_ms = wall_ms
        lane.state = state

    def _settle(self, lane: Lane, state: LaneState, wall_ms: int, writes: TableWrites) -> None:
        """Put a lane into a state, or remove it if it owes nothing."""
        if lane.owed:
            self._move(lane, state, wall_ms)
            self._store(lane, writes)
        else:
            self._remove(lane, writes)

    def _store(self, lane: Lane, writes: TableWrites) -> None:
        writes.put_at(numbered_key(self._rows, lane.number), LaneRow(*self.place, lane))

    def _remove(self, lane: Lane, writes: TableWrites) -> None:
        self.owed -= lane.owed
        self.stopping -= lane.stops
        del self.lanes[lane.number]
        self._leave(lane.state, lane.number)
        if lane.key:
            del self._by_key[lane.key]
        writes.delete_at(numbered_key(self._rows, lane.number))
        if self.lanes:
            self._trim()
        else:
            self._rest()


def _granted(queue_id: int, lane: Lane) -> Granted:
    return Granted(
        queue_id,
        lane.number,
        lane.attempt,
        lane.key,
        lane.head[: lane.taken],
        lane.tries,
        lane.owed - lane.taken,
        lane.since_ms,
    )


def _parked(lane: Lane) -> Answered:
    due_ms = lane.due_ms if lane.state == LaneState.PARKED else 0

    return Answered(_VERDICTS[lane.state], lane.tries, due_ms)
