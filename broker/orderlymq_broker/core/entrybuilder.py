"""
Checks proposals before they enter the log, and gives messages their offsets.

The rules: a proposal is encoded, decoded again and counted when it is handed in. So a record that no replica
could apply is refused alone and leaves no trace. A message gets its offset when its entry is built, from the
end of the leader's log and not from the commit index. The offset counts only once the entry is in the log.
Store timestamps never fall within a queue, even if the clock does, so that a search by time can bisect. A new
leader begins from its applied log. ``replication/loop.py`` calls this module.
"""

import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard, TypeVar

import msgspec

from orderlymq_broker.core.effects import Changed, Effect, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.core.uncommitted import count_down
from orderlymq_broker.state.admin.accessrecords import AccountDeleted, AccountSet
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.groups.lockrecords import ClientDead, LocksRequested
from orderlymq_broker.state.groups.members import owner_of, size_of
from orderlymq_broker.state.lanes.lanerecords import LaneFreed, LanesFetched
from orderlymq_broker.state.records import (
    Append,
    GroupDeleted,
    GroupSet,
    MemberLeft,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    Record,
    TopicDeleted,
    TopicSet,
    changes_in,
    decode_records,
    encode_records,
)
from orderlymq_broker.state.topics.expansionphases import offsets_given
from orderlymq_broker.state.topics.expansionrecords import (
    ExpansionAborted,
    ExpansionFenced,
    ExpansionOpened,
    ExpansionPropagated,
    ExpansionSwitched,
)
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.state.transactions.halfrecords import HalfOpened
from orderlymq_broker.store.entry import encode_entry
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.message.record import RecordError
from orderlymq_protocol.names import GROUP_LENGTH_MAX, is_dlq_topic, retry_topic

# A quarter of a frame between replicas (``replication/transport/frames.py``), and twice the largest message body
# that can be configured. So every single message passes, and an entry is never so large that a replica closes the
# connection.
PROPOSAL_SIZE_MAX: Final = 16 << 20
# Proposals share an entry up to this size. It is large enough that the cost of an entry does not matter, and
# small enough that its sync and transfer delay the next entry by no more than tens of milliseconds.
ENTRY_SIZE_USUAL: Final = 4 << 20
# Proposals share an entry up to this many changes. A replica applies an entry without a pause, at 5 to 15 us a
# change, and a record may have many changes. The leader must not miss its heartbeats meanwhile.
ENTRY_CHANGES_USUAL: Final = 1_024

# Many small records are split into proposals of about this size.
PIECE_SIZE: Final = 1 << 20

# Topics of a broker group, and as many consumer groups. Name servers accept registrations of up to 50,000 topics.
# A broker group that has more disappears from the routes.
NAMES_MAX: Final = 40_000
# This many more names are reserved for dead-letter topics and for topics that the broker itself creates. Without
# them messages would be lost, or a leader could not start.
NAMES_RESERVED: Final = 9_000
# The bytes of these topics in a registration, which is one frame of 16 MiB. A row has the name twice and at most
# ROW_SIZE bytes more.
ROWS_SIZE_MAX: Final = 14 << 20
ROWS_SIZE_RESERVED: Final = 15 << 17
ROW_SIZE: Final = 160
_ROW_SIZE_MAX: Final = ROW_SIZE + 2 * len(retry_topic("g" * GROUP_LENGTH_MAX))

# The errors that encoding and decoding raise for invalid records. OverflowError is for numbers of more than 64
# bits.
_CANNOT_BE_STORED: Final = (
    *UNREADABLE,
    RecordError,
    OverflowError,
    TypeError,
    ValueError,
    struct.error,
)


_Item = TypeVar("_Item")
#: The one key in ``EntryBuilder.pending_removals`` for all moved offsets: a turn moves thousands of them.
OFFSET_MOVES: Final = ("offsets",)
# The answer to a proposal that was admitted but cannot be built.
UNBUILT: Final = Refusal(
    ResponseCode.SYSTEM_ERROR, "the broker could not store the request; its log has the reason"
)


