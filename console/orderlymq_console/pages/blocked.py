"""
Everything that stands still: queues without progress, lanes that are parked or held, and keys parked behind a dead letter.

Rule: the leaders' statuses name the consumer groups in which something stands still. Only these groups are asked for more, and at
most `ASKED_MAX` of them: first those that only a person can let go on. The page says what was not asked.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import QueueLock
from orderlymq.admin.operations import ParkedKey
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.models import BlockedPage, Figure, LaneCounts, Standstill
from orderlymq_console.pages import findings
from orderlymq_console.parameters import Parameters
from orderlymq_console.pods import PodNames
from orderlymq_console.status import BlockedReport, StatusReport
from orderlymq_protocol.body.lanes import BY_KEY, LaneShown, LaneTable, QueueLanes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import OffsetWrapper
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_protocol.plurals import counted

ASKED_MAX: Final = 20
SHOWN_MAX: Final = 200
_NAMED_MAX: Final = 20
STANDING: Final = ("held", "deadLettering", "parked")
# The result for brokers of RocketMQ, and for brokers that do not know a consumer group.
_NO_LOCKS: Final[dict[MessageQueue, QueueLock]] = {}
_NO_KEYS: Final[list[ParkedKey]] = []


@dataclass(frozen=True, slots=True)
class Parts:
    """The answers of all broker groups about one consumer group, and the pods of its members if they are known."""

    progress: Answers[dict[MessageQueue, OffsetWrapper]]
    locks: Answers[dict[MessageQueue, QueueLock]]
    lanes: Answers[LaneTable]
    parked: Answers[list[ParkedKey]]
    pods: PodNames | None = None

    @property
    def all(self) -> tuple[Answers[object], ...]:
        """All answers, for the sources of a page."""
        return (self.progress, self.locks, self.lanes, self.parked)  # type: ignore[return-value]  # read only


async def group_parts(reader: ClusterReader, group: str) -> Parts:
    """Ask every broker group about one consumer group."""
    progress, locks, lanes, parked, pods = await asyncio.gather(
        reader.of_each(("progress", group), lambda client: client.progress(group, whole=True)),
        reader.of_each(
            ("locks", group), lambda client: unless_foreign(client.locks(group), _NO_LOCKS)
        ),
        reader.of_each(
            ("lanes", group), lambda client: unless_foreign(client.lanes(group), LaneTable())
        ),
        reader.of_each(
            ("parked", group), lambda client: unless_foreign(client.parked_keys(group), _NO_KEYS)
        ),
        reader.pods(),
    )
    for name, table in locks.known():
        reader.journal.note_locks(group, name, table)
    for name, shown in lanes.known():
        keys = parked.readings.get(name)
        if keys is not None and keys.value is not None:
            _note_keys(reader, group, name, shown, keys.value)
    return Parts(progress, locks, lanes, parked, pods)


def _note_keys(
    reader: ClusterReader, group: str, broker_group: str, table: LaneTable, keys: list[ParkedKey]
) -> None:
    """Record which keys stand still. In a by-key group these are its lanes, of which a broker names only some.

    A lane without a key has no history to show, and neither has a lane that uses another property than the sharding key.
    """
    lanes = [lane for lane in table.lanes if lane.state in STANDING]
    is_of_keys = table.lane_key_property == SHARDING_KEY
    standing = {
        (MessageQueue(lane.topic, broker_group, lane.queue_id), lane.key): (
            lane.state,
            lane.since_millis,
        )
        for lane in lanes
        if lane.key and is_of_keys
    }
    if table.concurrency != BY_KEY:
        standing = {(key.queue, key.key): ("key", key.since_ms) for key in keys}
    count = sum(queue.parked + queue.held + queue.dead_lettering for queue in table.queues)
    is_whole = count == len(lanes)
    reader.journal.note_keys(group, broker_group, standing, is_whole=is_whole)


async def blocked(reader: ClusterReader, _: Parameters) -> BlockedPage:
    """Return everything that stands still, queues first and parked lanes last, the longest first in each part; and the leaders' other findings."""
    statuses = await reader.statuses()
    groups = _groups(statuses)
    asked = groups[:ASKED_MAX]
    parts = dict(
        zip(
            asked, await asyncio.gather(*(group_parts(reader, each) for each in asked)), strict=True
        )
    )
    rows = [row for group, each in parts.items() for row in standing(statuses, group, each)]
    rows += [
        queue_row(name, row, None)
        for name, status in statuses.known()
        for row in status.blocked
        if row.group not in parts
    ]
    rows.sort(key=lambda row: (row.state == "parked", row.kind != "queue", row.since_ms))

    return BlockedPage(
        sources=reader.sources(statuses, *(part for each in parts.values() for part in each.all)),
        rows=tuple(rows[:SHOWN_MAX]),
        troubles=tuple(
            trouble
            for _, status in statuses.known()
            if status.examined is not None
            for trouble in findings.of_watch(status.examined)
        ),
        left_out="; ".join((*_left_out(statuses, groups, len(rows)), *_unnamed(parts))),
    )


