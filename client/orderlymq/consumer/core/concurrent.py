"""
The concurrent consumer: many listener calls per queue, and how far the queue is done.

Rules, each of them tested: the committed offset is the lowest that is not finished, over all batches of the queue. A
failed message is given back to the broker. It counts as finished if the broker took it; otherwise it is tried again
here. A queue that was lost commits nothing any more. A message that stays in a listener longer than the time-out is
given back.

Pure: `handle(event, now_ms)` returns instructions for the shell (`push`). Unlike `ordered`, this core does not keep the
order.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, assert_never

from orderlymq.consumer.core.events import (
    Assigned,
    Closing,
    ConcurrentResult,
    Deliver,
    DeliveryDropped,
    Event,
    Instruction,
    ListenerDone,
    ListenerStarted,
    LocksAnswered,
    LocksFailed,
    OffsetIllegal,
    OffsetsReset,
    Paused,
    Persist,
    Pulled,
    PullFailed,
    Release,
    Released,
    Resumed,
    SendBack,
    SendBackResult,
    SetOffset,
    StartFailed,
    StartFound,
    Tick,
)
from orderlymq.consumer.core.flowcontrol import FlowLimits
from orderlymq.consumer.core.queues import AssignedQueue, AssignedQueues
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue

LOCAL_RETRY_MS: Final = (
    5_000  # as in RocketMQ: a message that the broker did not take back is tried here again
)
EXPIRED_LEVEL: Final = 3  # as in RocketMQ: delay level of messages kept too long by a listener
EXPIRED_PER_PASS: Final = 16  # as in RocketMQ: at most so many of them per queue and pass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrentRules:
    """Settings of the core; times in milliseconds."""

    batch_max: int = 1
    pull_interval_ms: int = 0
    timeout_ms: int = 15 * 60_000
    broadcasting: bool = False
    limits: FlowLimits = field(default_factory=FlowLimits)


@dataclass(slots=True)
class Batch:
    """Messages that were handed to a worker."""

    messages: tuple[ReceivedMessage, ...]
    started_ms: int | None = None
    expired: bool = False


@dataclass(slots=True)
class QueueState(AssignedQueue):
    """One assigned queue."""

    batches: dict[int, Batch] = field(default_factory=dict)
    returning: set[int] = field(default_factory=set)  # offsets that are being given back
    retry_at_ms: dict[int, int] = field(default_factory=dict)  # when offsets are tried here again
    expire_at_ms: int | None = None  # when to look for batches that a listener has not finished


class ConcurrentConsumer(AssignedQueues[QueueState]):
    """All queues of one concurrent consumer."""

    def __init__(self, group: str, rules: ConcurrentRules) -> None:
        super().__init__(group)
        self._rules = rules
        self._running: set[int] = set()  # deliveries that a worker runs, of any generation

    # -- what the shell asks

    @property
    def is_idle(self) -> bool:
        """Whether no listener runs and no queue remains to be given back."""
        return not self._queues and not self._running and not self._releasing

    def maybe_start(self, deliver: Deliver, _now_ms: int) -> bool:
        """Return whether a delivery that has got a worker may still call the listener."""
        state = self._current(deliver.queue, deliver.generation)
        return state is not None and not self._closing and not self._paused

    def holds(self, queue: MessageQueue, generation: int, _now_ms: int) -> bool:
        """Return whether the queue is still assigned to this member."""
        return self._current(queue, generation) is not None

    # -- what happens

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:  # noqa: C901, PLR0912 - one arm per event of a closed union
        """Handle one event and return the instructions, in their order."""
        match event:
            case Assigned():
                self._assign(event)
            case StartFound():
                self._start_found(event)
            case StartFailed():
                self._start_failed(event, now_ms)
            case Pulled():
                self._pulled(event, now_ms)
            case PullFailed():
                state = self._current(event.queue, event.generation)
                if state is not None:
                    self._out += state.fetcher.fail(event.reason, now_ms)
            case OffsetIllegal():
                self._offset_illegal(event)
            case ListenerStarted():
                state = self._current(event.queue, event.generation)
                self._running.add(event.delivery)
                if state is not None and event.delivery in state.batches:
                    state.batches[event.delivery].started_ms = now_ms
                    if state.expire_at_ms is None and not self._rules.broadcasting:
                        state.expire_at_ms = now_ms + self._rules.timeout_ms
            case ListenerDone():
                self._listener_done(event)
            case DeliveryDropped():
                self._delivery_dropped(event)
            case SendBackResult():
                self._sent_back(event, now_ms)
            case Released():
                self._releasing.discard(event.queue)
                if event.queue in self._wanted - self._queues.keys():
                    self._queues[event.queue] = QueueState(
                        event.queue, self._new_fetcher(event.queue)
                    )
            case OffsetsReset():
                self._offsets_reset(event)
            case Paused():
                self._paused = True
            case Resumed():
                self._paused = False
            case Closing():
                self._closing = True
                self._close()
            case Tick() | LocksAnswered() | LocksFailed():
                pass
            case _:
                assert_never(event)
        self._advance(self._concerned(event), now_ms)
        return self._instructions()

    # -- assignment

    def _assign(self, event: Assigned) -> None:
        wanted = self._wanted = frozenset() if self._closing else event.queues
        for queue in sorted(self._queues.keys() - wanted):
            self._leave(self._queues[queue])
        for queue in sorted(wanted - self._queues.keys() - self._releasing):
            self._queues[queue] = QueueState(queue, self._new_fetcher(queue))
        self._topic_queues = Counter(queue.topic for queue in wanted)

    def _leave(self, state: QueueState) -> None:
        del self._queues[state.queue]
        self._wakes.pop(state.queue, None)
        self._stop_pull(state)
        self._releasing.add(state.queue)
        self._out.append(Release(state.queue, None, commit=state.dirty, unlock=False))

    def _close(self) -> None:
        """Stop pulling; a queue leaves as soon as no listener has a batch of it."""
        self._wanted = frozenset()
        for state in self._queues.values():
            self._stop_pull(state)

    def _restart(self, state: QueueState, offset: int) -> None:
        self._stop_pull(state)
        state.fetcher = self._new_fetcher(state.queue, offset)
        state.batches, state.returning, state.retry_at_ms = {}, set(), {}
        state.committed, state.dirty = offset, True
        self._out.append(SetOffset(state.queue, offset, None, increase_only=False))
        self._out.append(Persist(state.queue, None))

    def _offset_illegal(self, event: OffsetIllegal) -> None:
        state = self._current(event.queue, event.generation)
        if state is None:
            return
        self._report(
            "warning", f"the pull request offset illegal, {state.queue} {state.fetcher.next_offset}"
        )
        self._restart(state, event.next_offset)
        self._report("warning", f"fix the pull request offset, {state.queue} {event.next_offset}")

    def _offsets_reset(self, event: OffsetsReset) -> None:
        for queue, offset in sorted(event.offsets.items()):
            state = self._queues.get(queue)
            if state is not None:
                self._restart(state, offset)

    # -- start and pulls

    def _start_found(self, event: StartFound) -> None:
        state = self._current(event.queue, event.generation)
        if state is not None:
            state.finding = False
            state.fetcher.next_offset = event.offset
            state.committed = event.offset
            self._report("info", f"doRebalance, {self._group}, add a new mq, {event.queue}")

    def _pulled(self, event: Pulled, now_ms: int) -> None:
        state = self._current(event.queue, event.generation)
        if state is None:
            return
        idle = not state.fetcher.cache.count
        self._out += state.fetcher.accept(event, now_ms, self._rules.pull_interval_ms)
        if idle and not event.messages and event.next_offset != state.committed:
            # No message matched the subscription, but the committed offset still advances.
            self._set_offset(state, event.next_offset)

    # -- results

    def _listener_done(self, event: ListenerDone) -> None:
        self._running.discard(event.delivery)
        state = self._current(event.queue, event.generation)
        batch = None if state is None else state.batches.pop(event.delivery, None)
        if state is None or batch is None:
            self._report(
                "warning",
                "processQueue is dropped without process consume result. "
                f"messageQueue={event.queue}",
            )
            return
        self._report_result(event, batch.messages)
        if event.result is ConcurrentResult.SUCCESS:
            done = max(0, min(event.ack_index, len(batch.messages) - 1) + 1)
        else:
            done = 0
        # The messages of an expired batch were given back when it expired.
        failed = () if batch.expired else batch.messages[done:]
        finished = [message.queue_offset for message in batch.messages[:done]]
        if self._rules.broadcasting:
            for message in failed:
                self._report(
                    "warning", f"BROADCASTING, the message consume failed, drop it, {message!r}"
                )
            finished += [message.queue_offset for message in failed]
        else:
            for message in failed:
                self._give_back(state, message, event.delay_level)
        self._finish(state, finished)

    def _give_back(self, state: QueueState, message: ReceivedMessage, delay_level: int) -> None:
        state.returning.add(message.queue_offset)
        self._out.append(SendBack(state.queue, state.fetcher.generation, message, delay_level))

    def _sent_back(self, event: SendBackResult, now_ms: int) -> None:
        state = self._current(event.queue, event.generation)
        if state is None or event.offset not in state.returning:
            return
        state.returning.discard(event.offset)
        if event.ok:
            self._finish(state, [event.offset])
            return
        state.retry_at_ms[event.offset] = now_ms + LOCAL_RETRY_MS
        for message in state.fetcher.cache.taken:
            if message.queue_offset == event.offset:
                message.reconsume_times += 1

    def _finish(self, state: QueueState, offsets: Iterable[int]) -> None:
        offset = state.fetcher.cache.remove(offsets)
        if offset >= 0 and offset != state.committed:
            self._set_offset(state, offset)

    def _delivery_dropped(self, event: DeliveryDropped) -> None:
        self._running.discard(event.delivery)
        state = self._current(event.queue, event.generation)
        batch = None if state is None else state.batches.pop(event.delivery, None)
        if state is not None and batch is not None:
            # Messages that are being given back do not wait again.
            offsets = (message.queue_offset for message in batch.messages)
            state.fetcher.cache.again(set(offsets) - state.returning)
        else:
            self._report(
                "info",
                "the message queue not be able to consume, because it's dropped. "
                f"group={self._group} {event.queue}",
            )

    def _set_offset(self, state: QueueState, offset: int) -> None:
        state.committed, state.dirty = offset, True
        self._out.append(SetOffset(state.queue, offset, None, increase_only=True))

    # -- going on

    def _advance(self, states: list[QueueState], now_ms: int) -> None:
        for state in states:
            if state.queue not in self._queues:
                continue
            if self._closing:
                if not state.batches.keys() & self._running and not state.returning:
                    self._leave(state)
                continue
            if state.fetcher.next_offset < 0:
                self._maybe_find(state, now_ms)
            else:
                self._retry_here(state, now_ms)
                self._expire(state, now_ms)
                if not self._paused:
                    self._deliver(state)
                    limits = self._rules.limits.for_queue(self._topic_queues[state.queue.topic])
                    self._out += state.fetcher.maybe_pull(
                        now_ms,
                        limits,
                        ordered=False,
                        commit_offset=state.committed if state.dirty else None,
                        epoch=None,
                    )
            self._plan_wake(state, now_ms)

    def _deliver(self, state: QueueState) -> None:
        while state.fetcher.cache.waiting_count:
            self._delivery += 1
            messages = state.fetcher.cache.take(self._rules.batch_max)
            state.batches[self._delivery] = Batch(messages)
            self._out.append(
                Deliver(state.queue, state.fetcher.generation, self._delivery, messages, None)
            )

    def _retry_here(self, state: QueueState, now_ms: int) -> None:
        due = [offset for offset, at_ms in state.retry_at_ms.items() if at_ms <= now_ms]
        for offset in due:
            del state.retry_at_ms[offset]
        state.fetcher.cache.again(due)

    def _expire(self, state: QueueState, now_ms: int) -> None:
        """Give back the messages that a listener has not finished in time."""
        if state.expire_at_ms is None or now_ms < state.expire_at_ms:
            return
        given = 0
        next_ms: int | None = None
        for batch in state.batches.values():
            if batch.started_ms is None or batch.expired:
                continue
            due_ms = batch.started_ms + self._rules.timeout_ms
            if due_ms > now_ms or given >= EXPIRED_PER_PASS:
                due_ms = max(due_ms, now_ms + 1)
                next_ms = due_ms if next_ms is None else min(next_ms, due_ms)
                continue
            batch.expired = True
            for message in batch.messages:
                if message.queue_offset not in state.returning:
                    given += 1
                    self._give_back(state, message, EXPIRED_LEVEL)
        state.expire_at_ms = next_ms

    def _plan_wake(self, state: QueueState, now_ms: int) -> None:
        due = list(state.retry_at_ms.values())
        if state.fetcher.next_offset < 0 and not state.finding:
            due.append(state.find_at_ms)
        wake_ms = state.fetcher.wake_ms(now_ms)
        if wake_ms is not None and not self._paused:
            due.append(wake_ms)
        if state.expire_at_ms is not None:
            due.append(state.expire_at_ms)
        self._plan(state.queue, min(due, default=None))

    # -- small parts

    def _report_result(self, event: ListenerDone, messages: tuple[ReceivedMessage, ...]) -> None:
        ids = [message.message_id for message in messages]
        facts = f"Group: {self._group} Msgs: {ids} MQ: {event.queue}"
        if event.raised is not None:
            self._report("warning", f"consumeMessage exception: {event.raised} {facts}")
