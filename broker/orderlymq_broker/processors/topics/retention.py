"""
Retention: which messages are removed by age or size, and which sends the duplicate window forgets.

The rules: the leader decides and writes records. Queues are trimmed first, and the messages once that is applied, so
that a reader never finds a queue entry without its message. Messages that still wait for their delay or the end of
their transaction are kept. So are messages that a lane owes, even if it came to owe them after the round began: apply
does not trim their queue further. A round consists of small steps, one per tick, for any number of queues.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

from orderlymq_broker.core.effects import Effect, Now, Propose, Refusal
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.state.records import DedupTrimmed, Outcome, QueueFloor, RetentionAdvanced
from orderlymq_broker.state.topics.queues import Queue
from orderlymq_broker.store.consumequeue import read_places
from orderlymq_broker.store.kv import Family
from orderlymq_broker.store.layout import (
    decode_queue_entry,
    decode_u64,
    message_key,
)
from orderlymq_protocol.message.record import decode_record

QUEUES_PER_TICK: Final = 32  # about 20 reads each
# Half messages in one entry that are removed with their messages, at about 5 us each on every replica.
HALVES_PER_TICK: Final = 1_024
# Sends that the duplicate window forgets in one step, at less than 1 us each: more than arrive meanwhile.
SENDS_PER_TICK: Final = 4_096
# Queues of groups whose owed messages one tick checks, with one read each.
OWED_PER_TICK: Final = 512
# The floor moves by at least this much; otherwise every round would write a record for a few messages.
STEP_SIZE_MIN: Final = 1 << 20
# If less than a few MiB are kept, a step is this part of the limit, so that tests need not run long.
STEPS_PER_SIZE: Final = 8
# How much of the log, from its floor on, may be passed on while the disk is full, before the next round frees it. It
# is far less than the room between the full mark and the end of the disk.
HELD_SIZE: Final = 16 << 20

_FIRST_KEY: Final = message_key(0)
_KEYS_END: Final = b"\xff" * 9


class RetentionService:
    """Advances the floors of the log, of the queues and of the duplicate window."""

    def __init__(
        self,
        context: Context,
        waiting: Sequence[Callable[[], int | None]] = (),
        owed: Callable[[], Iterator[int | None]] = lambda: iter(()),
    ) -> None:
        """Each of *waiting* returns the physical offset of the oldest message that must stay, or None; *owed* yields many."""
        self._context = context
        self._waiting = waiting
        self._owed = owed
        # While a round begins: what is left to check, and the oldest owed message found so far.
        self._looking: Iterator[int | None] | None = None
        self._first_owed: int | None = None
        self._next_round_ms = 0
        self._next_trim_ms = 0
        self._floor = 0
        self._outlived = 0
        self._round: Iterator[Queue] | None = None
        # The number of this round's trims that are proposed but not applied.
        self._trims = 0
        # Whether a trim of the duplicate window is proposed but not applied.
        self._window_trims = False

    def start(self, now: Now) -> None:
        """Begin to lead; a round that another leader did not finish starts over."""
        self._round = self._looking = None
        self._window_trims = False
        self._next_round_ms = self._next_trim_ms = now.monotonic_ms

    def look_now(self, now: Now) -> None:
        """Begin a round with the next tick, or when the present one has ended."""
        self._next_round_ms = now.monotonic_ms

    def tick(self, now: Now) -> list[Effect]:
        """Do one step of a round, or begin a round if it is due."""
        storage = self._context.settings.storage
        effects = self._trim_window(self._context.ages.certain(now, storage.dedup_window_ms))
        if self._round is None:
            if self._looking is None:
                if now.monotonic_ms < self._next_round_ms:
                    return effects
                scan_ms = self._context.settings.timers.retention_scan_ms
                self._next_round_ms = now.monotonic_ms + scan_ms
                self._looking, self._first_owed = self._owed(), None
            if not self._look_on(self._looking):
                return effects
            self._looking = None
            self._outlived = self._context.ages.outlived(now, storage.retention_ms)
            self._floor = self.find_floor(
                self._context.ages.certain(now, storage.retention_ms).wall_ms
            )
            if not self._floor:
                return effects
            self._round = self._queues()
            self._trims = 0

        return effects + self._step(self._round)

    def find_floor(self, wall_ms: int) -> int:
        """Return the physical offset below which messages are to be removed, or 0 if it is not worth it.

        Also note the messages that keep others from being removed, for the services that pass them on while the disk
        is full.
        """
        state, storage = self._context.state, self._context.settings.storage
        floor = max(
            self._outlived, self._first_from(state.oldest_kept_ms(wall_ms, storage.retention_ms))
        )
        if storage.retention_size is not None:
            floor = max(floor, self._boundary(state.physical_end - storage.retention_size))
        oldest = (self._first_owed, *(oldest() for oldest in self._waiting))
        waiting = min([each for each in oldest if each is not None], default=floor)
        self._context.held_end = waiting + HELD_SIZE if waiting < floor else 0
        floor = min(floor, waiting)
        everything = floor == state.physical_end
        step = STEP_SIZE_MIN
        if storage.retention_size is not None:
            step = min(step, storage.retention_size // STEPS_PER_SIZE)
        if floor <= state.floor or (floor - state.floor < step and not everything):
            return 0

        return floor

    def _look_on(self, looking: Iterator[int | None]) -> bool:
        """Check what lanes owe in a few more queues; return whether these were the last."""
        some = list(islice(looking, OWED_PER_TICK))
        known = [each for each in (self._first_owed, *some) if each is not None]
        self._first_owed = min(known, default=None)

        return len(some) < OWED_PER_TICK

    def _queues(self) -> Iterator[Queue]:
        """Yield the queues of the topics that exist now; listing them all would take about 50 ms with 40,000 topics."""
        topics = self._context.state.topics.by_id
        for topic_id in list(topics):
            topic = topics.get(topic_id)
            for queue in [] if topic is None else list(topic.queues.values()):
                # The topic, with its entries, was deleted since the last step.
                if topic_id not in topics:
                    break
                yield queue

    # -- steps -------------------------------------------------------------------------------------

    def _step(self, queues: Iterator[Queue]) -> list[Effect]:
        step = list(islice(queues, QUEUES_PER_TICK))
        floors = tuple(
            QueueFloor(queue.topic_id, queue.queue_id, min_offset)
            for queue in step
            if (min_offset := self._queue_floor(queue)) > queue.min_offset
        )
        if floors:
            return [self._trim(queues, floors)]
        if step or self._trims:
            return []
        state = self._context.state
        # The last records of the round remove the messages, and the half messages that were given up and not resumed.
        floor = state.transactions.floor_up_to(self._floor, HALVES_PER_TICK)
        if floor <= state.floor:
            self._round = None
            return []

        return [self._trim(queues, (), floor)]

    def _trim(
        self, this_round: Iterator[Queue], floors: tuple[QueueFloor, ...], floor: int = 0
    ) -> Propose:
        """Propose to trim queues or the log; messages are removed no further than the queues were trimmed."""
        self._trims += 1

        def applied(_: Sequence[Outcome], __: Now) -> list[Effect]:
            if self._round is this_round:
                self._trims -= 1
                for each in floors:
                    self._keep(each)
            return []

        def lost(_: Refusal | None) -> list[Effect]:
            if self._round is this_round:
                self._round = None
            return []

        return Propose([RetentionAdvanced(floors, floor)], applied, lost)

    def _keep(self, floor: QueueFloor) -> None:
        """Keep the messages of a queue that lanes came to owe after the round began."""
        topic = self._context.state.topics.by_id.get(floor.topic_id)
        queue = topic.queues.get(floor.queue_id) if topic is not None else None
        if queue is not None and queue.min_offset < floor.min_offset:
            self._floor = min(self._floor, self._physical(queue, queue.min_offset))

    def _queue_floor(self, queue: Queue) -> int:
        """Return the first offset of the queue whose message stays."""
        low, high = queue.min_offset, queue.next_offset
        if low == high or self._physical(queue, low) >= self._floor:
            return low

        return bisect_left(
            range(high), self._floor, lo=low, key=lambda at: self._physical(queue, at)
        )

    def _physical(self, queue: Queue, offset: int) -> int:
        if offset >= queue.tail_start:
            return queue.tail[offset - queue.tail_start].physical
        (value,) = read_places(self._context.reader, queue.topic_id, queue.queue_id, (offset,))

        return decode_queue_entry(value).physical

    # -- the floor of the log ----------------------------------------------------------------------

    def _first_from(self, wall_ms: int) -> int:
        """Return the physical offset of the first message not older than *wall_ms*, otherwise the end.

        Store times ascend along the log, except for the few ms by which queues may differ. Each step goes to the end
        or the beginning of a message; if it went by bytes, most steps would read the same large message again.
        """
        low, high = self._context.state.floor, self._context.state.physical_end
        while low < high:
            middle = (low + high) // 2
            begin, end, stored_ms = self._message_over(middle)
            if stored_ms < wall_ms:
                low = max(end, middle + 1)
            else:
                high = min(begin, middle)

        return low

    def _message_over(self, physical: int) -> tuple[int, int, int]:
        """Return where the message that contains the byte at *physical* begins and ends, and its store time."""
        pairs = self._context.reader.scan(
            Family.MESSAGES, _FIRST_KEY, message_key(physical + 1), limit=1, reverse=True
        )
        if not pairs:
            return physical, physical + 1, 0
        begin = decode_u64(pairs[0][0])

        return begin, begin + len(pairs[0][1]), decode_record(pairs[0][1]).store_timestamp

    def _boundary(self, physical: int) -> int:
        """Return the first message boundary at or after *physical*."""
        if physical <= self._context.state.floor:
            return 0
        start = message_key(physical)
        pairs = self._context.reader.scan(Family.MESSAGES, start, _KEYS_END, limit=1)
        end = self._context.state.physical_end

        return min(end, decode_u64(pairs[0][0])) if pairs else end

    # -- the duplicate window ----------------------------------------------------------------------

    def _trim_window(self, now: Now) -> list[Effect]:
        # The floor is known from the applied state only: while nothing commits, the same floor would be proposed
        # again and again.
        if self._window_trims or now.monotonic_ms < self._next_trim_ms:
            return []
        storage, state = self._context.settings.storage, self._context.state
        floor, is_last = state.dedup.floor(
            count_max=storage.dedup_window_count,
            oldest_ms=state.oldest_kept_ms(now.wall_ms, storage.dedup_window_ms),
            most=SENDS_PER_TICK,
        )
        if is_last:
            self._next_trim_ms = now.monotonic_ms + self._context.settings.timers.scan_ms

        if not floor:
            return []
        self._window_trims = True

        def ended(*_: object) -> list[Effect]:
            self._window_trims = False
            return []

        return [Propose([DedupTrimmed(floor)], applied=ended, lost=ended)]
