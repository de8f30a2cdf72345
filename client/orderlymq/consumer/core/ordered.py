"""
The ordered consumer: it chooses the listener's next messages from the queues whose lock it holds, and the commits.

Rules, each of them tested:
- the consumer pulls, delivers and commits nothing of a queue without a lock whose lease still runs (`locks`);
- each queue has at most one listener call, even if the queue was lost and won back during the call;
- messages leave in the order of their offsets; a failed message keeps its queue waiting until it succeeds or is handed
  over to the dead-letter queue; only a message that was tried alone is handed over;
- a message of a parked key goes to the dead-letter queue in its turn, and to no listener (`parkedkeys`).

Pure: `handle(event, now_ms)` returns instructions for the shell (`push`), and `next_wake_ms` says when to send the next
`Tick`.
"""

from collections.abc import Iterable
from typing import Final, assert_never

from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    Closing,
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
    OrderedResult,
    Paused,
    Persist,
    Pulled,
    PullFailed,
    Released,
    Resumed,
    SendBackResult,
    SetOffset,
    StartFailed,
    StartFound,
    Tick,
)
from orderlymq.consumer.core.locks import LockedQueues
from orderlymq.consumer.core.parkedkeys import (
    dead_letter_of,
    deliverable,
    note_handover,
    take_parked,
)
from orderlymq.consumer.core.queuestate import (
    Phase,
    QueueState,
    dropped_report,
    first_pull_reports,
    result_reports,
)
from orderlymq.consumer.settings import SUSPEND_MAX_MS, SUSPEND_MIN_MS
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue

RELOCK_LOST_MS: Final = 10  # as in RocketMQ: the lock was lost while consuming
YIELD_MS: Final = 10  # as in RocketMQ: the pause after a minute of continuous work


