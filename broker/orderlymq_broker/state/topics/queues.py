"""
The queues of a topic: their bounds, and the newest messages of all of them in memory.

The rules: queue offsets are dense, store timestamps never fall within a queue, and ``min_offset`` never falls. The
tail cache holds the log entries in which messages came, and the position of each message there. It is first in, first
out over all queues, so that a consumer that keeps up never reads the store.
"""

from collections import deque
from collections.abc import Iterator
from typing import Final

from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.state.topics.rows import FloorRow, TailEntry
from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import (
    Table,
    decode_queue_entry,
    decode_queue_key,
    queue_bounds,
    queue_key,
)

DEFAULT_TAIL_SIZE: Final = 64 << 20
_KEYS_END: Final = b"\xff" * 17
# Entries that are removed as one range. RocksDB sorts all ranges of a memtable again for the first scan after each
# write of a range. When a round of retention removed a few entries of each of 40,000 queues, that took 20 to 50 ms.
RANGE_MIN: Final = 64


# The places of messages that have left a tail are released when there are at least this many, and at least as many as
# remaining messages.
LEFT_MIN: Final = 64


class Tail:
    """The newest messages of a queue: new ones are added at the end, and the oldest leave; access by position is fast.

    In a deque of 300,000, access to the middle one takes 20 us, and a pull reads up to 800.
    """

    __slots__ = ("_entries", "_first")

    def __init__(self) -> None:
        self._entries: list[TailEntry | None] = []
        self._first = 0  # the position of the oldest; the places before it are None

    def __len__(self) -> int:
        return len(self._entries) - self._first

    def __iter__(self) -> Iterator[TailEntry]:
        return iter(self.part(0, len(self)))

    def __getitem__(self, position: int) -> TailEntry:
        """Return a message by its position after the oldest."""
        assert position >= 0, position
        entry = self._entries[self._first + position]
        assert entry is not None

        return entry

    def part(self, start: int, end: int) -> list[TailEntry]:
        """Return the messages from position *start* to before *end*, as far as they exist."""
        # Only places before the first message are None.
        return self._entries[self._first + start : self._first + end]  # type: ignore[return-value]

    def append(self, entry: TailEntry) -> None:
        """Add the newest message."""
        self._entries.append(entry)

    def pop_oldest(self) -> TailEntry:
        """Remove the oldest message and return it."""
        oldest = self[0]
        self._entries[self._first] = None
        self._first += 1
        if self._first >= LEFT_MIN and 2 * self._first >= len(self._entries):
            del self._entries[: self._first]
            self._first = 0

        return oldest


# Shared by every queue without a message in memory, of which there may be hundreds of thousands.
_NO_TAIL: Final = Tail()


class Queue:
    """One queue of a topic.

    Attributes:
        next_offset: the offset that the next message gets; one more than the last.
        min_offset: the first offset that is kept; equals ``next_offset`` in an empty queue.
        first_offset: the offset of the first message ever stored here; copies of another cluster's queue may begin
            above 0.
        last_timestamp: the store time of the last message, 0 if there never was one.
        tail: the newest messages, the last of them at ``next_offset - 1``.
    """

    __slots__ = (
        "first_offset",
        "last_timestamp",
        "min_offset",
        "next_offset",
        "queue_id",
        "tail",
        "topic_id",
    )

    def __init__(self, topic_id: int, queue_id: int) -> None:
        self.topic_id = topic_id
        self.queue_id = queue_id
        self.next_offset = 0
        self.min_offset = 0
        self.first_offset = 0
        self.last_timestamp = 0
        self.tail = _NO_TAIL

    def __repr__(self) -> str:
        return (
            f"Queue({self.topic_id}, {self.queue_id}, [{self.min_offset}, {self.next_offset}), "
            f"last_timestamp={self.last_timestamp})"
        )

    @property
    def tail_start(self) -> int:
        """The offset of the first message in the tail."""
        return self.next_offset - len(self.tail)

    def row(self) -> tuple[int, int, int, int, int]:
        """Return the values on which replicas must agree."""
        return (
            self.topic_id,
            self.queue_id,
            self.min_offset,
            self.next_offset,
            self.last_timestamp,
        )

    def check(self) -> None:
        """Assert the invariants."""
        assert 0 <= self.first_offset <= self.min_offset <= self.next_offset, self
        assert len(self.tail) <= self.next_offset, self
        assert not _NO_TAIL, "the tail of all queues without one has messages"
        stamps = [entry.store_timestamp for entry in self.tail]
        assert stamps == sorted(stamps), f"store times fall in {self}"
        assert not stamps or stamps[-1] == self.last_timestamp, self


