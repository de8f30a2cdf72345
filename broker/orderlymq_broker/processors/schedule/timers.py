"""
Timer messages: each waits for its own time, which its sender has named with RocketMQ 5's properties.

The rules: no message is early by the leader's clock, to the millisecond (RocketMQ rounds down to a second).
A copy and the end of its timer are records of one proposal, so a change of leader neither loses nor
repeats a message. Messages with the same time keep the order in which they were sent. A message that cancels another is
stored like a timer itself, because its sender wants an answer, and is not delivered when its time comes.
``wait_of`` reads the properties; ``delaylevels.py`` handles messages that wait for a level.
"""

from collections.abc import Sequence
from typing import Final

from orderlymq_broker.core.capacity import waiting_end
from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.core.messagedraft import MessageDraft
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.core.uncommitted import LeaderView
from orderlymq_broker.processors.fetch.read import read_message
from orderlymq_broker.processors.schedule.delaylevels import COUNT_MAX, count_within, handed_on
from orderlymq_broker.state.records import Append, Outcome, Record
from orderlymq_broker.state.schedule.timerrecords import TimerRef, TimersEnded
from orderlymq_broker.state.schedule.timers import decode_timer
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import (
    IndexKind,
    Table,
    decode_u64,
    index_prefix,
    message_key,
    prefix_end,
    table_bounds,
    table_key,
)
from orderlymq_protocol.message.properties import (
    REAL_QID,
    REAL_TOPIC,
    TIMER_DEL_UNIQKEY,
    UNIQ_KEY,
    decode_properties,
)
from orderlymq_protocol.message.record import decode_record
from orderlymq_protocol.names import TIMER_TOPIC

# While nothing is committed, no more than these are proposed, because each scan reads them again, in a few ms.
ENDING_MAX: Final = 2 * COUNT_MAX
# The messages, and their bytes, that one cancellation reads: copies of one message with the same unique key.
CANCEL_SCAN_MAX: Final = 32
CANCEL_SIZE_MAX: Final = 16 << 20


