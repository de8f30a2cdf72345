"""
The lanes of all groups by group, topic and queue, and the members that have lanes in hand.

The rules: a queue's row stays until its topic or group is deleted. Then a single number remains for all such queues,
the floor of all their numbers, so that an old attempt is never mistaken for a new one. The committed offset of a
queue is the first that its lanes owe. ``queue.py`` explains attempts; ``processors/lanes/`` serves the requests.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from sys import intern
from typing import Any, Final

import msgspec

from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.groups.locks import LockTable
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.lanes.busyqueues import BusyQueues
from orderlymq_broker.state.lanes.lane import Lane, LaneRow, LaneState, QueueRow
from orderlymq_broker.state.lanes.lanerecords import (
    Answered,
    Granted,
    LaneDeadLettered,
    LaneFreed,
    LanesExpired,
    LanesFetched,
    LanesGranted,
    LanesMoved,
    LanesReported,
    LanesReturned,
    QueueFetch,
)
from orderlymq_broker.state.lanes.queue import Having, LaneQueue
from orderlymq_broker.state.records import Commit, GroupSet, OffsetsReset, Record, Refused
from orderlymq_broker.state.tables import TableWrites, read_as, read_counter
from orderlymq_broker.state.topics.topics import GroupTable, Topic
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table
from orderlymq_protocol.body import lanes as wire
from orderlymq_protocol.plurals import counted

# The counters row that holds the floor of all numbers.
_FLOOR: Final = "lanes"

# The outcome of a fetch whose record came too late; the leader plans again.
MOVED: Final = "moved"
# The reasons why a group cannot change its mode.
LOCKED: Final = (
    "group[{group}] cannot change to concurrency Key while its members hold queue locks ({count}): "
    "stop its consumers first"
)
IN_HAND: Final = (
    "group[{group}] cannot change to concurrency Queue while it has {lanes} in hand: "
    "stop its consumers first"
)
OWED: Final = (
    "group[{group}] cannot change laneKeyProperty while it has {messages} left in lanes: let its "
    "consumers finish first"
)

_Place = tuple[str, str, int]
_NO_TOPICS: Mapping[str, dict[int, LaneQueue]] = {}
_NO_QUEUES: Mapping[int, LaneQueue] = {}
_NO_COUNTS: Mapping[LaneState, int] = {}


class LaneTable:
    """Lanes by group, topic and queue.

    Memory is limited by the lanes that are not idle and the queues that groups have begun; the leader hands out no
    lane and begins no queue beyond its limits.

    Attributes:
        busy: the queues that have lanes.
        having: the queues that have parked lanes, and those with lanes that wait for their dead letter.
    """

    def __init__(self, reader: Reader) -> None:
        self._groups: dict[str, dict[str, dict[int, LaneQueue]]] = {}
        # The same by topic and group, for work on one topic of tens of thousands of groups.
        self._topics: dict[str, dict[str, dict[int, LaneQueue]]] = {}
        # The lanes in hand: by client, group and topic, as (queue, lane).
        self._holders: dict[str, dict[str, dict[str, dict[tuple[int, int], None]]]] = {}
        # The number of lanes of each group in each state, because a group may have scanned a hundred thousand queues.
        self._counts: dict[str, dict[LaneState, int]] = {}
        self._totals = dict.fromkeys(LaneState, 0)
        self._floor = read_counter(reader, _FLOOR, int, 0)
        self.busy = BusyQueues()
        self.having: Having = {LaneState.PARKED: {}, LaneState.DEAD_LETTERING: {}}
        for row in read_as(reader, Table.LANE_QUEUES, QueueRow):
            place = (row.group, row.topic, row.queue_id)
            self._make(place, row.scanned, row.serial)
        rows = read_as(reader, Table.LANES, LaneRow)
        for found in sorted(rows, key=lambda row: row.lane.since_ms):
            self._groups[found.group][found.topic][found.queue_id].load(found.lane)
            if found.lane.state == LaneState.IN_HAND:
                place = (found.group, found.topic, found.queue_id)
                self._note(found.lane.holder, place, found.lane.number)

    # -- questions ---------------------------------------------------------------------------------

    def queues_of(self, group: str, topic: str) -> Mapping[int, LaneQueue]:
        """Return the queues of a topic that the group has scanned."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES)

    def topics_of(self, group: str) -> list[str]:
        """Return the topics of which the group has scanned queues."""
        return sorted(self._groups.get(group, _NO_TOPICS))

    def of_group(self, group: str) -> Iterator[LaneQueue]:
        """Yield the queues that a group has scanned."""
        for queues in self._groups.get(group, _NO_TOPICS).values():
            yield from queues.values()

    def all(self) -> Iterator[LaneQueue]:
        """Yield the queues of all groups; queues may be added or deleted meanwhile."""
        for group in list(self._groups):
            yield from list(self.of_group(group))

    def first_owed(self, topic: str, queue_id: int) -> int | None:
        """Return the first offset of a queue that a lane of any group owes, or None."""
        owed = [
            queue.low_water()
            for queues in self._topics.get(topic, _NO_TOPICS).values()
            if (queue := queues.get(queue_id)) is not None and queue.owed
        ]

        return min(owed, default=None)

    def count_of(self, group: str) -> int:
        """Return the number of a group's lanes that are not idle."""
        return sum(self._counts.get(group, _NO_COUNTS).values())

    @property
    def total(self) -> int:
        """The number of lanes of all groups that are not idle."""
        return sum(self._totals.values())

    @property
    def busy_group_count(self) -> int:
        """The number of groups that have lanes that are not idle."""
        return len(self.busy.by_group)

    def counts(self) -> dict[tuple[str, LaneState], int]:
        """Return the number of lanes of each group in each state, without zeros."""
        return {
            (group, state): count
            for group, counts in self._counts.items()
            for state, count in counts.items()
            if count
        }

    def in_hand_of(self, client_id: str, group: str, topic: str) -> list[tuple[LaneQueue, Lane]]:
        """Return the lanes of a topic that a member has in hand, by queue and number."""
        held = self._holders.get(client_id, {}).get(group, {}).get(topic, {})
        queues = self.queues_of(group, topic)

        return [(queues[queue_id], queues[queue_id].lanes[lane]) for queue_id, lane in sorted(held)]

    def in_hand_count(self, client_id: str, group: str, topic: str) -> int:
        """Return how many lanes a member has in hand of a topic."""
        return len(self._holders.get(client_id, {}).get(group, {}).get(topic, {}))

    def count_in(self, state: LaneState, group: str) -> int:
        """Return how many lanes of a group are in a state."""
        return self._counts.get(group, _NO_COUNTS).get(state, 0)

    def holds(self, group: str, client_id: str) -> bool:
        """Return whether a client has any lane of a group in hand."""
        return group in self._holders.get(client_id, {})

    def holds_any(self, client_id: str) -> bool:
        """Return whether a client has any lane of any group in hand."""
        return client_id in self._holders

    def moved_by(self, record: Record) -> int:
        """Return how many lanes a record moves without naming them: up to 16,384 of a group, at about 3 us each."""
        match record:
            case LanesReturned():
                topics = self._holders.get(record.client_id, {}).get(record.group, {})
                return sum(map(len, topics.values()))
            case ClientDead(most=0):
                groups = self._holders.get(record.client_id, {})
                return sum(len(lanes) for topics in groups.values() for lanes in topics.values())
            case LaneFreed(key=""):
                queues = self.queues_of(record.group, record.topic).values()
                return sum(len(queue.lanes) for queue in queues)
            case OffsetsReset():
                places = [
                    self.queues_of(each.group, each.topic).get(each.queue_id)
                    for each in record.commits
                ]
                return sum(len(queue.lanes) for queue in places if queue is not None)
            case _:
                return 0

    def refuse_change(self, present: GroupSet | None, wanted: GroupSet, locks: LockTable) -> str:
        """Return why a group cannot change its mode now; empty if it can."""
        if present is None:
            return ""
        group = wanted.name
        if present.concurrency != wanted.concurrency:
            if wanted.concurrency == wire.BY_KEY:
                count = sum(1 for _ in locks.held(group))
                return LOCKED.format(group=group, count=count) if count else ""
            count = self.count_in(LaneState.IN_HAND, group)
            return IN_HAND.format(group=group, lanes=counted(count, "lane")) if count else ""
        if present.lane_key_property != wanted.lane_key_property:
            count = sum(queue.owed + len(queue.lanes) for queue in self.of_group(group))
            return OWED.format(group=group, messages=counted(count, "message")) if count else ""

        return ""

    # -- records -----------------------------------------------------------------------------------

    def fetch(
        self,
        record: LanesFetched,
        topic: Topic | None,
        offsets: OffsetTable,
        wall_ms: int,
        writes: TableWrites,
    ) -> LanesGranted | Refused:
        """Hand lanes out if the queues have the positions that the leader saw; *topic* is None if it is gone."""
        if topic is None or not all(
            self._stands(record, part, topic, offsets) for part in record.queues
        ):
            return Refused(MOVED)
        granted: list[Granted] = []
        for part in record.queues:
            place = (record.group, record.topic, part.queue_id)
            queue = self.queues_of(record.group, record.topic).get(part.queue_id)
            if queue is None:
                queue = self._make(place, part.start, self._floor)
            found = queue.fetch(record, part, wall_ms, writes)
            for each in found:
                self._note(record.client_id, place, each.lane)
            granted += found
            _commit(queue, offsets, writes)

        return LanesGranted(
            record.group, record.topic, record.client_id, record.lease_ms, tuple(granted)
        )

    def report(
        self, record: LanesReported, offsets: OffsetTable, wall_ms: int, writes: TableWrites
    ) -> LanesMoved:
        """Apply the reports of a member about its attempts."""
        queues = self.queues_of(record.group, record.topic)
        answers: list[Answered] = []
        ended = []
        touched: dict[int, None] = {}
        goes_on = False
        for each in record.reports:
            queue = queues.get(each.queue_id)
            if queue is None:
                answers.append(Answered(wire.STALE, remark="the queue has no lanes"))
                continue
            stopped = queue.stopping
            answer, is_over = queue.report(record.client_id, each, wall_ms, writes)
            goes_on = goes_on or (stopped > 0 and not queue.stopping)
            answers.append(answer)
            touched[each.queue_id] = None
            if is_over:
                self._forget(record.client_id, queue.place, each.lane)
                ended.append((*queue.place, each.lane, each.attempt))
        for queue_id in touched:
            _commit(queues[queue_id], offsets, writes)

        topics = ((record.group, record.topic),) if ended or goes_on else ()
        return LanesMoved(topics, tuple(ended), tuple(answers))

    def expire(
        self, record: LanesExpired, config: GroupSet, wall_ms: int, writes: TableWrites
    ) -> LanesMoved:
        """End the attempts whose leases have expired."""
        over = [
            (queue, lane)
            for ref in record.lanes
            if (queue := self.queues_of(record.group, ref.topic).get(ref.queue_id)) is not None
            and (lane := queue.attempt_of(ref.lane, ref.attempt)) is not None
        ]

        def end(queue: LaneQueue, lane: Lane) -> None:
            reason = f"the lease of {lane.holder} was over while it had it in hand"
            queue.lose(lane, reason[: wire.REASON_LENGTH_MAX], config, wall_ms, writes)

        return self._end(over, end)

    def give_back(self, record: LanesReturned, wall_ms: int, writes: TableWrites) -> LanesMoved:
        """End all attempts of a member that leaves its group."""
        topics = sorted(self._holders.get(record.client_id, {}).get(record.group, {}))
        mine = [
            each
            for topic in topics
            for each in self.in_hand_of(record.client_id, record.group, topic)
        ]

        return self._end(mine, lambda queue, lane: queue.end(lane, wall_ms, writes))

    def free_client(
        self, record: ClientDead, groups: GroupTable, wall_ms: int, writes: TableWrites
    ) -> LanesMoved:
        """End all attempts of a dead client, in every group."""
        client_id = record.client_id
        mine = [
            each
            for group, topics in sorted(self._holders.get(client_id, {}).items())
            for topic in sorted(topics)
            for each in self.in_hand_of(client_id, group, topic)
        ]

        def end(queue: LaneQueue, lane: Lane) -> None:
            reason = f"{client_id} died with it in hand: {record.proof}"[: wire.REASON_LENGTH_MAX]
            config = groups.get(queue.place[0])
            assert config is not None, "lanes go with their group"
            queue.lose(lane, reason, config, wall_ms, writes)

        return self._end(mine, end)

    def free(self, record: LaneFreed, wall_ms: int, writes: TableWrites) -> LanesMoved:
        """Free the parked and held lanes of a key, and any that stops its queue."""
        freed = []
        for queue_id, queue in sorted(self.queues_of(record.group, record.topic).items()):
            if record.queue_id not in (-1, queue_id):
                continue
            for lane in (
                list(queue.lanes.values()) if record.key == "" else [queue.of_key(record.key)]
            ):
                if lane is None or record.first not in (-1, lane.first):
                    continue
                if lane.key == record.key and _may_be_freed(lane):
                    freed.append((queue_id, msgspec.structs.replace(lane)))
                    queue.free(lane, skip=record.skip, wall_ms=wall_ms, writes=writes)

        return LanesMoved(((record.group, record.topic),) if freed else (), freed=tuple(freed))

    def dead_lettered(
        self, record: LaneDeadLettered, offsets: OffsetTable, wall_ms: int, writes: TableWrites
    ) -> LanesMoved:
        """Let a lane continue after its dead letter."""
        queue = self.queues_of(record.group, record.topic).get(record.queue_id)
        if queue is None or not queue.dead_lettered(record.lane, record.offset, wall_ms, writes):
            return LanesMoved(())
        _commit(queue, offsets, writes)

        return LanesMoved(((record.group, record.topic),))

    def reset(self, commits: Iterable[Commit], writes: TableWrites) -> None:
        """Begin again where an administrator sets offsets."""
        for commit in commits:
            queue = self.queues_of(commit.group, commit.topic).get(commit.queue_id)
            if queue is not None:
                queue.reset(commit.offset, writes)

    def drop(
        self, writes: TableWrites, *, group: str | None = None, topic: str | None = None
    ) -> None:
        """Remove the lanes of a deleted group or topic; new numbers begin above theirs."""
        for name in list(self._groups) if group is None else [group]:
            topics = self._groups.get(name, {})
            gone = [each for each in topics if topic in (None, each)]
            for each in gone:
                self._drop(name, each)
            if gone:
                place = (name,) if topic is None else (name, topic)
                for table in (Table.LANES, Table.LANE_QUEUES, Table.LANE_OFFSETS):
                    writes.delete_range(table, *place)
                writes.put(Table.COUNTERS, _FLOOR, value=self._floor)
            if name in self._groups and not self._groups[name]:
                del self._groups[name], self._counts[name]

    def fence(self, step: int, wall_ms: int, writes: TableWrites) -> None:
        """End all attempts and begin *step* above all numbers, so that no earlier report counts."""
        mine = [
            (queue, lane)
            for queue in self.all()
            for lane in list(queue.in_state(LaneState.IN_HAND))
        ]
        self._end(mine, lambda queue, lane: queue.end(lane, wall_ms, writes))
        for queue in self.all():
            queue.serial += step
            queue.store_head(writes)
        self._floor += step
        writes.put(Table.COUNTERS, _FLOOR, value=self._floor)

    # -- for the digest and tests ------------------------------------------------------------------

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield lanes for the digest; nothing if there never were any."""
        if self._floor:
            yield (self._floor,)
        for group in sorted(self._groups):
            for topic in sorted(self._groups[group]):
                queues = self._groups[group][topic]
                for queue_id in sorted(queues):
                    queue = queues[queue_id]
                    yield (group, topic, queue_id, queue.scanned, queue.serial)
                    for number in sorted(queue.lanes):
                        yield (queue.lanes[number],)

    def check(self) -> None:
        """Assert the invariants."""
        held = set()
        for queue in self.all():
            queue.check()
            for lane in queue.in_state(LaneState.IN_HAND):
                held.add((lane.holder, *queue.place, lane.number))
        noted = {
            (client_id, group, topic, *each)
            for client_id, groups in self._holders.items()
            for group, topics in groups.items()
            for topic, lanes in topics.items()
            for each in lanes
        }
        for state, having in self.having.items():
            found = {queue.place: queue for queue in self.all() if queue.by_state[state]}
            assert having == found, (
                f"the index of queues with lanes {state.name} differs from the queues"
            )
        busy = {queue.place: queue for queue in self.all() if queue.lanes}
        assert self.busy.by_place == busy, "the index of queues with lanes differs from the queues"
        assert self.busy.by_group == Counter(group for group, *_ in busy)
        assert self._counts.keys() == self._groups.keys(), "lanes of another group are counted"
        for state, total in self._totals.items():
            lanes = sum(counts[state] for counts in self._counts.values())
            assert total == lanes, f"{total} lanes of all groups are counted {state.name}"
        for group, counts in self._counts.items():
            for state, count in counts.items():
                lanes = sum(len(queue.by_state[state]) for queue in self.of_group(group))
                assert count == lanes, f"{count} lanes of {group} are counted {state.name}"
        by_topic: dict[str, dict[str, dict[int, LaneQueue]]] = {}
        for group, topics in self._groups.items():
            for topic, queues in topics.items():
                by_topic.setdefault(topic, {})[group] = queues
        assert self._topics == by_topic, "the index of queues by topic differs from the queues"
        assert noted == held, "the index of lanes in hand differs from the lanes"

    # -- parts -------------------------------------------------------------------------------------

    def _stands(
        self, record: LanesFetched, part: QueueFetch, topic: Topic, offsets: OffsetTable
    ) -> bool:
        """Return whether a queue has the position that the leader saw."""
        queue = self.queues_of(record.group, record.topic).get(part.queue_id)
        stored = topic.queues.get(part.queue_id)
        low, high = (stored.min_offset, stored.next_offset) if stored is not None else (0, 0)
        if part.queue_id >= topic.queue_count or part.scanned > high:
            return False
        # Lanes must not owe messages that retention has removed since the leader read them.
        if any(found.offsets[0] < low for found in part.found):
            return False
        if queue is not None:
            return queue.scanned == part.start

        committed = offsets.get(record.group, record.topic, part.queue_id)
        return part.begins and committed in (None, part.start)

    def _end(
        self, over: list[tuple[LaneQueue, Lane]], end: Callable[[LaneQueue, Lane], None]
    ) -> LanesMoved:
        topics: dict[tuple[str, str], None] = {}
        ended = []
        for queue, lane in over:
            self._forget(lane.holder, queue.place, lane.number)
            ended.append((*queue.place, lane.number, lane.attempt))
            topics[queue.place[0], queue.place[1]] = None
            end(queue, lane)

        return LanesMoved(tuple(topics), tuple(ended))

    def _make(self, place: _Place, scanned: int, serial: int) -> LaneQueue:
        group, topic, queue_id = place
        counts = self._counts.setdefault(group, dict.fromkeys(LaneState, 0))
        place = (intern(group), intern(topic), queue_id)
        queue = LaneQueue(
            place,
            scanned,
            serial,
            busy=self.busy,
            having=self.having,
            counts=counts,
            totals=self._totals,
        )
        queues = self._groups.setdefault(group, {}).setdefault(topic, {})
        queues[queue_id] = queue
        self._topics.setdefault(topic, {})[group] = queues

        return queue

    def _drop(self, group: str, topic: str) -> None:
        queues = self._groups[group].pop(topic)
        del self._topics[topic][group]
        if not self._topics[topic]:
            del self._topics[topic]
        counts = self._counts[group]
        for queue in queues.values():
            self._floor = max(self._floor, queue.serial)
            if not queue.lanes:
                continue
            for state, lanes in queue.by_state.items():
                counts[state] -= len(lanes)
                self._totals[state] -= len(lanes)
            for lane in queue.in_state(LaneState.IN_HAND):
                self._forget(lane.holder, queue.place, lane.number)
            self.busy.discard(queue)
            for queues_having in self.having.values():
                queues_having.pop(queue.place, None)

    def _note(self, client_id: str, place: _Place, lane: int) -> None:
        group, topic, queue_id = place
        topics = self._holders.setdefault(client_id, {}).setdefault(group, {})
        topics.setdefault(topic, {})[queue_id, lane] = None

    def _forget(self, client_id: str, place: _Place, lane: int) -> None:
        group, topic, queue_id = place
        groups = self._holders[client_id]
        del groups[group][topic][queue_id, lane]
        if not groups[group][topic]:
            del groups[group][topic]
        if not groups[group]:
            del groups[group]
        if not groups:
            del self._holders[client_id]


def _may_be_freed(lane: Lane) -> bool:
    """Return whether a lane waits for something; a lane that stops its queue may be Ready after its member died with it."""
    is_stopped = lane.stops and lane.state == LaneState.READY

    return is_stopped or lane.state in (LaneState.PARKED, LaneState.HELD)


def _commit(queue: LaneQueue, offsets: OffsetTable, writes: TableWrites) -> None:
    group, topic, queue_id = queue.place
    offsets.advance(Commit(group, topic, queue_id, queue.low_water()), writes)
