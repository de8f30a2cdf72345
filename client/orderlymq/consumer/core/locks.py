"""
The queues that an ordered consumer may consume: those assigned to it whose lock it holds.

Rules:
- a lease counts from the time before its request was sent, by this client's own clock;
- a lock that comes back under another epoch, or without one, means that another member may have had the queue: the
  consumer forgets all cached messages and restarts at the committed offset;
- a queue that was given up while its lock was being asked for gives the grant back.
`ordered` decides which messages of these queues the listener gets. The broker's counterparts are its lock table and its
fence.
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

RELOCK_FAILED_MS: Final = 100  # RocketMQ: lock not held; here: the request had no answer
RELOCK_REFUSED_MS: Final = 3_000  # RocketMQ: another member holds it; a notification comes earlier


class LockedQueues(AssignedQueues[QueueState]):
    """The assigned queues of one ordered consumer, with their locks."""

    def __init__(self, group: str, rules: OrderedRules) -> None:
        super().__init__(group)
        self._rules = rules

    def holds(self, queue: MessageQueue, generation: int, now_ms: int) -> bool:
        """Return whether this consumer still holds the queue; a listener may ask before an outside effect."""
        state = self._current(queue, generation)
        return state is not None and state.holds(now_ms)

    def _apply_result(self, state: QueueState, event: ListenerDone, now_ms: int) -> None:
        """Apply the result of a listener call."""
        raise NotImplementedError

    # -- assignment

    def _assign(self, event: Assigned, now_ms: int) -> None:
        wanted = self._wanted = frozenset() if self._closing else event.queues
        for state in self._queues.values():
            if state.queue not in wanted:
                state.phase = Phase.LEAVING
            elif state.phase is Phase.LEAVING:
                # Given up and assigned again before the listener was done: no other member had the queue.
                state.phase = Phase.RUNNING if state.fetcher.next_offset >= 0 else self._first_phase
            elif state.phase is Phase.LOCKING:
                state.ask_at_ms = now_ms  # a member left or joined: the lock may be free now
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
        # The queue may have been assigned again; only now can its lock be requested.
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
        """Make messages that no listener has seen wait again; those of an earlier generation are no longer in the cache."""
        messages, state.delivered = state.delivered, ()
        state.delivery = None
        state.fetcher.cache.again(message.queue_offset for message in messages)

    def _recall(self, state: QueueState) -> None:
        """Take back a delivery that still waits for a worker: no listener works on it."""
        if state.delivery is not None and not state.begun:
            self._take_back(state)

    def _restart(self, state: QueueState, next_offset: int = -1) -> None:
        """Forget all cached messages; continue at *next_offset*, or ask for the start offset if it is -1."""
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
                    # The queue was given up while the request was on its way: give the grant back.
                    self._release(queue, event.granted[queue], commit=False, unlock=True)
                continue
            state.asking = False
            if queue in event.granted:
                generation = state.fetcher.generation
                self._granted(state, event.granted[queue], event.asked_at_ms, now_ms)
                if state.fetcher.generation != generation:
                    # Only the lock's holder parks keys, so these are all until this consumer parks one.
                    state.parked = dict(event.parked.get(queue, {}))
            else:
                self._refused(state, now_ms)

    def _granted(self, state: QueueState, epoch: int | None, asked_at_ms: int, now_ms: int) -> None:
        state.ask_at_ms = asked_at_ms + self._rules.renew_ms
        # If the lease never lapsed, its renewal is the same lock, even if the broker knows no epochs.
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
            # The broker's answer counts more than our clock: another member holds the queue.
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
