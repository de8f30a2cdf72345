"""
Reading for lanes: messages of a queue in order, single ones by offset, and the runs of a lane's index.

The rules: a step reads so much and no more; what retention has taken is passed over; a key is the text of a property,
and one that is too long is known by its first characters and a digest of all of it.
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

# Messages that one step looks at in all queues of a topic, and their bytes: some 10 ms of the leader's loop.
SCAN_MAX: Final = 4_096
SCAN_SIZE_MAX: Final = 4 << 20
# Messages read from the store at a time, at least and at most.
_STEP_MIN: Final = 16
_STEP: Final = 128
_PHYSICAL_SIZE: Final = 8
_KEY_SHOWN: Final = 128
_DIGEST_SIZE: Final = 16

Message = bytes | memoryview


@dataclass(slots=True)
class Budget:
    """Budget that is left for one step: messages, their bytes, and the work of testing their properties, as of a pull."""

    messages: int = SCAN_MAX
    size: int = SCAN_SIZE_MAX
    work: int = SCAN_WORK_MAX

    def is_spent(self) -> bool:
        """Return whether the rest is for the next step."""
        return self.messages <= 0 or self.size <= 0 or self.work <= 0


class Seen(NamedTuple):
    """One place of a queue: its offset, and the message that is wanted, else None."""

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

    As many are read at a time as there is *room* for lanes, and more where those before have taken none.
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
    """Return the messages at these offsets; None for what is gone."""
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
    """Return the physical offset of a message of a queue, None when it is gone."""
    if queue.tail_start <= offset < queue.next_offset:
        return queue.tail[offset - queue.tail_start].physical
    if not queue.min_offset <= offset < queue.next_offset:
        return None
    (value,) = read_places(reader, queue.topic_id, queue.queue_id, (offset,))

    return decode_queue_entry(value).physical


def runs_at(
    reader: Reader, place: tuple[str, str, int], lane: int, first: int
) -> tuple[tuple[int, ...], int]:
    """Return what a lane's index has from the run on that begins at an offset, whole runs and no more than one may have.

    Also where the next one begins, -1 without one. A scan from the beginning of the index would go over the remains of all
    runs that have left it.
    """
    _, end = table_bounds(Table.LANE_OFFSETS, *place, lane)
    start = table_key(Table.LANE_OFFSETS, *place, lane, first)

    def read(limit: int) -> list[tuple[int, ...]]:
        pairs = reader.scan(Family.TABLES, start, end, limit=limit)
        return [msgspec.msgpack.decode(value, type=tuple[int, ...]) for _, value in pairs]

    runs = read(2)
    if len(runs) > 1 and len(runs[0]) + len(runs[1]) <= RUN_MAX:
        # Each scan that finds messages of a busy lane makes a run of them, be it of a single one.
        runs = read(RUN_MAX + 1)
    offsets: tuple[int, ...] = ()
    for run in runs:
        if len(offsets) + len(run) > RUN_MAX:
            return offsets, run[0]
        offsets += run

    return offsets, -1


def key_of(message: Message, name: str) -> str:
    """Return the key of a message's lane, empty when it has none."""
    return lane_key(find_property(record_properties(message), name) or "")


def lane_key(key: str) -> str:
    """Return what the lane of a key is known by: the key, or its beginning and a digest when it is very long."""
    data = key.encode()
    if len(data) <= KEY_BYTES_MAX:
        return key

    return f"{key[:_KEY_SHOWN]}~{blake2b(data, digest_size=_DIGEST_SIZE).hexdigest()}"


def _wants(matches: Matches | None, code: int, message: Message, budget: Budget) -> bool:
    """Return whether a message passes; the budget pays for the look at it."""
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
    """Yield offset, tags code and message of the places of [start, end), be they stored or in the tail."""
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