class TailCache:
    """The messages in the tails of all queues, in the order in which they came."""

    __slots__ = ("_order", "size", "size_max")

    def __init__(self, size_max: int = DEFAULT_TAIL_SIZE) -> None:
        self._order: deque[Queue] = deque()
        self.size = 0
        self.size_max = size_max

    def __len__(self) -> int:
        return len(self._order)

    def add(self, queue: Queue, entry: TailEntry) -> None:
        """Add the newest message of *queue*; the oldest of all queues leave if there are too many.

        The caller has already counted it in ``queue.next_offset``.
        """
        if queue.tail is _NO_TAIL:
            queue.tail = Tail()
        queue.tail.append(entry)
        self._order.append(queue)
        self.size += entry.size
        if self.size > self.size_max:
            self._shrink()

    def resize(self, size_max: int) -> None:
        """Change how many bytes may be kept."""
        self.size_max = size_max
        self._shrink()

    def _shrink(self) -> None:
        order = self._order
        while self.size > self.size_max and order:
            queue = order.popleft()
            self.size -= queue.tail.pop_oldest().size
            if not queue.tail:
                queue.tail = _NO_TAIL


def load_queues(reader: Reader) -> dict[tuple[int, int], Queue]:
    """Return every queue that has entries in CONSUME_QUEUE, with its bounds.

    It jumps backwards from queue to queue: two reads per queue, for any length.
    """
    queues: dict[tuple[int, int], Queue] = {}
    end = _KEYS_END
    while pairs := reader.scan(Family.CONSUME_QUEUE, b"", end, limit=1, reverse=True):
        key, value = pairs[0]
        topic_id, queue_id, last_offset = decode_queue_key(key)
        start, stop = queue_bounds(topic_id, queue_id)
        first_key, _ = reader.scan(Family.CONSUME_QUEUE, start, stop, limit=1)[0]
        queue = Queue(topic_id, queue_id)
        queue.next_offset = last_offset + 1
        queue.min_offset = decode_queue_key(first_key)[2]
        queue.last_timestamp = decode_queue_entry(value).store_timestamp
        queues[topic_id, queue_id] = queue
        end = start
    for row in read_as(reader, Table.QUEUES, FloorRow):
        queue = queues.setdefault((row.topic_id, row.queue_id), Queue(row.topic_id, row.queue_id))
        queue.min_offset, queue.first_offset = row.min_offset, row.first_offset
        queue.next_offset = max(queue.next_offset, row.min_offset)
        queue.last_timestamp = max(queue.last_timestamp, row.last_timestamp)

    return queues


def write_floor(queue: Queue, writes: TableWrites) -> None:
    """Store where a trimmed queue begins."""
    row = FloorRow(
        queue.topic_id,
        queue.queue_id,
        queue.min_offset,
        queue.last_timestamp,
        queue.first_offset,
    )
    writes.put(Table.QUEUES, queue.topic_id, queue.queue_id, value=row)


def trim(queue: Queue, min_offset: int, writes: TableWrites, batch: Batch) -> None:
    """Move the start of a queue forward and remove the entries before it."""
    topic_id, queue_id = queue.topic_id, queue.queue_id
    first, queue.min_offset = queue.min_offset, min_offset
    if min_offset - first < RANGE_MIN:
        for offset in range(first, min_offset):
            batch.delete(Family.CONSUME_QUEUE, queue_key(topic_id, queue_id, offset))
    else:
        start, end = (queue_key(topic_id, queue_id, offset) for offset in (0, min_offset))
        batch.delete_range(Family.CONSUME_QUEUE, start, end)
    write_floor(queue, writes)