@dataclass(frozen=True, slots=True)
class Built:
    """An entry that is ready for the log, and where the next one continues.

    Attributes:
        misplaced: proposals that are not in the entry because their queue ends at another offset; with their answers.
    """

    data: bytes
    physical_end: int
    heads: dict[Queue, tuple[int, int]]
    misplaced: list[tuple[Propose, Refusal]]


class EntryBuilder:
    """Checks proposals and builds entries from them.

    Life cycle: ``reset`` when a leadership begins; ``admit`` for each proposal, and ``settle`` once when its
    outcome is known; ``build`` for each entry, and ``proposed`` when it is in the log.

    Attributes:
        physical_next: physical offset of the next message.
        uncommitted: bytes of proposals that are pending: admitted, and neither applied nor lost.
        names_max: how many topics, and how many consumer groups, requests may create.
        rows_size_max: how many bytes of a registration these topics may take.
        changing: topics, consumer groups and accounts that pending proposals create, change, delete or
            expand; further changes of them are judged after these.
        pending_removals: what pending proposals remove or move. Topics ("topic", name) and consumer groups
            ("group", name) are being deleted: offsets in them are refused. Members ("member", group, client)
            and clients ("client", id) are leaving: their next heartbeat makes them members again.
            ("offsets",) stands for moved offsets: a query for an offset waits for it. ("failed", group) is
            for messages that an administrator skips: the consumer group keeps its lanes for the dead letters.
            ("given", group) is for consumer groups whose members get locks or lanes: they are not deleted.
        pending_rows: rows that pending proposals may add to tables with a limit: ("offsets",), ("locks",),
            ("accounts",), ("halves",), ("halves", topic) for a topic, ("halves", group, topic) for a consumer
            group there. ("members",) counts the memory of all members, ("members", account, address) that of
            one owner. A row that exists already counts, too.
    """

    def __init__(self, store_host: bytes, state: BrokerState) -> None:
        self._store_host = store_host
        self._state = state
        self.names_max = NAMES_MAX
        self.rows_size_max = ROWS_SIZE_MAX
        self._creations = 0
        self._rows_size = 0
        self._view = 0
        self.changing: Counter[Changed] = Counter()
        self.pending_removals: Counter[tuple[str, ...]] = Counter()
        self.pending_rows: Counter[tuple[str, ...]] = Counter()
        self.physical_next = 0
        self.uncommitted = 0
        self.uncommitted_count = 0
        # Next offset and last store time of each queue that was written to since the leadership began.
        self._heads: dict[Queue, tuple[int, int]] = {}

    def reset(self, physical_end: int) -> None:
        """Begin from the applied log, which ends at *physical_end*, and drop the counts of pending proposals."""
        self._view += 1
        self._heads = {}
        self.physical_next = physical_end
        self.uncommitted = 0
        self.uncommitted_count = 0
        self._creations = 0
        self._rows_size = 0
        self.changing = Counter()
        self.pending_removals = Counter()
        self.pending_rows = Counter()

    def has_room(self, count: int) -> bool:
        """Return whether *count* topics and groups can be created in addition to those that exist or are pending."""
        return self._is_room(count, count * _ROW_SIZE_MAX, is_ours=False)

    def _is_room(self, count: int, rows_size: int, *, is_ours: bool) -> bool:
        topics = self._state.topics
        names = max(len(topics.by_name), len(self._state.groups.by_name)) + self._creations + count
        rows_size += ROW_SIZE * len(topics.by_name) + 2 * topics.names_size + self._rows_size
        return (
            names <= self.names_max + NAMES_RESERVED * is_ours
            and rows_size <= self.rows_size_max + ROWS_SIZE_RESERVED * is_ours
        )

    def admit(self, proposal: Propose) -> Refusal | None:
        """Count a proposal, or return why it cannot be stored."""
        try:
            size, others = self._count(proposal.records)
        except _CANNOT_BE_STORED as error:
            illegal = any(type(record) is MessageDraft for record in proposal.records)
            code = ResponseCode.MESSAGE_ILLEGAL if illegal else ResponseCode.SYSTEM_ERROR
            return Refusal(code, f"the request cannot be stored: {error}")
        if size > PROPOSAL_SIZE_MAX:
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the request would take at least {size} bytes in the log, the limit is "
                f"{PROPOSAL_SIZE_MAX}; split it",
            )
        new = [record for record in others if self._is_new(record)] if others else []
        if new:
            rows_size = sum(_row_size(record) for record in new if type(record) is TopicSet)
            is_ours = proposal.lost is None or all(is_dlq_topic(record.name) for record in new)
            if not self._is_room(len(new), rows_size, is_ours=is_ours):
                return Refusal(
                    ResponseCode.SYSTEM_ERROR,
                    f"{new[0].name} cannot be created: this broker group has "
                    f"{len(self._state.topics.by_name)} topics and "
                    f"{len(self._state.groups.by_name)} consumer groups, the limits are "
                    f"{self.names_max} names and {self.rows_size_max >> 20} MiB of topics in a "
                    "registration; delete some, or use another broker group",
                )
            proposal.creations, proposal.rows_size = len(new), rows_size
            self._creations += len(new)
            self._rows_size += rows_size
        changes = len(proposal.records) - len(others)
        if others:
            proposal.changes = [each for record in others if (each := self._changed(record))]
            proposal.deletes = [gone for record in others if (gone := _removal(record))]
            self.changing.update(proposal.changes)
            self.pending_removals.update(proposal.deletes)
            proposal.rows = [rows for record in others for rows in self._rows(record)]
            for key, count in proposal.rows:
                self.pending_rows[key] += count
            changes += sum(map(changes_in, others)) + sum(map(self._unnamed, others))
        proposal.size, proposal.view = size, self._view
        proposal.changes_count = changes
        self.uncommitted += size
        self.uncommitted_count += 1

        return None

    def lay_out(self, draft: MessageDraft) -> Refusal | None:
        """Encode a message ahead of its proposal, or return why it cannot be stored."""
        try:
            draft.lay_out(self._store_host)
        except _CANNOT_BE_STORED as error:
            return Refusal(ResponseCode.MESSAGE_ILLEGAL, f"the request cannot be stored: {error}")

        return None

    def _count(self, records: Sequence[Record | MessageDraft]) -> tuple[int, list[Record]]:
        """Return the approximate size of records in an entry, and those that are not drafts; raises for invalid ones."""
        size = 0
        is_message = False
        others: list[Record] = []
        for record in records:
            if type(record) is MessageDraft:
                size += record.size or record.lay_out(self._store_host)
                is_message = True
                if size > PROPOSAL_SIZE_MAX:
                    break
                continue
            if type(record) is Append or (type(record) is HalfOpened and not is_message):
                raise ValueError(f"{type(record).__name__} without its message")
            others.append(record)
        if others:
            encoded = encode_records(others)
            decode_records(encoded)
            size += len(encoded)

        return size, others

    def _is_new(self, record: Record) -> TypeGuard[TopicSet | GroupSet]:
        if type(record) is TopicSet:
            return record.name not in self._state.topics.by_name
        return type(record) is GroupSet and record.name not in self._state.groups.by_name

    def _changed(self, record: Record) -> Changed | None:
        """Return the topic, consumer group or account that a record creates, changes, deletes or expands."""
        match record:
            case TopicSet() | GroupSet():
                kind = "topic" if type(record) is TopicSet else "group"
                changes = not record.only_if_absent or self._is_new(record)
                return (kind, record.name) if changes else None
            case TopicDeleted():
                return "topic", record.name
            case GroupDeleted():
                return "group", record.name
            case AccountSet() | AccountDeleted():
                return "account", record.access_key
            case (
                ExpansionFenced()
                | ExpansionAborted()
                | ExpansionSwitched()
                | ExpansionPropagated()
                | ExpansionOpened()
            ):
                return "topic", record.topic
            case _:
                return None

    def _unnamed(self, record: Record) -> int:
        """Return how many changes a record makes that it does not list."""
        return self._state.lanes.moved_by(record) + self._given(record)

    def _given(self, record: Record) -> int:
        """Return how many offsets a record sets that it does not list."""
        if type(record) is not ExpansionSwitched:
            return 0
        return offsets_given(self._state, record.topic, record.queues, record.groups)

    def _rows(self, record: Record) -> tuple[tuple[tuple[str, ...], int], ...]:
        """Return the rows that a record may add to `pending_rows`."""
        given = self._given(record)
        return ((("offsets",), given),) if given else _rows(record)

    def settle(self, proposals: Iterable[Propose]) -> None:
        """Note that the outcome of admitted proposals is known."""
        for proposal in proposals:
            if proposal.view == self._view:
                self.uncommitted -= proposal.size
                self.uncommitted_count -= 1
                self._creations -= proposal.creations
                self._rows_size -= proposal.rows_size
                if proposal.changes or proposal.deletes:
                    count_down(self.changing, proposal.changes)
                    count_down(self.pending_removals, proposal.deletes)
                for key, count in proposal.rows:
                    self.pending_rows[key] -= count
                    if not self.pending_rows[key]:
                        del self.pending_rows[key]

    def build(self, proposals: Iterable[Propose], wall_ms: int, earliest_ms: int = 0) -> Built:
        """Return the entry of admitted proposals; its offsets count only after ``proposed``.

        The store time of messages is *wall_ms*, but not before *earliest_ms* or the last message of their queue.
        """
        start = physical = self.physical_next
        stored_ms = max(wall_ms, earliest_ms)
        given = self._heads
        heads: dict[Queue, tuple[int, int]] = {}
        records: list[Record] = []
        messages: list[bytearray] = []
        misplaced: list[tuple[Propose, Refusal]] = []
        for proposal in proposals:
            append: Append | None = None
            if proposal.first_at is not None:
                refusal = self._begin(proposal.first_at, heads, begins=proposal.begins)
                if refusal is not None:
                    misplaced.append((proposal, refusal))
                    continue
            for record in proposal.records:
                if type(record) is MessageDraft:
                    topic, queue_id = record.into, record.into_queue
                    queue = topic.queues.get(queue_id) or topic.queue(queue_id)
                    head = heads.get(queue) or given.get(queue)
                    offset, last = head or (queue.next_offset, queue.last_timestamp)
                    timestamp = stored_ms if stored_ms > last else last
                    append = record.place(topic, offset, physical, timestamp)
                    heads[queue] = (offset + 1, timestamp)
                    physical += append.size
                    records.append(append)
                    messages.append(record.stored)
                elif type(record) is HalfOpened:
                    assert append is not None, "a half is opened without its message"
                    records.append(_opened(record, append))
                else:
                    records.append(record)

        data = encode_entry(encode_records(records), messages, start, wall_ms)
        return Built(data, physical, heads, misplaced)

    def _begin(
        self, first_at: tuple[Queue, int], heads: dict[Queue, tuple[int, int]], *, begins: bool
    ) -> Refusal | None:
        """Return why copies cannot begin at this offset, or None; with *begins* an empty queue begins at their offset."""
        queue, wanted = first_at
        offset, last = (
            heads.get(queue) or self._heads.get(queue) or (queue.next_offset, queue.last_timestamp)
        )
        if begins and offset == 0:
            heads[queue] = (wanted, last)
        elif offset != wanted:
            return Refusal(
                ResponseCode.ORDERLYMQ_QUEUE_ENDS_ELSEWHERE,
                f"the next offset of the queue is {offset}, but the copies begin at {wanted}; "
                "nothing was stored",
            )

        return None

    def proposed(self, built: Built) -> None:
        """Note that the entry is in the log, so that its offsets are taken."""
        self._heads.update(built.heads)
        self.physical_next = built.physical_end