def standing(statuses: Answers[StatusReport], group: str, parts: Parts) -> Iterator[Standstill]:
    """Yield everything in one consumer group that stands still."""
    lanes = {
        (lane.broker_name, lane.topic, lane.queue_id, lane.offset)
        for _, table in parts.lanes.known()
        for lane in table.lanes
        if lane.state in STANDING
    }
    for name, status in statuses.known():
        for row in status.blocked:
            if row.group != group or (row in status.kept and _has_gone_on(name, row, parts)):
                continue
            # The committed offset of a by-key group waits for its first lane, while the other lanes go on.
            if (name, row.topic, row.queue, row.offset) not in lanes:
                yield queue_row(name, row, parts)
    by_key = set()
    for name, table in parts.lanes.known():
        if table.concurrency == BY_KEY:
            by_key.add(name)
        for lane in table.lanes:
            if lane.state in STANDING:
                yield lane_row(group, lane)
    for name, keys in parts.parked.known():
        for key in keys:
            if name not in by_key:  # in a by-key group these are its held lanes
                yield key_row(group, key)


def queue_row(broker_group: str, row: BlockedReport, parts: Parts | None) -> Standstill:
    """Return the row of a queue that stands still; *parts* is None if its consumer group was not asked."""
    queue = MessageQueue(row.topic, broker_group, row.queue)
    row = row.model_copy(update={"by_key": _is_by_key(broker_group, row, parts)})
    if row.by_key:
        return _lanes_row(queue, row, parts)
    holder = row.holder
    lock = _lock(queue, holder, parts)
    address = None if lock is None else lock.address or None
    return _queue_row_of(queue, row, parts)(
        holder=holder,
        holder_address=address,
        holder_pod=None if parts is None or parts.pods is None else parts.pods.at(address),
        tries=row.listener_tries if row.listener_tries is not None else row.tries,
        called_ms=row.listener_called or None,
        last_error=row.listener_error or row.listener or "",
        todo=cure(row if lock is None else _as_of(lock, row)),
    )


def _queue_row_of(
    queue: MessageQueue, row: BlockedReport, parts: Parts | None
) -> "partial[Standstill]":
    """Return a function that makes the row of a queue, whether members take it whole or by its lanes."""
    return partial(
        Standstill,
        kind="queue",
        state="blocked",
        group=row.group,
        topic=row.topic,
        broker_group=queue.broker_name,
        queue=row.queue,
        offset=row.offset,
        since_ms=row.since,
        key=row.key,
        message_id=row.message_id,
        behind=_behind(queue, row.offset, parts),
        by_key=row.by_key,
    )


def _is_by_key(broker_group: str, row: BlockedReport, parts: Parts | None) -> bool | None:
    """Return whether a consumer group takes keys of a broker group. The broker's present table goes before the leader's last examination."""
    reading = None if parts is None else parts.lanes.readings.get(broker_group)
    if reading is not None and reading.value is not None:
        return reading.value.concurrency == BY_KEY
    # A member that holds a queue takes it whole.
    return False if row.holder else row.by_key


