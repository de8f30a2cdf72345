"""
Reads of a queue for a pull: the messages, the status, and the next offset.

The rules: statuses, codes and next offsets are RocketMQ's (DefaultMessageStore.getMessage). The answer contains the
stored records one after the other, unchanged. The newest messages come from the tail cache in memory. Older ones take
one range read of the consume queue and one multi-get, whichever log entries the messages came with.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.state.topics.rows import TailEntry
from orderlymq_broker.store.consumequeue import read_entries, read_messages
from orderlymq_broker.store.kv import Family, Reader
from orderlymq_broker.store.layout import message_key
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.message.record import record_properties

MESSAGES_MAX: Final = 32  # maxTransferCountOnMessageInMemory
SIZE_MAX: Final = 262_144  # maxTransferBytesOnMessageInMemory
# For readers of whole ranges, which ask for it. The fixed cost of an answer is that of about twenty messages. The
# event loop, which also serves sends, reads this much in about a millisecond.
BULK_MESSAGES_MAX: Final = 512
BULK_SIZE_MAX: Final = 1 << 20
SCAN_MAX: Final = 800  # entries of a queue that one pull looks at when a filter drops most

_PHYSICAL_SIZE: Final = 8

# The work that one pull spends on messages which it must read to know whether they are wanted. A comparison counts 1,
# and so does each _WORK_BYTES bytes of properties. All of it takes about 10 ms.
SCAN_WORK_MAX: Final = 10_000
_WORK_BYTES: Final = 32
# The stored bytes that a pull reads if it must read messages to know whether they are wanted.
SCAN_SIZE_MAX: Final = 4 << 20
# Messages read at a time for that; most pulls find enough in the first read.
_SCAN_STEP: Final = 64


@dataclass(frozen=True, slots=True)
class PropertyTest:
    """A filter that needs the stored properties of a message; *wants* is called with them.

    *cost* is the approximate number of comparisons for one message.
    """

    wants: Callable[[bytes], bool]
    cost: int = 1

    def passes(self, message: bytes | memoryview) -> bool:
        """Return whether a stored message is wanted."""
        return self.wants(record_properties(message))

    def work(self, message: bytes | memoryview) -> int:
        """Return the work of testing a stored message."""
        return self.cost + len(record_properties(message)) // _WORK_BYTES


# Tests whether a message passes, by its tags code or by its properties. None lets everything pass.
Matches = Callable[[int], bool] | PropertyTest


class Reading(NamedTuple):
    """The result of a pull.

    Attributes:
        status: RocketMQ's GetMessageStatus, sent as the remark.
        next_offset: the offset at which the consumer is to continue.
        messages: stored records, in order.
        work: the work spent on messages that had to be read to know whether they are wanted.
    """

    code: int
    status: str
    next_offset: int
    min_offset: int
    max_offset: int
    messages: list[bytes | memoryview]
    work: int = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the consumer has all messages there are, so that waiting makes sense."""
        return self.code == ResponseCode.PULL_NOT_FOUND


