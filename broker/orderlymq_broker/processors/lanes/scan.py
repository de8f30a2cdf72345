"""
Reads for lanes: messages of a queue in order, single messages by offset, and the runs of a lane's index.

The rules: a step reads no more than its budget. Messages that retention removed are skipped. A key is the text of a
property; a key that is too long is represented by its first characters and a digest of the whole.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from orderlymq_broker.processors.fetch.read import SCAN_WORK_MAX, Matches, PropertyTest
from orderlymq_broker.state.lanes.lane import KEY_BYTES_MAX, RUN_MAX
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_entries, read_messages, read_places
from orderlymq_broker.store.kv import Family, Reader
from orderlymq_broker.store.layout import (
    Table,
    decode_queue_entry,
    table_bounds,
    table_key,
)
from orderlymq_protocol.message.properties import find_property
from orderlymq_protocol.message.record import record_properties

# Messages, and their bytes, that one step reads in all queues of a topic: about 10 ms of the leader's event loop.
SCAN_MAX: Final = 4_096
SCAN_SIZE_MAX: Final = 4 << 20
# The fewest and the most messages read from the store at a time.
_STEP_MIN: Final = 16
_STEP: Final = 128
_PHYSICAL_SIZE: Final = 8
_KEY_SHOWN: Final = 128
_DIGEST_SIZE: Final = 16

Message = bytes | memoryview


@dataclass(slots=True)
class Budget:
    """The budget left for one step: messages, their bytes, and, as for a pull, the work of testing their properties."""

    messages: int = SCAN_MAX
    size: int = SCAN_SIZE_MAX
    work: int = SCAN_WORK_MAX

    def is_spent(self) -> bool:
        """Return whether the rest must wait for the next step."""
        return self.messages <= 0 or self.size <= 0 or self.work <= 0


class Seen(NamedTuple):
    """One place of a queue: its offset, and its message if that is wanted, otherwise None."""

    offset: int
    message: Message | None


def messages_from(
    reader: Reader,
    queue: Queue,
    start: int,
    matches: Matches | None,
    budget: Budget,
    room: Callable[[], int],
) -> Iterator[Seen]:
    """Yield a queue's places from *start* on, until the budget is spent.

    Each read takes as many messages as there is *room* for lanes, and more if the messages before took no room.
    """
    step, before = 0, room() + 1
    while start < queue.next_offset and not budget.is_spent():
        left = room()
        step, before = min(_STEP, max(_STEP_MIN, left if left < before else 2 * step)), left
        upto = min(start + min(step, budget.messages), queue.next_offset)
        gone = upto - start
        for offset, code, message in _read(reader, queue, start, upto):
            gone -= 1
            budget.messages -= 1
            wanted = message is not None and _wants(matches, code, message, budget)
            yield Seen(offset, message if wanted else None)
            if budget.is_spent():
                return
        budget.messages -= gone
        start = upto


def messages_at(reader: Reader, queue: Queue, offsets: Sequence[int]) -> list[Message | None]:
    """Return the messages at these offsets; None for each that is gone."""
    found: dict[int, Message | None] = {}
    stored = []
    for offset in offsets:
        if queue.tail_start <= offset < queue.next_offset:
            found[offset] = queue.tail[offset - queue.tail_start].message
        elif queue.min_offset <= offset < queue.tail_start:
            stored.append(offset)
    places = read_places(reader, queue.topic_id, queue.queue_id, stored)
    messages = read_messages(reader, [place[:_PHYSICAL_SIZE] for place in places])
    found.update(zip(stored, messages, strict=True))

    return [found.get(offset) for offset in offsets]


def physical_at(reader: Reader, queue: Queue, offset: int) -> int | None:
    """Return the physical offset of a message of a queue, or None if the message is gone."""
    if queue.tail_start <= offset < queue.next_offset:
        return queue.tail[offset - queue.tail_start].physical
    if not queue.min_offset <= offset < queue.next_offset:
        return None
    (value,) = read_places(reader, queue.topic_id, queue.queue_id, (offset,))

    return decode_queue_entry(value).physical


def runs_at(
    reader: Reader, place: tuple[str, str, int], lane: int, first: int
) -> tuple[tuple[int, ...], int]:
    """Return the offsets in a lane's index from the run at *first* on: whole runs, up to the limit of one lane's run.

    Also return where the next run begins, or -1 if there is none. The read starts at *first*. A scan from the
    beginning of the index would pass the remains of all runs that were removed from it.
    """
    _, end = table_bounds(Table.LANE_OFFSETS, *place, lane)
    start = table_key(Table.LANE_OFFSETS, *place, lane, first)

    def read(limit: int) -> list[tuple[int, ...]]:
        pairs = reader.scan(Family.TABLES, start, end, limit=limit)
        return [msgspec.msgpack.decode(value, type=tuple[int, ...]) for _, value in pairs]

    runs = read(2)
    if len(runs) > 1 and len(runs[0]) + len(runs[1]) <= RUN_MAX:
        # Each scan that finds messages of a busy lane writes a run, even for a single message.
        runs = read(RUN_MAX + 1)
    offsets: tuple[int, ...] = ()
    for run in runs:
        if len(offsets) + len(run) > RUN_MAX:
            return offsets, run[0]
        offsets += run

    return offsets, -1


def key_of(message: Message, name: str) -> str:
    """Return the key of a message's lane, empty if it has none."""
    return lane_key(find_property(record_properties(message), name) or "")


def lane_key(key: str) -> str:
    """Return the name of a key's lane: the key, or its beginning and a digest if it is very long."""
    data = key.encode()
    if len(data) <= KEY_BYTES_MAX:
        return key

    return f"{key[:_KEY_SHOWN]}~{blake2b(data, digest_size=_DIGEST_SIZE).hexdigest()}"


def _wants(matches: Matches | None, code: int, message: Message, budget: Budget) -> bool:
    """Return whether a message passes the filter; take the cost of the test from the budget."""
    budget.size -= len(message)
    if matches is None:
        return True
    if isinstance(matches, PropertyTest):
        budget.work -= matches.work(message)
        return matches.passes(message)

    return matches(code)


def _read(
    reader: Reader, queue: Queue, start: int, end: int
) -> Iterator[tuple[int, int, Message | None]]:
    """Yield offset, tags code and message of the places in [start, end), whether in the store or in the tail cache."""
    low, stop = max(start, queue.min_offset), min(end, queue.tail_start)
    if low < stop:
        pairs = read_entries(reader, queue.topic_id, queue.queue_id, low, stop - low)
        places = [value[:_PHYSICAL_SIZE] for _, value in pairs]
        messages = read_messages(reader, places)
        for offset, ((_, value), message) in enumerate(zip(pairs, messages, strict=True), low):
            yield offset, int.from_bytes(value[12:20], "big", signed=True), message
    for offset in range(max(start, queue.tail_start), end):
        entry = queue.tail[offset - queue.tail_start]
        yield offset, entry.tags_code, entry.message