def _lanes_row(queue: MessageQueue, row: BlockedReport, parts: Parts | None) -> Standstill:
    """Return the row of a queue of a by-key group in which no lane was handed out for a while."""
    tables = {} if parts is None else dict(parts.lanes.known())
    table = tables.get(queue.broker_name, LaneTable())
    place = (queue.topic, queue.queue_id)
    figures = [each for each in table.queues if (each.topic, each.queue_id) == place]
    lanes = [each for each in table.lanes if (each.topic, each.queue_id) == place]
    in_hand = [each for each in lanes if each.holder]
    oldest = min(in_hand, key=lambda lane: lane.since_millis, default=None)
    counts = lane_counts(figures[0]) if figures else None
    return _queue_row_of(queue, row, parts)(
        lanes=counts,
        holder=None if oldest is None else oldest.holder,
        in_hand_since_ms=None if oldest is None else oldest.since_millis or None,
        todo=cure_of_lanes(counts),
    )


def lane_counts(row: QueueLanes) -> LaneCounts:
    """Return the number of a queue's lanes by state."""
    return LaneCounts(
        topic=row.topic,
        broker_group=row.broker_name,
        queue=row.queue_id,
        in_hand=row.in_hand,
        ready=row.ready,
        parked=row.parked,
        held=row.held,
        dead_lettering=row.dead_lettering,
        owed=row.owed,
        limited=row.limited,
    )


def _as_of(lock: QueueLock, row: BlockedReport) -> BlockedReport:
    """Return the leader's report, updated by what the lock says now."""
    lease = {"connected": lock.is_connected, "lease_millis": lock.lease_ms}
    return row.model_copy(update=lease)


def cure(row: BlockedReport) -> str:
    """Return what to do about a queue that stands still; a holder that is not connected has no log to read."""
    if row.by_key:
        return cure_of_lanes(None)
    if row.holder and row.connected is False and row.lease_millis is not None:
        return f"{row.holder} is not connected, and nothing proves that it is dead. " + (
            findings.until_lease_ends(row.lease_millis / 1000)
        )
    if row.listener_suspended:
        return (
            f"The program of {row.holder or 'a member'} has suspended its consumer. Have it call resume(), or restart it; "
            "then the queue continues. Nothing is wrong with the message."
        )
    first = (
        f"The listener of {row.holder} has not returned. Check its stack on the page of that member, then restart the process. "
        if row.holder and row.listener_running
        else f"Read the log of {row.holder}'s listener and repair the cause; then the queue continues. "
        if row.holder
        else "No member holds the queue. Check whether the members of the group are alive. "
    )
    if row.by_key is None and not row.holder:
        return first.rstrip()  # a skip would end lanes that owe messages
    return (
        first
        + "Or skip the message: the group continues at the next offset of this queue, and does not receive this message again."
    )


def cure_of_lanes(counts: LaneCounts | None) -> str:
    """Return what to do about a queue of a by-key group; setting its offset is no remedy, because that ends what all its lanes owe."""
    said = ["The group consumes by key, and no member has fetched a lane of this queue since."]
    if counts is None:
        said.append("The page of the group shows its lanes.")
    elif counts.limited:
        said.append(f"The broker hands out no new lanes: {counts.limited}.")
    if counts is not None and counts.in_hand:
        said.append(
            "Check the stacks of the members that have lanes in hand: their listeners have not returned."
        )
    else:
        said.append("Check whether the members of the group are alive and fetch.")
    if counts is not None and (counts.held or counts.parked):
        said.append(
            "Repair the cause of the failures in held and parked lanes, and release the lanes."
        )
    return " ".join((*said, "Then the queue continues."))


def lane_row(group: str, lane: LaneShown) -> Standstill:
    """Return the row of a lane that is parked or held, or whose dead letter is being stored."""
    todo = {
        "held": "Repair the cause, then retry the message; or skip it: it becomes a dead letter, and the "
        "lane continues behind it.",
        "deadLettering": "Its dead letter is being stored. Then the lane continues behind it.",
        "parked": "The broker hands it out again when its pause is over. A retry ends the pause "
        "now; a skip makes the message a dead letter.",
    }[lane.state]
    return Standstill(
        kind="lane",
        state=lane.state,
        group=group,
        topic=lane.topic,
        broker_group=lane.broker_name,
        queue=lane.queue_id,
        offset=lane.offset,
        since_ms=lane.since_millis,
        key=lane.key or None,
        message_id=None,
        behind=Figure(value=max(0, lane.waiting - 1)),
        holder=lane.holder or None,
        tries=lane.tries,
        due_ms=lane.due_millis or None,
        last_error=lane.reason,
        todo=todo,
        releasable=bool(lane.key) and lane.state != "deadLettering",
    )