def read_queue(
    reader: Reader,
    queue: Queue | None,
    offset: int,
    *,
    count_max: int = MESSAGES_MAX,
    size_max: int = SIZE_MAX,
    matches: Matches | None = None,
    bulk: bool = False,
) -> Reading:
    """Read from *offset*; *queue* is None if nothing was ever written to it."""
    if queue is None or queue.next_offset == 0:
        if offset == 0:
            return Reading(ResponseCode.PULL_NOT_FOUND, "NO_MESSAGE_IN_QUEUE", 0, 0, 0, [])
        return Reading(ResponseCode.PULL_OFFSET_MOVED, "NO_MESSAGE_IN_QUEUE", 0, 0, 0, [])
    low, high = queue.min_offset, queue.next_offset
    if offset < low:
        return Reading(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", low, low, high, [])
    if offset == high:
        return Reading(ResponseCode.PULL_NOT_FOUND, "OFFSET_OVERFLOW_ONE", high, low, high, [])
    if offset > high:
        return Reading(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_OVERFLOW_BADLY", high, low, high, [])

    count_max = max(1, min(count_max, BULK_MESSAGES_MAX if bulk else MESSAGES_MAX))
    size_max = max(1, min(size_max, BULK_SIZE_MAX if bulk else SIZE_MAX))
    work = 0
    if offset >= queue.tail_start:
        next_offset, messages, work = _read_tail(queue, offset, count_max, size_max, matches)
    elif isinstance(matches, PropertyTest):
        next_offset, messages, work = _search_store(
            reader, queue, offset, count_max, size_max, matches
        )
    else:
        next_offset, messages = _read_store(reader, queue, offset, count_max, size_max, matches)
    if messages:
        return Reading(ResponseCode.SUCCESS, "FOUND", next_offset, low, high, messages, work)
    status = "NO_MATCHED_MESSAGE" if matches is not None else "MESSAGE_WAS_REMOVING"

    return Reading(ResponseCode.PULL_RETRY_IMMEDIATELY, status, next_offset, low, high, [], work)


def is_wanted(matches: Matches, entry: TailEntry) -> bool:
    """Return whether a message in memory passes."""
    if isinstance(matches, PropertyTest):
        return matches.passes(entry.message)

    return matches(entry.tags_code)


def _read_tail(
    queue: Queue, offset: int, count_max: int, size_max: int, matches: Matches | None
) -> tuple[int, list[bytes | memoryview], int]:
    position = offset - queue.tail_start
    messages: list[bytes | memoryview] = []
    size = work = 0
    limit = count_max if matches is None else SCAN_MAX
    for entry in queue.tail.part(position, position + limit):
        if len(messages) == count_max or work >= SCAN_WORK_MAX:
            break
        if isinstance(matches, PropertyTest):
            work += matches.work(entry.message)
        if matches is None or is_wanted(matches, entry):
            message = entry.message
            size += len(message)
            if messages and size > size_max:
                break
            messages.append(message)
        offset += 1

    return offset, messages, work


def _read_store(
    reader: Reader,
    queue: Queue,
    offset: int,
    count_max: int,
    size_max: int,
    matches: Callable[[int], bool] | None,
) -> tuple[int, list[bytes | memoryview]]:
    limit = count_max if matches is None else SCAN_MAX
    keys: list[bytes] = []
    size = 0
    for _, value in _entries(reader, queue, offset, limit):
        if len(keys) == count_max:
            break
        if matches is None or matches(int.from_bytes(value[12:20], "big", signed=True)):
            size += int.from_bytes(value[8:12], "big")
            if keys and size > size_max:
                break
            keys.append(value[:_PHYSICAL_SIZE])
        offset += 1
    found = read_messages(reader, keys)

    # A message may be gone although its queue entry still exists: retention trims the queues first,
    # but the read of a slow reader must not fail because of that.
    return offset, [message for message in found if message is not None]


def _search_store(
    reader: Reader,
    queue: Queue,
    offset: int,
    count_max: int,
    size_max: int,
    test: PropertyTest,
) -> tuple[int, list[bytes | memoryview], int]:
    """Read messages and keep those that pass, until there are enough or the budget is spent."""
    entries = _entries(reader, queue, offset, SCAN_MAX)
    messages: list[bytes | memoryview] = []
    size = looked = work = at = 0
    while at < len(entries) and looked < SCAN_SIZE_MAX and work < SCAN_WORK_MAX:
        keys: list[bytes] = []
        for _, value in entries[at : at + _SCAN_STEP]:
            if keys and looked >= SCAN_SIZE_MAX:
                break
            keys.append(value[:_PHYSICAL_SIZE])
            looked += int.from_bytes(value[8:12], "big")
        for message in read_messages(reader, keys):
            if work >= SCAN_WORK_MAX:
                return offset + at, messages, work
            work += test.work(message) if message is not None else 1
            if message is not None and test.passes(message):
                size += len(message)
                if messages and size > size_max:
                    return offset + at, messages, work
                messages.append(message)
            at += 1
            if len(messages) == count_max:
                return offset + at, messages, work

    return offset + at, messages, work


def _entries(reader: Reader, queue: Queue, start: int, limit: int) -> list[tuple[bytes, bytes]]:
    count = min(limit, queue.next_offset - start)

    return read_entries(reader, queue.topic_id, queue.queue_id, start, count)


def read_applied(context: Context, physical: int) -> bytes | None:
    """Return the stored message at *physical*, or None if no applied message is there."""
    is_applied = 0 <= physical < context.state.physical_end

    return read_message(context.reader, physical) if is_applied else None


def read_message(reader: Reader, physical: int) -> bytes | None:
    """Return the stored record at a physical offset, or None if there is none."""
    if physical < 0:
        return None

    return reader.get(Family.MESSAGES, message_key(physical))
