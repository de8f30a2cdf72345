"""
The executor of a consumer by key: it performs the core's instructions and passes the results to the core.

Rules: every instruction that awaits an answer gets one, even if its work failed or was cancelled. A listener is
cancelled if it is cut off at the end of `close`, or works for longer than the consumer group's consumeTimeout; its lane
is given back only after that. If a listener cannot be ended, because it runs in a thread for example, its lane is not
given back.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, assert_never

from orderlymq.consumer.core.events import OrderedResult, Report
from orderlymq.consumer.lanes.calls import LaneCalls
from orderlymq.consumer.lanes.core import LaneCore
from orderlymq.consumer.lanes.events import (
    AttemptId,
    Complete,
    CompleteFailed,
    CutOff,
    End,
    Event,
    Fetch,
    FetchFailed,
    Instruction,
    Listened,
    Place,
    Work,
    WorkDropped,
)
from orderlymq.consumer.lanes.workers import LaneWorkers
from orderlymq.consumer.listeners.context import ConcurrentContext, LaneContext, OrderedContext
from orderlymq.consumer.listeners.pool import Call, ListenerPool
from orderlymq.consumer.stats import ConsumerStats
from orderlymq.durations import milliseconds
from orderlymq.errors import OrderlyMQError, SettingError
from orderlymq.ownedtasks import OwnedTasks, reason
from orderlymq_protocol.body.lanes import DELAY_MS_MAX
from orderlymq_protocol.body.messagequeue import MessageQueue

_log = logging.getLogger(__name__)

_GIVE_BACK_S: Final = 2.0  # for the last reports of a consumer that is cut off
_DONE: Final = (OrderedResult.SUCCESS, OrderedResult.COMMIT)
_NO_AUTO_COMMIT: Final = (
    "the listener set auto_commit to False, which has no effect in a consumer by key: each message is "
    "complete when the listener returns"
)


class LaneExecutor:
    """Turns instructions into tasks, and their results into events.

    Attributes:
        listeners: the workers, once the consumer is started.
    """

    def __init__(
        self,
        group: str,
        core: LaneCore,
        calls: LaneCalls,
        tasks: OwnedTasks,
        stats: ConsumerStats,
        *,
        moved: Callable[[], None],
        failed: Callable[[OrderlyMQError], None],
        now_ms: Callable[[], int],
    ) -> None:
        """Call *moved* after the core has changed, and *failed* with errors that only a user can repair."""
        self.listeners: ListenerPool | None = None
        self._group = group
        self._core = core
        self._calls = calls
        self._tasks = tasks
        self._stats = stats
        self._moved = moved
        self._failed = failed
        self._now_ms = now_ms
        self._workers: LaneWorkers | None = None
        self._is_idle = asyncio.Event()
        self._is_over = False

    def handle(self, event: Event, now_ms: int) -> None:
        """Pass an event to the core and start its instructions."""
        for instruction in self._core.handle(event, now_ms):
            self._carry_out(instruction)
        if self._core.is_idle:
            self._is_idle.set()
        else:
            self._is_idle.clear()

    async def prepare(
        self, topics: Iterable[str], beat: Callable[[], Coroutine[Any, Any, bool]]
    ) -> None:
        """Join the consumer group if it consumes by key; brokers that create groups create it by key.

        Raises:
            SettingError: The consumer group consumes by queue, or does not exist.
        """
        assert self.listeners is not None
        self._workers = LaneWorkers(
            f"Work of {self._group}",
            self._tasks,
            self.listeners.slots,
            listen=partial(self._listen, self.listeners),
            post=self._post,
        )
        known = await self._calls.check_group(topics)
        # A broker that received no heartbeat could not create the group: that is no reason to end.
        if await beat() and not known and not await self._calls.check_group(topics):
            raise SettingError(self._calls.missing())

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Do nothing: brokers record what is complete."""

    async def finish(self, cancel_s: float) -> None:
        """Cut off running listeners; give back the lanes in hand, except those of listeners that still run after *cancel_s*."""
        assert self.listeners is not None
        assert self._workers is not None
        self.listeners.close()
        if not self._core.is_idle:
            await self._workers.stop(cancel_s)
            self.listeners.cut_off()
            running = map(_attempt_of, self.listeners.running)
            self._post(CutOff(frozenset(attempt for attempt in running if attempt is not None)))
            try:
                async with asyncio.timeout(_GIVE_BACK_S):
                    await self._is_idle.wait()
            except TimeoutError:
                _log.warning(
                    "lanes of %s were not given back; they become free when their leases end",
                    self._group,
                )
        self._is_over = True

    # -- parts

    def _post(self, event: Event) -> None:
        if self._is_over:
            return
        self.handle(event, self._now_ms())
        self._moved()

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case Report():
                _log.log(getattr(logging, instruction.level.upper()), "%s", instruction.text)
            case Fetch(place, sequence):
                self._start(
                    self._fetch(instruction),
                    "Fetch",
                    lambda why: FetchFailed(place, sequence, why),
                )
            case Work():
                assert self._workers is not None
                self._workers.begin(instruction)
            case Complete(place, reports):
                self._start(
                    self._complete(instruction),
                    "Complete",
                    lambda why: CompleteFailed(place, reports, why),
                )
            case _:
                assert_never(instruction)

    def _start(
        self, work: Coroutine[Any, Any, None], name: str, failure: Callable[[str], Event]
    ) -> asyncio.Task[None]:
        """Start the work of an instruction; the core gets its answer however the work ends."""

        def lost(error: BaseException) -> None:
            self._post(failure(reason(error)))

        return self._tasks.start(work, f"{name} of {self._group}", lost)

    async def _fetch(self, ask: Fetch) -> None:
        event = await self._calls.fetch(ask)
        if isinstance(event, FetchFailed) and event.final:
            self._failed(SettingError(event.reason))
        self._post(event)

    async def _complete(self, ask: Complete) -> None:
        self._post(await self._calls.complete(ask))

    async def _listen(self, listeners: ListenerPool, work: Work) -> End:
        if not self._core.may_start(work.attempt, self._now_ms()):
            return WorkDropped(work.attempt)
        place, queue_id, number = work.attempt
        queue = MessageQueue(place.topic, place.broker_name, queue_id)
        lane, first = work.lane, work.messages[0]
        is_first = first.queue_offset == lane.offsets[0]
        context = OrderedContext(
            queue,
            still_holds=lambda: self._core.holds(work.attempt, self._now_ms()),
            lane=LaneContext(
                lane.key,
                lane.tries if is_first else 0,
                first.store_timestamp,
                work.behind,
                number,
            ),
        )
        call = await listeners.call(work.messages, context, self._calls.consume_timeout_s)
        if not call.begun:
            return WorkDropped(work.attempt)
        error = _error_of(call, context)
        count = len(work.messages)
        ok = count if error is None else 0
        self._stats.called(place.topic, ok, count - ok, call.duration_ms, self._now_ms())
        pause = context.suspend_current_queue_time
        delay_ms = -1 if pause is None else max(0, min(milliseconds(pause), DELAY_MS_MAX))

        return Listened(work.attempt, error, delay_ms)


def _attempt_of(context: OrderedContext | ConcurrentContext) -> AttemptId | None:
    """Return the attempt that a call works on; None for a message that an administrator has consumed directly."""
    assert isinstance(context, OrderedContext)
    if context.lane is None:
        return None
    queue = context.queue

    return AttemptId(Place(queue.topic, queue.broker_name), queue.queue_id, context.lane.attempt)


def _error_of(call: Call, context: OrderedContext) -> str | None:
    """Return why the messages must be delivered again; None if they are done."""
    if call.result is None:
        return call.raised or "the listener raised"
    if not context.auto_commit:
        return _NO_AUTO_COMMIT
    if isinstance(call.result, OrderedResult) and call.result in _DONE:
        return None
    return f"the listener returned {call.result.name}"
