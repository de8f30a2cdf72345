"""
The leader's plan: which lanes the waiting fetches of one group and topic get.

The rules: lanes are handed out by the age of their first message. Of every four lanes, one is looked for among new
messages, even if many lanes are ready, so that old backlogs do not hold up new keys. Queues are served in turn. A
member has at most one lane that may kill its consumers. No member gets a lane while queues have yet to begin, because
a queue that begins later would skip the messages that came meanwhile. A plan changes nothing itself: it becomes
records, and each record is void if the queue moved meanwhile. A round keeps track of what its earlier plans will have
taken.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Final

from orderlymq_broker.processors.fetch.read import SCAN_WORK_MAX, Matches
from orderlymq_broker.processors.lanes.scan import (
    SCAN_MAX,
    Budget,
    Message,
    key_of,
    messages_at,
    messages_from,
    runs_at,
)
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.lanes.lane import Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import Found, HandOut, QueueFetch
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.lanes.table import LaneTable
from orderlymq_broker.state.records import GroupSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_broker.store.kv import Reader
from orderlymq_protocol.body.clients import CONSUME_FROM_LAST_OFFSET

# The most lanes of a group that are not idle: 10 MiB of memory, or 80 MiB if all have long keys and a backlog. As with
# parked keys, so many lanes in trouble mean that the cause is not the messages.
LANES_OF_GROUP_MAX: Final = 16_384
# The number of lanes of all groups from which on each group has only its share: one part for each group with lanes. A
# client that may use many groups must neither fill the memory of every replica, again at each start, nor take the
# room of others. When the k-th group got its last lane, k groups had lanes, so ten thousand groups together have at
# most ten times as many.
LANES_MAX: Final = 65_536
# The most messages of a group in one queue that wait behind busy lanes: about 100 MiB of index on disk.
OWED_MAX: Final = 10_000_000
# The most lanes of a topic that one member has in hand: more than a process can work on within a lease.
IN_HAND_MAX: Final = 4_096
# The number of messages read, bytes read, property comparisons and queues visited that each takes as long as one lane,
# which is about 20 us.
LOOKED_AT: Final = 8
BYTES_READ: Final = 8 << 10
COMPARED: Final = 20
GONE_OVER: Final = 32
# Queues of a topic that one round begins, or moves past what retention removed. Each takes as long as a lane, and
# each is a row and an offset on every replica.
BEGUN_AT_ONCE_MAX: Final = 256
# With this many offsets in a broker group, no queue begins that needs a new one. The remaining room for offsets is
# for the first commits of groups by queue.
LANE_OFFSETS_MAX: Final = 400_000
# One lane in this many is looked for among new messages first.
NEW_SHARE: Final = 4

LANES_FULL: Final = (
    f"the group has {LANES_OF_GROUP_MAX} lanes in hand or in trouble, the largest number allowed: "
    "repair the cause and release them (orderlymq group release)"
)
LANES_SHARED: Final = (
    f"all consumer groups together have {LANES_MAX} lanes in hand or in trouble, and this group "
    "has its share of them: repair the cause and release them (orderlymq group release), in this "
    "group or in others"
)
OWED_FULL: Final = (
    f"{OWED_MAX} messages of a queue wait behind busy lanes, the largest number allowed: the keys "
    "they belong to must be consumed first"
)
OFFSETS_FULL: Final = (
    f"this broker group has offsets of {LANE_OFFSETS_MAX} queues of consumer groups, so a group "
    "by key cannot start on further queues: delete groups or topics that are not needed"
)
STOPPED: Final = (
    "onDeadLetter: StopQueue: a message of a queue has failed as often as the group allows; "
    "repair it or skip it (orderlymq group release)"
)
_HAND_FULL: Final = (
    f"the member has {IN_HAND_MAX} lanes in hand, the largest number allowed: complete them first"
)


_SUSPECT: Final = (
    "the member has a lane in hand whose attempts repeatedly ended without a report; it gets no "
    "other such lane until that one is complete"
)


@dataclass(frozen=True, slots=True)
class Fetch:
    """The request of one fetch."""

    client_id: str
    lanes_max: int
    per_lane_max: int
    size_max: int
    matches: Matches | None
    from_where: str


@dataclass(slots=True)
class _Part:
    """The changes of a plan in one queue."""

    start: int
    scanned: int
    begins: bool
    hand_outs: list[HandOut] = field(default_factory=list)
    found: dict[str, tuple[list[int], int]] = field(default_factory=dict)
    alone: list[Found] = field(default_factory=list)

    def record(self, queue_id: int) -> QueueFetch | None:
        """Return the record of this part, or None if it changes nothing.

        The start of a queue is a change: a member that begins at the end would otherwise find another end each time.
        """
        if not (self.hand_outs or self.begins or self.scanned > self.start):
            return None
        found = [Found(key, tuple(offsets), take) for key, (offsets, take) in self.found.items()]

        return QueueFetch(
            queue_id,
            self.start,
            self.scanned,
            tuple(self.hand_outs),
            (*found, *self.alone),
            self.begins,
        )


@dataclass(slots=True)
class Plan:
    """The result of one fetch.

    Attributes:
        messages: the messages handed out, by queue and offset.
        limited: why there are no more.
        is_own: that reason holds for this member alone; later fetches may get what this member may not.
        expired: the number of messages that retention removed before they were scanned.
        work: the time it took to make the plan, counted in lanes.
    """

    parts: dict[int, _Part] = field(default_factory=dict)
    messages: dict[tuple[int, int], Message] = field(default_factory=dict)
    lanes: int = 0
    size: int = 0
    limited: str = ""
    is_own: bool = False
    expired: int = 0
    work: int = 0

    def records(self) -> tuple[QueueFetch, ...]:
        """Return the records of the parts that change something."""
        made = [part.record(queue_id) for queue_id, part in sorted(self.parts.items())]

        return tuple(part for part in made if part is not None)


@dataclass(slots=True)
class Turn:
    """The progress of the rotation for one group and topic.

    Attributes:
        lanes: the number of lanes handed out.
        plans: the number of plans that read messages. Each plan begins with another queue, even if the plan before it
            took many lanes from its own.
    """

    lanes: int = 0
    plans: int = 0


class Round:
    """The plans of one moment for one group and topic.

    Life cycle: made when no proposal for the topic is in the log uncommitted and there is time for *room* lanes or
    the same amount of other work; used once per fetch, and then dropped. Queues that begin may add up to
    *offsets_room* offsets.
    """

    def __init__(
        self,
        state: BrokerState,
        reader: Reader,
        config: GroupSet,
        topic: Topic,
        turn: Turn,
        due: Callable[[LaneQueue], list[Lane]],
        room: int,
        offsets_room: int,
    ) -> None:
        self._state = state
        self._reader = reader
        self._config = config
        self._topic = topic
        self._turn = turn
        self._due = due
        self._queues = dict(state.lanes.queues_of(config.name, topic.name))
        self._budget = Budget(
            min(SCAN_MAX, room * LOOKED_AT), work=min(SCAN_WORK_MAX, room * COMPARED)
        )
        # Reads for ready lanes have their own budget; otherwise they would hold up new messages.
        self._hands = Budget(min(SCAN_MAX, room * LOOKED_AT))
        self._rows = min(BEGUN_AT_ONCE_MAX, room)
        self._offsets_room = offsets_room
        # By queue: its ready lanes, and those of them that are suspects, each with the oldest last. Plans take from
        # these lists.
        self._lanes_of: dict[int, tuple[list[Lane], list[Lane]]] = {}
        self._scanned: dict[int, int] = {}
        self._keys: set[tuple[int, str]] = set()
        # Lanes, by queue and number, to which earlier plans add messages that are not stored yet.
        self._added: set[tuple[int, int]] = set()
        self._lanes = state.lanes.count_of(config.name)
        self._lanes_max = lanes_max(state.lanes, config.name)
        self._in_hand: dict[str, int] = {}
        # Whether a member has a suspect, for the members that were checked.
        self._suspects: dict[str, bool] = {}

    def is_spent(self) -> bool:
        """Return whether a further plan may lack lanes that the next round will find."""
        return self._rows <= 0 or self._budget.is_spent() or self._hands.is_spent()

    def plan(self, fetch: Fetch) -> Plan:
        """Return the plan for a fetch."""
        plan = Plan()
        held = self._state.lanes.in_hand_count(fetch.client_id, self._config.name, self._topic.name)
        held += self._in_hand.get(fetch.client_id, 0)
        room = min(fetch.lanes_max, IN_HAND_MAX - held)
        if room <= 0:
            plan.limited, plan.is_own = _HAND_FULL, True
            return plan
        count = self._topic.queue_count
        first = self._turn.plans % count if count else 0
        order = [(first + step) % count for step in range(count)]
        left = self._budget.messages + self._hands.messages
        left_bytes = self._budget.size + self._hands.size
        left_work, left_rows = self._budget.work, self._rows
        given = self._turn.lanes
        new = (given + room) // NEW_SHARE - given // NEW_SHARE
        if self._begin_some(plan, fetch, order):
            ready = self._ready(plan, fetch, order)
            self._give(plan, fetch, ready, room - new)
            self._look(plan, fetch, order, room)
            self._give(plan, fetch, ready, room)
        self._turn.lanes += max(1, plan.lanes)
        self._in_hand[fetch.client_id] = self._in_hand.get(fetch.client_id, 0) + plan.lanes
        self._note_added(plan)
        left -= self._budget.messages + self._hands.messages
        self._turn.plans += left > 0
        left_bytes -= self._budget.size + self._hands.size
        plan.work = plan.lanes + left // LOOKED_AT + left_bytes // BYTES_READ + count // GONE_OVER
        plan.work += (left_work - self._budget.work) // COMPARED + left_rows - self._rows

        return plan

    # -- lanes that are ready ----------------------------------------------------------------------

    def _ready(
        self, plan: Plan, fetch: Fetch, order: list[int]
    ) -> Iterator[tuple[LaneQueue, Lane]]:
        """Yield the lanes that a member may have: the oldest of each queue first, the queues in turn."""
        queue_ids = [queue_id for queue_id in order if queue_id in self._queues]
        while queue_ids:
            more = []
            for queue_id in queue_ids:
                lane = self._take_ready(plan, fetch, queue_id)
                if lane is not None:
                    more.append(queue_id)
                    yield self._queues[queue_id], lane
            queue_ids = more

    def _take_ready(self, plan: Plan, fetch: Fetch, queue_id: int) -> Lane | None:
        if queue_id not in self._lanes_of:
            found = self._ready_of(self._queues[queue_id])
            self._lanes_of[queue_id] = (
                [lane for lane in found if not lane.is_suspect],
                [lane for lane in found if lane.is_suspect],
            )
        lanes, suspects = self._lanes_of[queue_id]
        if suspects and not (lanes and lanes[-1].first < suspects[-1].first):
            if self._may_have_suspect(fetch.client_id):
                return suspects.pop()
            plan.limited, plan.is_own = _SUSPECT, True

        return lanes.pop() if lanes else None

    def _ready_of(self, queue: LaneQueue) -> list[Lane]:
        """Return the lanes of a queue that may be handed out, the oldest last."""
        lanes = [
            *queue.in_state(LaneState.READY),
            *self._due(queue),
        ]
        free = [lane for lane in lanes if not queue.stopping or lane.stops]
        oldest = nsmallest(IN_HAND_MAX, free, key=lambda lane: lane.first)

        return oldest[::-1]

    def _lags(self, queue: LaneQueue, lane: Lane) -> bool:
        """Return whether a lane has only its index, and that index lacks what an earlier plan adds.

        The earlier plan may be refused, so it is not known yet what follows the lane's first run. The next round knows.
        """
        return not lane.head and (queue.place[2], lane.number) in self._added

    def _note_added(self, plan: Plan) -> None:
        for queue_id, part in plan.parts.items():
            queue = self._queues.get(queue_id)
            if queue is None:
                continue
            for key in part.found:
                lane = queue.of_key(key)
                if lane is not None:
                    self._added.add((queue_id, lane.number))

    def _give(
        self, plan: Plan, fetch: Fetch, ready: Iterator[tuple[LaneQueue, Lane]], room: int
    ) -> None:
        while plan.lanes < room and not _is_full(plan, fetch) and not self._hands.is_spent():
            found = next(ready, None)
            if found is None:
                return
            if not self._lags(*found):
                self._hand_out(plan, fetch, *found)

    def _may_have_suspect(self, client_id: str) -> bool:
        """Return whether a member has no suspect yet, and note that it gets one."""
        if client_id not in self._suspects:
            held = self._state.lanes.in_hand_of(client_id, self._config.name, self._topic.name)
            self._suspects[client_id] = any(lane.is_suspect for _, lane in held)
        has_one = self._suspects[client_id]
        self._suspects[client_id] = True

        return not has_one

    def _hand_out(self, plan: Plan, fetch: Fetch, queue: LaneQueue, lane: Lane) -> None:
        queue_id = queue.place[2]
        load: tuple[int, ...] = ()
        then = -1
        if not lane.head:
            load, then = runs_at(self._reader, queue.place, lane.number, lane.then)
        head = lane.head or load
        # A member died with this lane, perhaps because of a later message than the first, which was blamed. Hand out
        # only one message now, so that the next death proves something about it.
        wanted = head[: 1 if lane.lost else fetch.per_lane_max]
        messages = messages_at(self._reader, self._topic.queue(queue_id), wanted)
        self._hands.messages -= max(1, len(wanted), len(load))
        self._hands.size -= sum(len(each) for each in messages if each is not None)
        gone = 0
        while gone < len(messages) and messages[gone] is None:
            gone += 1
        take = 0
        for offset, message in zip(wanted[gone:], messages[gone:], strict=True):
            if message is None or (take and plan.size + len(message) > fetch.size_max):
                break
            plan.messages[queue_id, offset] = message
            plan.size += len(message)
            take += 1
        self._part(plan, queue_id, fetch).hand_outs.append(
            HandOut(lane.number, take, load, then, gone, lane.first)
        )
        plan.lanes += take > 0

    # -- messages nobody has looked at -------------------------------------------------------------

    def _look(self, plan: Plan, fetch: Fetch, order: list[int], room: int) -> None:
        for queue_id in order:
            if plan.lanes >= room or _is_full(plan, fetch) or self._budget.is_spent():
                return
            if not self._has_begun(queue_id):
                continue
            limited = why_limited(self._queues.get(queue_id), self._lanes, self._lanes_max)
            if limited:
                plan.limited = limited
                continue
            self._look_at(plan, fetch, queue_id, room)

    def _begin_some(self, plan: Plan, fetch: Fetch, order: list[int]) -> bool:
        """Begin new queues, as many as there is time for; return whether all queues that have room have begun."""
        for queue_id in order:
            if self._has_begun(queue_id):
                continue
            is_new = self._committed(queue_id) is None
            if is_new and self._offsets_room <= 0:
                plan.limited = OFFSETS_FULL
                continue
            if self._rows <= 0:
                return False
            self._rows -= 1
            self._offsets_room -= is_new
            self._part(plan, queue_id, fetch)

        return True

    def _has_begun(self, queue_id: int) -> bool:
        return queue_id in self._queues or queue_id in self._scanned

    def _committed(self, queue_id: int) -> int | None:
        return self._state.offsets.get(self._config.name, self._topic.name, queue_id)

    def _look_at(self, plan: Plan, fetch: Fetch, queue_id: int, room: int) -> None:
        stored = self._topic.queues.get(queue_id)
        if stored is None:
            return
        part = self._part(plan, queue_id, fetch)
        if part.scanned < stored.min_offset and not part.begins:
            if self._rows <= 0:
                return
            self._rows -= 1
        # Skip messages that retention removed before they were scanned, even if no message follows them.
        start = max(part.scanned, stored.min_offset)
        plan.expired += max(0, start - max(part.scanned, stored.first_offset))
        part.scanned = start
        for offset, message in messages_from(
            self._reader, stored, start, fetch.matches, self._budget, lambda: room - plan.lanes
        ):
            if message is not None and not self._take(plan, part, fetch, queue_id, offset, message):
                break
            part.scanned = offset + 1
            if plan.lanes >= room:
                break
        self._scanned[queue_id] = part.scanned

    def _take(
        self, plan: Plan, part: _Part, fetch: Fetch, queue_id: int, offset: int, message: Message
    ) -> bool:
        """Put a message into its lane; return False if there was no room."""
        key = key_of(message, self._config.lane_key_property)
        mine = part.found.get(key) if key else None
        if mine is not None:
            offsets, take = mine
            grows = 0 < take == len(offsets) < fetch.per_lane_max
            if grows and plan.size + len(message) <= fetch.size_max:
                plan.messages[queue_id, offset] = message
                plan.size += len(message)
                part.found[key] = (offsets, take + 1)
            offsets.append(offset)
            return True
        if key and self._is_busy(queue_id, key):
            part.found[key] = ([offset], 0)
            return True
        if full := _why_full(self._lanes, self._lanes_max):
            plan.limited = full
            return False
        if plan.lanes and plan.size + len(message) > fetch.size_max:
            plan.size = fetch.size_max
            return False
        plan.messages[queue_id, offset] = message
        plan.size += len(message)
        plan.lanes += 1
        self._lanes += 1
        if key:
            self._keys.add((queue_id, key))
            part.found[key] = ([offset], 1)
        else:
            part.alone.append(Found("", (offset,), 1))

        return True

    def _is_busy(self, queue_id: int, key: str) -> bool:
        queue = self._queues.get(queue_id)
        has_lane = queue is not None and queue.of_key(key) is not None

        return has_lane or (queue_id, key) in self._keys

    def _part(self, plan: Plan, queue_id: int, fetch: Fetch) -> _Part:
        part = plan.parts.get(queue_id)
        if part is None:
            start = self._scanned.get(queue_id, -1)
            begins = start < 0 and queue_id not in self._queues
            if start < 0:
                start = self._scanned[queue_id] = self._begin(queue_id, fetch)
            part = plan.parts[queue_id] = _Part(start, start, begins)

        return part

    def _begin(self, queue_id: int, fetch: Fetch) -> int:
        """Return the offset from which a queue is scanned on: where its scan stands, or where it begins."""
        queue = self._queues.get(queue_id)
        if queue is not None:
            return queue.scanned
        committed = self._committed(queue_id)
        if committed is not None:
            return committed
        stored = self._topic.queues.get(queue_id)
        if stored is None or stored.min_offset == 0:
            return 0
        # Begin as RocketMQ's clients do; to begin at a time, a client sends the request that sets the offsets.
        return (
            stored.next_offset
            if fetch.from_where == CONSUME_FROM_LAST_OFFSET
            else stored.min_offset
        )


def lanes_max(lanes: LaneTable, group: str) -> int:
    """Return how many lanes a group may have now."""
    return share(lanes.total, lanes.busy_group_count, lanes.count_of(group))


def share(total: int, busy: int, own: int) -> int:
    """Return how many lanes a group that has *own* lanes may have, while *busy* groups together have *total*."""
    if total < LANES_MAX:
        return LANES_OF_GROUP_MAX

    return max(1, min(LANES_OF_GROUP_MAX, LANES_MAX // (busy + (own == 0))))


def why_limited(queue: LaneQueue | None, lanes: int, most: int) -> str:
    """Return why a queue of a group with so many lanes is not scanned further; empty if nothing prevents it.

    *most* is the result of `lanes_max`.
    """
    if queue is not None and queue.stopping:
        return STOPPED
    if queue is not None and queue.owed >= OWED_MAX:
        return OWED_FULL

    return _why_full(lanes, most)


def _why_full(lanes: int, most: int) -> str:
    if lanes < most:
        return ""
    return LANES_FULL if most == LANES_OF_GROUP_MAX else LANES_SHARED


def _is_full(plan: Plan, fetch: Fetch) -> bool:
    return plan.lanes > 0 and plan.size >= fetch.size_max