def key_row(group: str, key: ParkedKey) -> Standstill:
    """Return the row of a key that is parked behind a dead letter."""
    return Standstill(
        kind="key",
        state="parked behind a dead letter",
        group=group,
        topic=key.queue.topic,
        broker_group=key.queue.broker_name,
        queue=key.queue.queue_id,
        offset=key.first_offset,
        since_ms=key.since_ms,
        key=key.key,
        message_id=key.first_message_id or None,
        behind=Figure(value=key.behind),
        holder=None,
        todo="Repair what made the first dead letter fail. Then wait until its queue has no lag, release the key, and redrive its dead letters: "
        "the page of the group's dead letters offers each step in turn.",
        releasable=True,
    )


def _has_gone_on(broker_group: str, row: BlockedReport, parts: Parts) -> bool:
    """Return whether the consumer group has committed the message at which a queue stood before its leader changed."""
    queue = MessageQueue(row.topic, broker_group, row.queue)
    return any(
        table[queue].consumer_offset > row.offset
        for _, table in parts.progress.known()
        if queue in table
    )


def _groups(statuses: Answers[StatusReport]) -> list[str]:
    """Return the consumer groups in which something stands still, the most standstills first; groups that go on by themselves come last."""
    stands: Counter[str] = Counter()
    pauses: Counter[str] = Counter()
    for _, status in statuses.known():
        stands.update(row.group for row in status.blocked)
        watch = status.examined
        if watch is None:
            continue
        for keys in watch.parked_keys:
            stands[keys.group] += keys.keys
        for row in watch.lanes:
            (pauses if row.state == "parked" else stands)[row.group] += row.lanes

    return sorted({*stands, *pauses}, key=lambda group: (-stands[group], -pauses[group], group))


def _left_out(statuses: Answers[StatusReport], groups: list[str], rows: int) -> Iterator[str]:
    if len(groups) > ASKED_MAX:
        others = groups[ASKED_MAX:]
        named = ", ".join(others[:_NAMED_MAX]) + (" and others" if len(others) > _NAMED_MAX else "")
        yield f"Something is blocked in {counted(len(others), 'more group')}: {named}; open their pages"
    if rows > SHOWN_MAX:
        yield f"not shown: {counted(rows - SHOWN_MAX, 'more row')}"
    what = "What else" if rows else "What"
    for name, status in statuses.known():
        if status.blocked_unknown:
            yield f"{what} is blocked in {name} is unknown: {status.blocked_unknown}"
        if status.cut:
            yield f"What else is blocked in {name} is unknown: {status.cut}"


def _unnamed(parts: Mapping[str, Parts]) -> Iterator[str]:
    """Say for which consumer groups a broker counts more lanes than it names."""
    for group, each in parts.items():
        for name, table in each.lanes.known():
            standing = sum(row.held + row.dead_lettering + row.parked for row in table.queues)
            left = standing - sum(lane.state in STANDING for lane in table.lanes)
            if left > 0:
                yield f"not listed: {counted(left, 'more lane')} of group {group} in {name}; open its page"


def _behind(queue: MessageQueue, offset: int, parts: Parts | None) -> Figure:
    if parts is None:
        return Figure(unknown=f"not asked: more than {ASKED_MAX} groups are blocked")
    for _, progress in parts.progress.known():
        found = progress.get(queue)
        if found is not None:
            return Figure(value=max(0, found.broker_offset - offset - 1))

    return Figure(unknown=parts.progress.unknown or "the group has no offset in this queue")


def _lock(queue: MessageQueue, holder: str | None, parts: Parts | None) -> QueueLock | None:
    """Return the lock of a queue's holder; None if another member holds the queue now."""
    for _, locks in () if parts is None else parts.locks.known():
        if queue in locks and locks[queue].client_id == holder:
            return locks[queue]

    return None
