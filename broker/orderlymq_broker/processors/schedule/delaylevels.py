"""
The delay levels: messages wait in queues of the schedule topic and are appended to their own topics when due.

The rules: no message is early by the leader's clock. The copies and the progress of their level are records of one
proposal, so a change of leader neither loses nor repeats a message. A level has only one proposal in progress, so the
next one begins where it ended. Due times do not fall within a level, so only its first waiting message is examined. A
message that was stored by a clock ahead of this one waits its level's delay once more, from when this leader sees it.
A tick passes on many messages, up to a limit for all levels together, which take turns. So no tick takes as long as
an election, even if very much is due after an outage. ``delays.py`` decides how long a message waits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.core.capacity import waiting_end
from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft, properties_of
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.processors.schedule.delays import real_queue
from orderlymq_broker.state.records import DelayProgress, Outcome, Record
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_entries, read_messages
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import (
    QueueEntry,
    decode_queue_entry,
    message_key,
    queue_key,
)
from orderlymq_protocol.message.properties import REAL_TOPIC
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import SCHEDULE_TOPIC

# Messages and bytes that all levels together pass on at a time: about 20 ms of work. With a scan every 100 ms, that is
# ten thousand messages a second, so that a burst of retries is not late.
COUNT_MAX: Final = 1_024
SIZE_MAX: Final = 4 << 20
# Entries of a level that are read first. With thousands waiting, reading all that may be passed on takes a
# millisecond a level.
STEP_MIN: Final = 32


@dataclass(slots=True)
class _Room:
    """The budget of one tick for the messages that it passes on."""

    count: int = COUNT_MAX
    size: int = SIZE_MAX

    def take(self, size: int) -> bool:
        """Take room for a message; return False if there is none. The first message always has room, whatever its size."""
        if not self.count or (size > self.size and self.count < COUNT_MAX):
            self.count = 0
            return False
        self.count -= 1
        self.size -= size

        return True


class DelayService:
    """Passes on delayed messages that are due."""

    def __init__(self, context: Context) -> None:
        self._context = context
        # The due time of a level's first waiting message; 0 if unknown, and corrected when the level is examined.
        self._next_due: dict[int, int] = {}
        # Per level: the offset up to which messages are from a clock ahead, and the monotonic time at which they are
        # passed on.
        self._ahead: dict[int, tuple[int, int]] = {}
        self._wall_ms = 0
        self._next_scan_ms = 0
        # The queue that was served last; the next tick begins after it.
        self._served = -1

    def start(self, now: Now) -> None:
        """Begin to lead: clear the due times, because the levels are not examined yet."""
        self._next_due.clear()
        self._ahead.clear()
        self._next_scan_ms = now.monotonic_ms

    def tick(self, now: Now) -> list[Effect]:
        """Propose the copies of due messages."""
        if now.wall_ms < self._wall_ms:
            # The clock was set back: the known due times may be later than necessary.
            self._next_due.clear()
        self._wall_ms = now.wall_ms
        schedule = self._context.state.topics.get(SCHEDULE_TOPIC)
        end = waiting_end(self._context)
        if schedule is None or not end or now.monotonic_ms < self._next_scan_ms:
            return []
        self._next_scan_ms = now.monotonic_ms + self._context.settings.timers.delay_scan_ms
        effects: list[Effect] = []
        room, served = _Room(), self._served
        for queue_id in sorted(schedule.queues, key=lambda number: (number <= served, number)):
            if not room.count:
                break
            if queue_id in self._context.view.handing_on:
                continue
            queue, start = schedule.queues[queue_id], self._context.state.delay.get(queue_id, 0)
            if start < queue.next_offset and self._next_due.get(queue_id, 0) <= now.wall_ms:
                effects += self._hand_on(queue, start, end, now, room)

        return effects

    def first_waiting(self) -> int | None:
        """Return the physical offset of the oldest message that still waits, or None."""
        schedule = self._context.state.topics.get(SCHEDULE_TOPIC)
        if schedule is None:
            return None
        waiting = []
        for queue_id, queue in schedule.queues.items():
            progress = self._context.state.delay.get(queue_id, 0)
            waiting += [entry.physical for entry in self._entries(queue, progress, 1)]

        return min(waiting, default=None)

    # -- parts -------------------------------------------------------------------------------------

    def _hand_on(self, queue: Queue, start: int, end: int, now: Now, room: _Room) -> list[Effect]:
        due: list[QueueEntry] = []
        self._next_due.pop(queue.queue_id, None)
        first = max(start, queue.min_offset)
        for offset, entry in enumerate(self._waiting(queue, first, room.count), first):
            # In the schedule topic, the tags code is the due time.
            if entry.tags_code > now.wall_ms and self._waits(queue, offset, entry, now):
                break
            if entry.physical >= end or not room.take(entry.size):
                break
            due.append(entry)
        if not due:
            return []
        self._served = queue.queue_id
        counters, handing_on = self._context.counters, self._context.view.handing_on
        records: list[Record | MessageDraft] = []
        drafts = handed_on(self._context, [entry.physical for entry in due])
        if not drafts:
            return []
        for draft in drafts:
            if draft is None:
                counters["delayed_dropped"] += 1
                continue
            records.append(draft)
        count = len(records)
        records.append(DelayProgress(queue.queue_id, start, first + len(drafts)))
        handing_on.add(queue.queue_id)

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            handing_on.discard(queue.queue_id)
            counters["delayed_delivered"] += count
            return []

        def lost(_: Refusal | None) -> list[Effect]:
            handing_on.discard(queue.queue_id)
            return []

        return [Propose(records, applied, lost)]

    def _waits(self, queue: Queue, offset: int, entry: QueueEntry, now: Now) -> bool:
        """Return whether a message with a later due time must still wait, and note until when."""
        level = queue.queue_id
        end, until_ms = self._ahead.get(level, (0, 0))
        if not now.was_ahead(entry.store_timestamp):
            self._next_due[level] = entry.tags_code
            return True
        if offset >= end:
            # Use the delay with which it was stored, because its level may have another delay now.
            until_ms = now.monotonic_ms + entry.tags_code - entry.store_timestamp
            self._ahead[level] = (queue.next_offset, until_ms)
        self._next_due[level] = now.wall_ms + until_ms - now.monotonic_ms

        return until_ms > now.monotonic_ms

    def _waiting(self, queue: Queue, start: int, count: int) -> Iterator[QueueEntry]:
        """Yield at most *count* waiting messages from *start* on; read only a few first, as most ticks find few due."""
        step = STEP_MIN
        while count > 0:
            some = self._entries(queue, start, min(step, count))
            yield from some
            if len(some) < step:
                return
            start, count, step = start + step, count - step, 4 * step

    def _entries(self, queue: Queue, start: int, count: int) -> list[QueueEntry]:
        """Return the waiting messages from *start* on, from memory if they are young enough."""
        start = max(start, queue.min_offset)
        if start >= queue.next_offset:
            return []
        if count == 1 and start >= queue.tail_start:
            tail = queue.tail[start - queue.tail_start]
            return [
                QueueEntry(tail.physical, len(tail.message), tail.tags_code, tail.store_timestamp)
            ]
        count = min(count, queue.next_offset - start)
        pairs = read_entries(self._context.reader, queue.topic_id, queue.queue_id, start, count)

        return [decode_queue_entry(value) for _, value in pairs]


def count_within(context: Context, topic: str, offsets: Sequence[int]) -> int:
    """Return how many of these messages of queue 0 are processed together: as many as fit SIZE_MAX, but at least one."""
    topic_id = context.state.topics.by_name[topic].id
    keys = [queue_key(topic_id, 0, offset) for offset in offsets]
    size = 0
    for count, value in enumerate(context.reader.multi_get(Family.CONSUME_QUEUE, keys)):
        size += 0 if value is None else decode_queue_entry(value).size
        if count and size > SIZE_MAX:
            return count

    return len(offsets)


def handed_on(context: Context, places: Sequence[int]) -> list[MessageDraft | None]:
    """Return the messages at these physical offsets in the form for their target topics, None for those that are gone.

    The list ends before the first message whose topic may lose queues by a proposed change, until that is applied.
    """
    drafts: list[MessageDraft | None] = []
    for stored in read_messages(context.reader, [message_key(each) for each in places]):
        draft = _released(context, stored)
        if draft is not None and draft.topic.name in context.view.fencing:
            break
        drafts.append(draft)

    return drafts


def _released(context: Context, stored: bytes | None) -> MessageDraft | None:
    """Return a message that has waited in the form for its own topic, or None if message or topic is gone."""
    if stored is None:
        return None
    message = decode_record(stored)
    properties = properties_of(message.properties)
    topic = context.state.topics.get(properties.by_name.get(REAL_TOPIC, ""))
    if topic is None:
        return None

    return MessageDraft.of_stored(message, topic, real_queue(topic, properties), properties)