class TimerService:
    """Passes on timer messages that are due, and cancels them before."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._next_scan_ms = 0
        self._wall_ms = 0
        # No timer is due before `_first_ms`. A new timer is due after `_seen_ms`, or lowers `_first_ms`. Without
        # these limits, each scan would pass the remains of all deleted rows.
        self._first_ms = 0
        self._seen_ms = 0
        # How often `_first_ms` was lowered: if it was lowered after a scan, that scan is no longer complete.
        self._lowered = 0
        # No timer waits before this place in the timer topic; the reason is the same.
        self._first_place = 0

    def start(self, now: Now) -> None:
        """Begin to lead: reset the limits, because the timers are not examined yet."""
        self._look_from(0)
        self._wall_ms = now.wall_ms
        self._next_scan_ms = now.monotonic_ms

    def tick(self, now: Now) -> list[Effect]:
        """Propose the copies of due messages."""
        context = self._context
        if now.wall_ms < self._wall_ms:
            # The clock was set back: a timer opened now may be due before those already seen.
            self._look_from(0)
        self._wall_ms = now.wall_ms
        end = waiting_end(context)
        if not context.state.timers.count or not end or now.monotonic_ms < self._next_scan_ms:
            return []
        self._next_scan_ms = now.monotonic_ms + context.settings.timers.delay_scan_ms
        if len(context.view.timers_ending) >= ENDING_MAX:
            return []
        if context.disk_full:
            due, whole = self._holding(end, now.wall_ms), False
        else:
            due, whole = self._due(now.wall_ms)
        if not due:
            return []

        first_ms = min(self._seen_ms, now.wall_ms) if whole else self._first_ms
        return self._hand_on(due, now, first_ms)

    def appended(self, records: Sequence[Append]) -> None:
        """Note stored messages: a large batch is proposed late, when its first messages may already be due."""
        if not self._seen_ms:
            return
        topic_id = self._context.state.topics.by_name[TIMER_TOPIC].id
        first_ms = min(
            (record.tags_code for record in records if record.topic_id == topic_id),
            default=self._seen_ms,
        )
        if first_ms < self._seen_ms:
            self._look_from(first_ms)

    def first_waiting(self) -> int | None:
        """Return the physical offset of the oldest message that still waits, or None."""
        first = self._waiting_from_first(1)

        return first[0].physical if first else None

    def cancelled(self, topic: str, unique_key: str, wall_ms: int) -> TimersEnded | None:
        """Return the record that cancels timers of a topic, or None if none waits under this key."""
        ending = self._context.view.timers_ending
        waiting, _ = self.waiting(topic, unique_key)
        found = [timer for timer in waiting if timer.offset not in ending]

        return self.cancel(found, wall_ms) if found else None

    def cancel(self, timers: list[TimerRef], wall_ms: int) -> TimersEnded:
        """Return the record that cancels these timers at *wall_ms*; its proposer calls ``ended``."""
        self._context.view.timers_ending.update(timer.offset for timer in timers)
        self._context.view.taken_back.update((timer.physical, wall_ms) for timer in timers)
        self._context.counters["timers_cancelled"] += len(timers)

        return TimersEnded(tuple(timers), cancelled=True)

    def waiting(self, topic: str, unique_key: str) -> tuple[list[TimerRef], bool]:
        """Return the applied timers of a topic under a unique key, and whether these are all.

        Timers that are ending are among them; if there are too many messages, only the newest are read.
        """
        context = self._context
        prefix = index_prefix(
            context.state.topics.by_name[TIMER_TOPIC].id, IndexKind.UNIQUE, unique_key
        )
        kept = prefix + message_key(context.state.floor)
        found: list[TimerRef] = []
        size = 0
        pairs = context.reader.scan(
            Family.KEY_INDEX, kept, prefix_end(prefix), limit=CANCEL_SCAN_MAX + 1, reverse=True
        )
        for key, _ in pairs[:CANCEL_SCAN_MAX]:
            if size >= CANCEL_SIZE_MAX:
                return found, False
            stored = read_message(context.reader, decode_u64(key[-8:]))
            if stored is None:
                continue
            size += len(stored)
            message = decode_record(stored)
            by_name = decode_properties(message.properties)
            row = context.reader.get(
                Family.TABLES, table_key(Table.TIMER_PLACES, message.queue_offset)
            )
            if (
                row is not None
                and by_name.get(UNIQ_KEY) == unique_key
                and by_name.get(REAL_TOPIC) == topic
                and TIMER_DEL_UNIQKEY not in by_name
            ):
                found.append(decode_timer(row))

        return found, len(pairs) <= CANCEL_SCAN_MAX

    @staticmethod
    def ended(record: TimersEnded, view: LeaderView) -> None:
        """Clear the marks of timers whose end was proposed under *view*."""
        view.timers_ending.difference_update(timer.offset for timer in record.timers)
        for timer in record.timers:
            view.taken_back.pop(timer.physical, None)

    # -- parts -------------------------------------------------------------------------------------

    def _look_from(self, due_ms: int) -> None:
        """Make the next scan begin at *due_ms* at the latest."""
        self._first_ms = min(self._first_ms, due_ms)
        self._seen_ms = min(self._seen_ms, due_ms)
        self._lowered += 1

    def _waiting_from_first(self, limit: int) -> list[TimerRef]:
        """Return waiting timers in the order of their places, the oldest first."""
        state = self._context.state
        if not state.timers.count:
            queue = state.topics.by_name[TIMER_TOPIC].queues.get(0)
            self._first_place = 0 if queue is None else queue.next_offset
            return []
        start = table_key(Table.TIMER_PLACES, self._first_place)
        _, end = table_bounds(Table.TIMER_PLACES)
        pairs = self._context.reader.scan(Family.TABLES, start, end, limit=limit)
        found = [decode_timer(value) for _, value in pairs]
        self._first_place = found[0].offset

        return found

    def _holding(self, end: int, wall_ms: int) -> list[TimerRef]:
        """Return the due timers that keep the floor of the log below *end*, in the order of their times.

        They overtake other due timers, because storing all of those first would take the room that is left.
        """
        ending = self._context.view.timers_ending
        found: list[TimerRef] = []
        for timer in self._waiting_from_first(COUNT_MAX + len(ending)):
            if timer.physical >= end or timer.due_ms > wall_ms:
                break
            if timer.offset not in ending and len(found) < COUNT_MAX:
                found.append(timer)

        return sorted(found, key=lambda timer: (timer.due_ms, timer.offset))

    def _due(self, until_ms: int) -> tuple[list[TimerRef], bool]:
        """Return the timers due until then, in the order of their times, and whether these are all.

        Timers that are ending may be cancelled ones that are due later; they make no room for more.
        """
        ending = self._context.view.timers_ending
        limit = COUNT_MAX + len(ending)
        pairs = self._context.reader.scan(
            Family.TABLES,
            table_key(Table.TIMERS, self._first_ms),
            table_key(Table.TIMERS, until_ms + 1),
            limit=limit,
        )
        timers = [decode_timer(value) for _, value in pairs]
        due = [timer for timer in timers if timer.offset not in ending]

        return due[:COUNT_MAX], len(pairs) < limit and len(due) <= COUNT_MAX

    def _hand_on(self, due: list[TimerRef], now: Now, first_ms: int) -> list[Effect]:
        context = self._context
        view = context.view
        records: list[Record | MessageDraft] = []
        ended = due[: count_within(context, TIMER_TOPIC, [timer.offset for timer in due])]
        drafts = handed_on(context, [timer.physical for timer in ended])
        if not drafts:
            return []
        del ended[len(drafts) :]
        for draft in drafts:
            if draft is None:
                context.counters["timers_dropped"] += 1
            elif TIMER_DEL_UNIQKEY not in draft.properties.by_name:
                draft.properties.drop(REAL_TOPIC, REAL_QID)
                records.append(draft)
        end = TimersEnded(tuple(ended))
        view.timers_ending.update(timer.offset for timer in ended)
        delivered = len(records)
        all_due = len(ended) == len(due)
        lowered = self._lowered

        def settled() -> list[Effect]:
            self.ended(end, view)
            return []

        def lost(_: Refusal | None) -> list[Effect]:
            self._look_from(0)
            return settled()

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            context.counters["timers_delivered"] += delivered
            # Everything proposed before this is applied; what comes later is due later, or is reported.
            if self._lowered == lowered:
                self._seen_ms = now.wall_ms
                if all_due:
                    self._first_ms = first_ms
            return settled()

        return [Propose([*records, end], applied, lost)]