def _removal(record: Record) -> tuple[str, ...] | None:
    """Return the key of a record in ``EntryBuilder.pending_removals``."""
    match record:
        case OffsetsCommitted() | OffsetsReset():
            return OFFSET_MOVES if record.commits else None
        case TopicDeleted():
            return "topic", record.name
        case GroupDeleted():
            return "group", record.name
        case MemberLeft():
            return "member", record.group, record.client_id
        case ClientDead():
            return "client", record.client_id
        case LaneFreed(skip=True):
            return "failed", record.group
        case LocksRequested() | LanesFetched():
            return "given", record.group
        case _:
            return None


def _rows(record: Record) -> tuple[tuple[tuple[str, ...], int], ...]:
    """Return the rows that a record may add to ``EntryBuilder.pending_rows``."""
    match record:
        case OffsetsCommitted() | OffsetsReset():
            return ((("offsets",), len(record.commits)),) if record.commits else ()
        case LanesFetched():
            begun = sum([part.begins for part in record.queues])
            return ((("offsets",), begun),) if begun else ()
        case LocksRequested():
            return ((("locks",), len(record.queues)),) if record.queues else ()
        case HalfOpened():
            of_group = ("halves", record.group, record.topic)
            return (("halves",), 1), (("halves", record.topic), 1), (of_group, 1)
        case AccountSet():
            return ((("accounts",), 1),)
        case MemberSeen():
            size = size_of(record)
            return (("members",), size), (("members", *owner_of(record)), size)
        case _:
            return ()


