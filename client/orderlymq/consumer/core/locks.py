"""
Which queues an ordered consumer may consume: those assigned to it whose lock it holds.

Rules kept here:
- a lease is counted from before the request for it was sent, by this client's own clock;
- a lock that comes back under another epoch, or without one, means that somebody else may have had the queue:
  everything cached is forgotten and consumption restarts at the committed offset;
- a queue that was given up while its lock was being asked for gives the grant back.
`ordered` decides what the listener gets of them. The broker's half is its lock table and its fence.
"""

from collections import Counter
from typing import Final

from orderlymq.consumer.core.events import (
    Assigned,
    ListenerDone,
    LocksAnswered,
    LocksFailed,
    Release,
    Released,
)
from orderlymq.consumer.core.queues import AssignedQueues
from orderlymq.consumer.core.queuestate import (
    FOREVER,
    OrderedRules,
    Phase,
    QueueState,
    dropped_report,
    refused_report,
)
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.plurals import counted

RELOCK_FAILED_MS: Final = 100  # RocketMQ: not held; here: the request had no answer
RELOCK_REFUSED_MS: Final = 3_000  # RocketMQ: somebody else has it; a notification comes first


class LockedQueues(AssignedQueues[QueueState]):
    """The assigned queues of one ordered consumer, with their locks."""

    def __init__(self, group: str, rules: OrderedRules) -> None:
        super().__init__(group)
        self._rules = rules

    def holds(self, queue: MessageQueue, generation: int, now_ms: int) -> bool:
        """Return whether the queue is still ours; a listener may ask before an outside effect."""
        state = self._current(queue, generation)
        return state is not None and state.holds(now_ms)

    def _apply_result(self, state: QueueState, event: ListenerDone, now_ms: int) -> None:
        """Let the result of a listener call count."""
        raise NotImplementedError

    # -- assignment

    def _assign(self, event: Assigned, now_ms: int) -> None:
        wanted = self._wanted = frozenset() if self._closing else event.queues
        for state in self._queues.values():
            if state.queue not in wanted:
                state.phase = Phase.LEAVING
            elif state.phase is Phase.LEAVING:
                # Given and taken back before the listener was done: nobody else had it.
                state.phase = Phase.RUNNING if state.fetcher.next_offset >= 0 else self._first_phase
            elif state.phase is Phase.LOCKING:
                state.ask_at_ms = now_ms  # somebody left or joined: the lock may be free now
        for queue in sorted(wanted - self._queues.keys() - self._releasing):
            self._add(queue, now_ms)
        self._topic_queues = Counter(queue.topic for queue in wanted)

    def _add(self, queue: MessageQueue, now_ms: int) -> None:
        state = QueueState(
            queue, self._new_fetcher(queue), phase=self._first_phase, ask_at_ms=now_ms
        )
        if not self._rules.needs_lock:
            state.lease_until_ms = FOREVER
        self._queues[queue] = state

    def _released(self, event: Released, now_ms: int) -> None:
        self._releasing.discard(event.queue)
        # It may have been assigned again meanwhile; only now can its lock be asked for.
        if event.queue in self._wanted - self._queues.keys():
            self._add(event.queue, now_ms)

    def _release(
        self, queue: MessageQueue, epoch: int | None, *, commit: bool, unlock: bool
    ) -> None:
        self._releasing.add(queue)
        self._out.append(Release(queue, epoch, commit=commit, unlock=unlock))

    @property
    def _first_phase(self) -> Phase:
        return Phase.LOCKING if self._rules.needs_lock else Phase.STARTING

    def _take_back(self, state: QueueState) -> None:
        """Have what no listener has seen wait again; of a former generation nothing is left to wait."""
        messages, state.delivered = state.delivered, ()
        state.delivery = None
        state.fetcher.cache.again(message.queue_offset for message in messages)

    def _recall(self, state: QueueState) -> None:
        """Take a delivery back that still waits for a worker: nobody works on it."""
        if state.delivery is not None and not state.begun:
            self._take_back(state)

    def _restart(self, state: QueueState, next_offset: int = -1) -> None:
        """Forget everything cached; go on at *next_offset* or ask where."""
        self._stop_pull(state)
        self._recall(state)
        if state.stalled is not None:
            self._out.append(dropped_report(state.queue, state.delivered))
            state.delivered = ()
        state.restart(self._new_fetcher(state.queue, next_offset))

    # -- locks

    def _locks_answered(self, event: LocksAnswered, now_ms: int) -> None:
        for queue in event.asked:
            state = self._queues.get(queue)
            if state is None:
                if queue in event.granted:
                    # Given up while the request was on its way: the grant must not stay behind.
                    self._release(queue, event.granted[queue], commit=False, unlock=True)
                continue
            state.asking = False
            if queue in event.granted:
                generation = state.fetcher.generation
                self._granted(state, event.granted[queue], event.asked_at_ms, now_ms)
                if state.fetcher.generation != generation:
                    # Only the lock's holder adds to them, so this is all there is until we do.
                    state.parked = dict(event.parked.get(queue, {}))
            else:
                self._refused(state, now_ms)

    def _granted(self, state: QueueState, epoch: int | None, asked_at_ms: int, now_ms: int) -> None:
        state.ask_at_ms = asked_at_ms + self._rules.renew_ms
        # A renewal of a lease that never lapsed is the same lock even where brokers know no epochs.
        continues = epoch == state.epoch and (epoch is not None or state.holds(now_ms))
        state.lease_until_ms = asked_at_ms + self._rules.lease_ms
        if state.phase is Phase.LEAVING:
            if not continues:
                state.stalled = None
                state.fetcher = self._new_fetcher(state.queue)
            state.epoch = epoch
            return
        if state.phase is not Phase.LOCKING and continues:
            return
        if continues and state.fetcher.next_offset >= 0:
            state.phase = Phase.RUNNING
            if state.stalled is not None:
                stalled, state.stalled = state.stalled, None
                self._apply_result(state, stalled, now_ms)
            return
        planned = state.fetcher.next_offset
        state.epoch = epoch
        facts = f"{self._group} {state.queue} epoch={epoch}"
        self._report("info", f"the message queue lock OK, {facts}")
        self._restart(state)
        state.planned = planned if planned >= 0 else None

    def _refused(self, state: QueueState, now_ms: int) -> None:
        state.ask_at_ms = now_ms + RELOCK_REFUSED_MS
        if state.phase in (Phase.RUNNING, Phase.STARTING):
            # The broker's word counts more than our clock: somebody else has the queue.
            self._lose(state, "the message queue not locked, so consume later")
        elif state.phase is Phase.LEAVING:
            state.lease_until_ms = 0
        self._out.append(refused_report(self._group, state.queue))

    def _locks_failed(self, event: LocksFailed, now_ms: int) -> None:
        for queue in event.asked:
            state = self._queues.get(queue)
            if state is not None:
                state.asking = False
                state.ask_at_ms = now_ms + RELOCK_FAILED_MS
        self._report(
            "debug", f"lockBatchMQ exception, {counted(len(event.asked), 'queue')}: {event.reason}"
        )

    def _lose(self, state: QueueState, text: str) -> None:
        self._report("warning", f"{text}, {self._group} {state.queue}")
        self._stop_pull(state)
        state.lease_until_ms = 0
        state.finding = False
        state.phase = Phase.LOCKING