class OrderedConsumer(LockedQueues):
    """All queues of one ordered consumer.

    A queue goes LOCKING -> STARTING (granted) -> RUNNING (offset found) -> LEAVING (assigned to another member, or
    closing) -> gone. Without a live lease it falls back to LOCKING. If the lock is granted again under the same epoch,
    the queue continues where it was; under any other epoch it restarts at the committed offset. LEAVING lasts while a
    listener runs; a delivery that only waits for a worker is taken back.
    """

    # -- what the shell asks

    @property
    def is_idle(self) -> bool:
        """Whether no queue remains to be given back."""
        return not self._queues and not self._releasing

    def maybe_start(self, deliver: Deliver, now_ms: int) -> bool:
        """Begin a delivery that has got a worker, if it may still call the listener; return whether it began."""
        state = self._current(deliver.queue, deliver.generation)
        if (
            state is None
            or state.delivery != deliver.delivery
            or state.phase is not Phase.RUNNING
            or not state.holds(now_ms)
            or self._paused
        ):
            return False
        state.begun = True
        return True

    # -- what happens

    def handle(self, event: Event, now_ms: int) -> list[Instruction]:  # noqa: C901, PLR0912 - one arm per event of a closed union
        """Handle one event and return the instructions, in their order."""
        match event:
            case Assigned():
                self._assign(event, now_ms)
            case LocksAnswered():
                self._locks_answered(event, now_ms)
            case LocksFailed():
                self._locks_failed(event, now_ms)
            case StartFound():
                self._start_found(event)
            case StartFailed():
                self._start_failed(event, now_ms)
            case Pulled():
                self._pulled(event, now_ms)
            case PullFailed():
                self._pull_failed(event, now_ms)
            case OffsetIllegal():
                self._offset_illegal(event)
            case ListenerDone():
                self._listener_done(event, now_ms)
            case DeliveryDropped():
                self._delivery_dropped(event)
            case SendBackResult():
                self._sent_back(event, now_ms)
            case Released():
                self._released(event, now_ms)
            case OffsetsReset():
                self._offsets_reset(event, now_ms)
            case Paused():
                self._paused = True
            case Resumed():
                self._paused = False
            case Closing():
                self._closing = True
                self._assign(Assigned(frozenset()), now_ms)
            case ListenerStarted() | Tick():
                pass
            case _:
                assert_never(event)
        self._advance(self._concerned(event), now_ms)
        return self._instructions()

    # -- start and pulls

    def _start_found(self, event: StartFound) -> None:
        state = self._current(event.queue, event.generation)
        if state is None or state.phase is not Phase.STARTING:
            return
        planned, state.planned = state.planned, None
        state.committed = event.offset
        if event.is_new:
            # A topic that grows waits for each holder that has never committed an offset.
            self._set_offset(state, event.offset)
        state.finding = False
        state.fetcher.next_offset = event.offset
        state.phase = Phase.RUNNING
        self._out += first_pull_reports(state.queue, event.offset, planned)

    def _pulled(self, event: Pulled, now_ms: int) -> None:
        state = self._current(event.queue, event.generation)
        if state is None or state.phase is not Phase.RUNNING:
            if state is not None:
                state.fetcher.in_flight = False
            return
        idle = not state.fetcher.cache.count
        self._out += state.fetcher.accept(event, now_ms, self._rules.pull_interval_ms)
        if idle and not event.messages and event.next_offset != state.committed:
            # No message matched the subscription, but the committed offset still advances.
            self._set_offset(state, event.next_offset)

    def _pull_failed(self, event: PullFailed, now_ms: int) -> None:
        state = self._current(event.queue, event.generation)
        if state is None:
            return
        self._out += state.fetcher.fail(event.reason, now_ms)
        if event.refused and not state.asking:
            state.ask_at_ms = now_ms  # the broker may not know us as the holder: ask for the lock

    def _offset_illegal(self, event: OffsetIllegal) -> None:
        state = self._current(event.queue, event.generation)
        if state is None or state.phase is not Phase.RUNNING:
            return
        self._report(
            "warning", f"the pull request offset illegal, {state.queue} {state.fetcher.next_offset}"
        )
        self._restart(state, event.next_offset)
        self._set_offset(state, event.next_offset)
        self._out.append(Persist(state.queue, state.epoch))
        self._report("warning", f"fix the pull request offset, {state.queue} {event.next_offset}")

    def _offsets_reset(self, event: OffsetsReset, now_ms: int) -> None:
        """Continue at the offsets that an administrator has set; former messages and pulls no longer count."""
        for queue, offset in sorted(event.offsets.items()):
            state = self._queues.get(queue)
            if state is None:
                continue
            phase, holds, known = state.phase, state.holds(now_ms), state.committed is not None
            self._restart(state, offset if holds else -1)
            if phase in (Phase.LOCKING, Phase.LEAVING):
                state.phase = phase
            if holds or known:
                # Even without a lease: otherwise an earlier commit that is still remembered would undo the reset. The
                # commit carries the epoch, so the broker drops it if another member holds the queue.
                self._set_offset(state, offset)
                self._out.append(Persist(queue, state.epoch))

    # -- results

    def _listener_done(self, event: ListenerDone, now_ms: int) -> None:
        state = self._queues.get(event.queue)
        if state is None or state.delivery != event.delivery:
            return
        messages = state.delivered
        state.delivery = None
        if state.fetcher.generation != event.generation:
            self._out.append(dropped_report(state.queue, messages))
            state.delivered = ()
            return
        if not state.holds(now_ms):
            # If the lock comes back under the same epoch, no other member had the queue, and the result counts.
            state.stalled = event
            return
        self._apply_result(state, event, now_ms)

    def _delivery_dropped(self, event: DeliveryDropped) -> None:
        state = self._queues.get(event.queue)
        if state is None or state.delivery != event.delivery:
            return
        self._take_back(state)
        self._report(
            "info" if state.phase is Phase.LEAVING else "warning",  # given up, or lost
            "run, the message queue not be able to consume, because it's dropped or not locked. "
            f"{state.queue}",
        )

    def _apply_result(self, state: QueueState, event: ListenerDone, now_ms: int) -> None:
        messages, state.delivered = state.delivered, ()
        result = event.result
        if not isinstance(result, OrderedResult):
            result = OrderedResult.SUSPEND
        self._out += result_reports(self._group, event, messages)
        if event.auto_commit and result in (OrderedResult.COMMIT, OrderedResult.ROLLBACK):
            self._report(
                "warning",
                "the message queue consume result is illegal, we think you want to ack these "
                f"message {state.queue}: {result.name} needs context.auto_commit = False",
            )
            result = OrderedResult.COMMIT
        state.auto_commit = event.auto_commit
        match result:
            case OrderedResult.SUCCESS if event.auto_commit:
                self._commit(state)
            case OrderedResult.SUCCESS:
                self._out += state.count_uncommitted(len(messages), self._rules.uncommitted_warning)
            case OrderedResult.COMMIT:
                self._commit(state)
            case OrderedResult.ROLLBACK:
                state.fetcher.cache.rollback(keep=state.dead)
                state.uncommitted = 0
                self._suspend(state, event.suspend_ms, now_ms)
            case OrderedResult.SUSPEND:
                self._failed(state, messages, event.suspend_ms, now_ms)
            case _:
                assert_never(result)

    def _commit(self, state: QueueState) -> None:
        offset = state.fetcher.cache.commit()
        # A dead letter after a message that was rolled back stays taken.
        state.dead = {each for each in state.dead if each >= offset}
        state.uncommitted = 0
        if offset >= 0:
            self._set_offset(state, offset)

    def _failed(
        self,
        state: QueueState,
        messages: tuple[ReceivedMessage, ...],
        suspend_ms: int,
        now_ms: int,
    ) -> None:
        """Keep the messages for another try, or hand over a message that was tried alone."""
        head = messages[0]
        if head.reconsume_times >= self._rules.reconsume_max:
            if len(messages) == 1:
                state.copying = True
                state.delivered = messages
                self._out.append(dead_letter_of(state, head, self._rules.reconsume_max))
                return
            # It is not known which of them fails. Deliver them one by one, so that none is both handed over and
            # consumed, and no healthy message is handed over because of its neighbour.
            state.single_until = messages[-1].queue_offset + 1
        else:
            for message in messages:
                message.reconsume_times += 1
        state.fetcher.cache.again(message.queue_offset for message in messages)
        self._suspend(state, suspend_ms, now_ms)

    def _sent_back(self, event: SendBackResult, now_ms: int) -> None:
        state = self._queues.get(event.queue)
        if state is None or not state.copying:
            return
        state.copying = False
        messages, state.delivered = state.delivered, ()
        if state.fetcher.generation != event.generation:
            # The queue has restarted since, but the broker has parked the key; the broker is asked before the key's
            # next message.
            if event.parked is not None:
                state.parked[messages[0].key or ""] = event.parked
            return
        self._out += note_handover(self._group, state, event, messages[0])
        if not event.ok:
            state.fetcher.cache.again((event.offset,))
            if not event.released:
                self._suspend(state, -1, now_ms)
            return
        state.dead.add(event.offset)
        if state.auto_commit or (event.parked is not None and state.all_dead):
            # Commit even without a lease, because a dead letter must not be delivered. The commit carries the epoch, so
            # the broker drops it if another member holds the queue.
            self._commit(state)

    def _suspend(self, state: QueueState, suspend_ms: int, now_ms: int) -> None:
        wanted = self._rules.suspend_ms if suspend_ms == -1 else suspend_ms
        state.not_before_ms = now_ms + max(SUSPEND_MIN_MS, min(SUSPEND_MAX_MS, wanted))
        state.busy_since_ms = None

    def _set_offset(self, state: QueueState, offset: int) -> None:
        state.committed = offset
        state.dirty = True
        self._out.append(SetOffset(state.queue, offset, state.epoch, increase_only=False))

    # -- going on

    def _advance(self, states: Iterable[QueueState], now_ms: int) -> None:
        asks: list[MessageQueue] = []
        for state in states:
            if state.phase in (Phase.RUNNING, Phase.STARTING) and not state.holds(now_ms):
                self._lose(state, "the message queue lock expired, so consume later")
                state.ask_at_ms = now_ms + RELOCK_LOST_MS
            if self._rules.needs_lock and state.wants_lock(now_ms):
                state.asking = True
                asks.append(state.queue)
            match state.phase:
                case Phase.LOCKING:
                    pass
                case Phase.STARTING:
                    self._maybe_find(state, now_ms)
                case Phase.RUNNING:
                    self._maybe_deliver(state, now_ms)
                    self._maybe_pull(state, now_ms)
                case Phase.LEAVING:
                    self._maybe_leave(state, now_ms)
                case _:
                    assert_never(state.phase)
            self._plan_wake(state, now_ms)
        if asks:
            self._out.append(AskLocks(tuple(sorted(asks))))

    def _plan_wake(self, state: QueueState, now_ms: int) -> None:
        gone = state.queue not in self._queues
        needs_lock, paused = self._rules.needs_lock, self._paused
        wake_ms = None if gone else state.wake_ms(now_ms, needs_lock=needs_lock, paused=paused)
        self._plan(state.queue, wake_ms)

    def _maybe_deliver(self, state: QueueState, now_ms: int) -> None:
        cache = state.fetcher.cache
        if self._paused or state.is_busy or state.stalled is not None:
            return
        if not cache.waiting_count:
            state.busy_since_ms = None
            return
        if now_ms < state.not_before_ms:
            return
        if state.must_rest(now_ms, self._rules.continuous_max_ms):
            state.not_before_ms = now_ms + YIELD_MS
            return
        single = cache.first_waiting < state.single_until
        count = deliverable(state, 1 if single else self._rules.batch_max)
        if not count:
            self._out.append(take_parked(state, self._rules.reconsume_max))
            return
        self._delivery += 1
        state.delivery, state.begun = self._delivery, False
        state.delivered = cache.take(count)
        self._out.append(
            Deliver(
                state.queue,
                state.fetcher.generation,
                self._delivery,
                state.delivered,
                state.epoch,
            )
        )

    def _maybe_pull(self, state: QueueState, now_ms: int) -> None:
        if self._paused:
            return
        topic_queues = self._topic_queues[state.queue.topic]
        self._out += state.fetcher.maybe_pull(
            now_ms,
            self._rules.limits.for_queue(topic_queues),
            ordered=True,
            commit_offset=state.committed if state.dirty else None,
            epoch=state.epoch,
        )

    def _maybe_leave(self, state: QueueState, now_ms: int) -> None:
        self._stop_pull(state)
        self._recall(state)
        if state.is_busy or state.asking:
            return
        if state.stalled is not None:
            self._out.append(dropped_report(state.queue, state.delivered))
        locked = state.holds(now_ms)
        unlock = locked and self._rules.needs_lock
        del self._queues[state.queue]
        self._release(state.queue, state.epoch, commit=locked and state.dirty, unlock=unlock)