def _row_size(record: TopicSet) -> int:
    return ROW_SIZE + 2 * len(record.name.encode())


def next_group(collected: deque[Propose]) -> list[Propose]:
    """Take the proposals of the next entry off the queue; at least one, however large."""
    group: list[Propose] = []
    size = count = 0
    while collected:
        proposal = collected[0]
        size += proposal.size
        count += proposal.changes_count
        if group and (size > ENTRY_SIZE_USUAL or count > ENTRY_CHANGES_USUAL):
            break
        group.append(collected.popleft())

    return group


def _opened(record: HalfOpened, append: Append) -> HalfOpened:
    return msgspec.structs.replace(
        record,
        offset=append.queue_offset,
        physical=append.physical,
        opened_ms=append.store_timestamp,
    )


def in_pieces(records: Iterable[Record]) -> list[Effect]:
    """Return proposals of records that no request waits for, in their order, each of limited size."""
    return [Propose(piece) for piece in cut(records)]


def parts(items: Sequence[_Item]) -> Iterator[tuple[_Item, ...]]:
    """Yield the items in slices, one for each record, of as many changes as a replica applies in one turn."""
    for start in range(0, len(items), ENTRY_CHANGES_USUAL):
        yield tuple(items[start : start + ENTRY_CHANGES_USUAL])


def cut(records: Iterable[Record]) -> list[list[Record]]:
    """Split independent records into lists of limited size that are proposed together, in their order."""
    pieces: list[list[Record]] = []
    piece: list[Record] = []
    size = count = 0
    for record in records:
        try:
            added = len(encode_records([record]))
        except _CANNOT_BE_STORED:
            added = (
                PIECE_SIZE  # in a piece of its own, so that `admit` refuses nothing else with it
            )
        changes = changes_in(record)
        if piece and (size + added > PIECE_SIZE or count + changes > ENTRY_CHANGES_USUAL):
            pieces.append(piece)
            piece, size, count = [], 0, 0
        piece.append(record)
        size += added
        count += changes
    if piece:
        pieces.append(piece)

    return pieces
