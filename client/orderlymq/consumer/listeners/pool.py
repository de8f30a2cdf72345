"""
Calling listeners: on the loop or in threads, a bounded number at a time, with hooks around them.

Rules: every listener call ends in exactly one result event. A synchronous listener never blocks the loop. If a listener
returns, even None, its messages are done. If it raises, they are delivered again; the log names the exception and the
message ids, never the messages. An unreadable message fails as if the listener had raised. `NotBegun` means delivery
again without counting a try. A `CancelledError` counts as raised, too, unless the call itself is cancelled, which
happens at shutdown. `SystemExit` and `KeyboardInterrupt` mean delivery again and end the program, as in any task.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from orderlymq.consumer.core.events import ConcurrentResult, Deliver, ListenerDone, OrderedResult
from orderlymq.consumer.listeners.context import (
    ConcurrentContext,
    ConsumeContext,
    ConsumeHook,
    Listener,
    NotBegun,
    OrderedContext,
    classify,
)
from orderlymq.consumer.listeners.limits import CallLimits
from orderlymq.durations import milliseconds
from orderlymq.errors import BodyUnreadable, SettingError
from orderlymq.message import ReceivedMessage
from orderlymq.observers import installed, notify
from orderlymq.ownedtasks import reason
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import CONSUME_START_TIME

_log = logging.getLogger(__name__)

# Number of queues whose last call is remembered; the queues with the oldest calls are forgotten first.
ATTEMPTS_MAX: Final = 4_096
_DONE: Final = (OrderedResult.SUCCESS, OrderedResult.COMMIT, ConcurrentResult.SUCCESS)
# The error text of a thread pool that accepts no more work: after its shutdown, and from the end of the main thread on,
# when Python waits for the running calls.
_NO_MORE: Final = "cannot schedule new futures"
# Calls that outlived their consumers, with process, client id, group, queue, and the end of the last lease. The table
# is global, because brokers treat a new consumer with the same client id as the same holder.
_outlived: dict[Future[Any] | asyncio.Future[Any], tuple[int, str, str, MessageQueue, int]] = {}


@dataclass(frozen=True, slots=True)
class Call:
    """How one listener call ended; `result` is None if it raised, `begun` False if the messages were not begun."""

    result: OrderedResult | ConcurrentResult | None
    raised: str | None
    duration_ms: int
    begun: bool = True


@dataclass(slots=True)
class Attempt:
    """The last listener call for a queue.

    Attributes:
        offset: offset of the first message of the call.
        called_ms: time of the call, wall clock.
        tries: how often the listener has failed with that message.
        error: the last failure; None if there was none.
        running: true until the listener returns.
    """

    offset: int
    called_ms: int
    tries: int = 0
    error: str | None = None
    running: bool = False


class ListenerPool:
    """The workers of one consumer.

    Args:
        workers: number of threads for listeners that are plain functions.
        slots: number of calls that run at the same time.
        timeout_ms: a call that takes this long is reported to hooks as TIME_OUT.

    Attributes:
        cancels: whether a coroutine that exceeds the limit of its call is cancelled; False if that would not end its
            work.
    """

    def __init__(
        self,
        group: str,
        listener: Listener,
        *,
        ordered: bool,
        workers: int,
        slots: int,
        timeout_ms: int,
        hooks: Sequence[ConsumeHook],
    ) -> None:
        self._group = group
        self._listener = listener
        self._result_type = OrderedResult if ordered else ConcurrentResult
        self._timeout_ms = timeout_ms
        self._hooks = tuple(hooks)
        self._is_async = _is_async(listener)
        self._slots = asyncio.Semaphore(slots)
        self._threads: ThreadPoolExecutor | None = None
        self._workers = workers
        self._closed = False
        self.cancels = True
        self._limits = CallLimits()
        # Keyed by the thread's future, by the task that awaits a coroutine, or by the message that a loop over the
        # consumer has in hand.
        self._running: dict[
            Future[Any] | asyncio.Future[Any], OrderedContext | ConcurrentContext
        ] = {}
        self._calling_threads: set[int] = set()
        # The context of the hooks after a call, by the task that makes the call.
        self._seen: dict[asyncio.Task[Any], ConsumeContext] = {}
        self._attempts: dict[MessageQueue, Attempt] = {}

    def attempt(self, queue: MessageQueue) -> Attempt | None:
        """Return the last listener call for a queue; None if it was not called yet."""
        return self._attempts.get(queue)

    @property
    def slots(self) -> asyncio.Semaphore:
        """The slots for calls: hold one while a listener runs; callers get slots in the order in which they ask."""
        return self._slots

    @property
    def running(self) -> tuple[OrderedContext | ConcurrentContext, ...]:
        """The running calls; a thread, or a coroutine that catches its cancellation, cannot be ended."""
        return tuple(self._running.values())

    def is_calling(self, worker: asyncio.Task[Any] | int | None) -> bool:
        """Return whether this task, or the thread with this number, runs the listener and so cannot wait for its end."""
        return worker in self._running or worker in self._calling_threads

    def outlives(
        self, work: "asyncio.Future[None]", context: OrderedContext | ConcurrentContext
    ) -> None:
        """Record work that continues after its call has ended."""
        self._running[work] = context
        work.add_done_callback(self._running.pop)

    async def call_ordered(
        self, deliver: Deliver, still_holds: Callable[[], bool]
    ) -> tuple[ListenerDone, Call]:
        """Call the ordered listener."""
        context = OrderedContext(deliver.queue, still_holds=still_holds)
        call = await self._attempted(deliver.messages, context)
        pause = context.suspend_current_queue_time
        done = ListenerDone(
            deliver.queue,
            deliver.generation,
            deliver.delivery,
            call.result,
            call.raised,
            suspend_ms=-1 if pause is None else milliseconds(pause),
            auto_commit=context.auto_commit,
        )
        return done, call

    async def call_concurrent(self, deliver: Deliver) -> tuple[ListenerDone, Call]:
        """Call the concurrent listener."""
        context = ConcurrentContext(deliver.queue)
        call = await self._attempted(deliver.messages, context)
        done = ListenerDone(
            deliver.queue,
            deliver.generation,
            deliver.delivery,
            call.result,
            call.raised,
            ack_index=context.ack_index,
            delay_level=0 if _wrong(context) else context.delay_level_when_next_consume,
        )
        return done, call

    def close(self) -> None:
        """Let the threads end without waiting for their calls; callers that are cancelled from now on do not wait either."""
        self._closed = True
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def cut_off(self) -> None:
        """Run the hooks of calls that continue although they were cancelled; the results of these calls are dropped."""
        for task in list(self._seen):
            self._over(task)

    def leave_behind(
        self, client_id: str, *, by_key: bool, now_ms: int, lease_ms: int
    ) -> set[MessageQueue]:
        """Record the queues that listeners still work on when their consumer ends.

        Return them, together with those that earlier consumers left behind.
        """
        for call, context in self._running.items():
            if by_key and isinstance(context, OrderedContext) and context.lane is None:
                continue  # consumed directly, without a lock or lane
            queue, ends_ms = context.queue, now_ms + lease_ms
            _outlived[call] = os.getpid(), client_id, self._group, queue, ends_ms
            call.add_done_callback(_outlived.pop)
        return left_behind(client_id, self._group, now_ms)

    async def _attempted(
        self, messages: tuple[ReceivedMessage, ...], context: OrderedContext | ConcurrentContext
    ) -> Call:
        """Call the listener and record how it ended, for administrators who ask why a queue stands still."""
        offset, now_ms = messages[0].queue_offset, time.time_ns() // 1_000_000
        attempt = self._attempts.pop(context.queue, None)
        if attempt is None or attempt.offset != offset:
            attempt = Attempt(offset, now_ms)
        attempt.called_ms, attempt.running = now_ms, True
        self._attempts[context.queue] = attempt
        if len(self._attempts) > ATTEMPTS_MAX:
            del self._attempts[next(iter(self._attempts))]
        try:
            call = await self.call(messages, context)
        finally:
            attempt.running = False
        if call.result in _DONE:
            attempt.tries, attempt.error = 0, None
        elif call.begun:
            attempt.tries += 1
            returned = "" if call.result is None else call.result.value
            attempt.error = call.raised or f"it returned {returned}"

        return call

    async def call(
        self,
        messages: tuple[ReceivedMessage, ...],
        context: OrderedContext | ConcurrentContext,
        limit_s: float | None = None,
    ) -> Call:
        """Call the listener, with the hooks around it; the result also covers exceptions.

        A coroutine is cancelled after *limit_s*, if that is given and `cancels` is true, and counts as raised. A thread
        cannot be stopped.
        """
        started = time.monotonic()
        stamp = str(time.time_ns() // 1_000_000)
        for message in messages:
            message.properties[CONSUME_START_TIME] = stamp
        seen = ConsumeContext(
            self._group,
            context.queue,
            messages,
            ordered=self._result_type is OrderedResult,
            lane=context.lane if isinstance(context, OrderedContext) else None,
        )
        task = asyncio.current_task()
        assert task is not None
        self._seen[task] = seen
        self._run_hooks("before", seen)
        result: OrderedResult | ConcurrentResult | None = None
        raised: str | None = None
        begun = True
        try:
            returned = await self._invoke(messages, context, limit_s if self.cancels else None)
            result = self._checked(returned, context)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and task.cancelling():
                self._over(task)
                raise
            raised = reason(error)
            begun = not isinstance(error, NotBegun)
            _log.debug("the listener raised", exc_info=error)
        except BaseException:
            self._over(task)
            raise
        duration_ms = int((time.monotonic() - started) * 1000)
        seen.returned = classify(result, duration_ms=duration_ms, timeout_ms=self._timeout_ms)
        seen.status = "" if result is None else result.value
        seen.success = result in _DONE
        self._over(task)
        return Call(result, raised, duration_ms, begun)

    async def _invoke(
        self, messages: Sequence[ReceivedMessage], context: Any, limit_s: float | None
    ) -> object:
        first = messages[0]
        if first.unreadable:
            raise BodyUnreadable(first.queue, first.queue_offset, first.unreadable)
        if self._is_async:
            outcome: Any = self._listener(messages, context)
            return await self._within(outcome, context, limit_s)
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self._workers, f"ConsumeMessageThread-{self._group}")
        # Keep the context variables of this call, so that a trace continues in the thread.
        work = contextvars.copy_context().run
        try:
            thread = self._threads.submit(work, self._in_thread, messages, context)
        except RuntimeError as refused:
            if _NO_MORE not in str(refused):
                raise
            # No listener starts any more. Another member gets the messages when this process or its lease has ended.
            await asyncio.Event().wait()
            raise
        call = asyncio.wrap_future(thread)
        self._running[thread] = context
        call.add_done_callback(lambda _: self._running.pop(thread))
        try:
            returned, error = await asyncio.shield(call)
        except asyncio.CancelledError:
            # A thread cannot be stopped, and the message must not be delivered again while it runs.
            while not (call.done() or self._closed):
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([call])
            raise
        if error is not None:
            raise error
        if inspect.isawaitable(returned):
            # A plain function that returns an awaitable, for example a lambda around a coroutine.
            return await self._within(returned, context, limit_s)
        return returned

    def _in_thread(self, messages: Any, context: Any) -> tuple[object, BaseException | None]:
        """Call the listener; return what it raises, because a future cannot carry every exception, such as StopIteration."""
        thread = threading.get_ident()
        self._calling_threads.add(thread)
        try:
            return self._listener(messages, context), None
        except BaseException as error:
            return None, error
        finally:
            self._calling_threads.discard(thread)

    async def _within(
        self,
        work: Awaitable[object],
        context: OrderedContext | ConcurrentContext,
        limit_s: float | None,
    ) -> object:
        task = asyncio.current_task()
        assert task is not None
        self._running[task] = context
        try:
            if limit_s is None:
                return await work
            with self._limits.within(limit_s):
                return await work
        finally:
            self._running.pop(task)

    def _checked(
        self, returned: object, context: OrderedContext | ConcurrentContext
    ) -> OrderedResult | ConcurrentResult:
        wrong = _wrong(context)
        if wrong:
            raise SettingError(f"the listener set {wrong}, which is not a whole number")
        if returned is None:
            return self._result_type.SUCCESS
        if isinstance(returned, self._result_type):
            return returned
        raise SettingError(
            f"the listener returned {returned!r}; it must return nothing, or a member of "
            f"{self._result_type.__name__}"
        )

    def _over(self, task: asyncio.Task[Any]) -> None:
        seen = self._seen.pop(task, None)
        if seen is not None:
            self._run_hooks("after", seen)

    def _run_hooks(self, moment: str, context: ConsumeContext) -> None:
        for hook in self._hooks:
            try:
                getattr(hook, moment)(context)
            except Exception:
                _log.exception("the %s hook %r failed", moment, hook)
        for observer in installed:
            notify(getattr(observer, moment), context)


def _wrong(context: OrderedContext | ConcurrentContext) -> str:
    """Return the setting of a concurrent listener that is not an integer, with its value; a bool does not count as one."""
    if isinstance(context, OrderedContext):
        return ""
    for name in ("ack_index", "delay_level_when_next_consume"):
        value: object = getattr(context, name)
        if isinstance(value, bool) or not isinstance(value, int):
            return f"{name} to {value!r}"
    return ""


def left_behind(client_id: str, group: str, now_ms: int) -> set[MessageQueue]:
    """Return the queues that listeners of closed consumers with this client id still work on, while their leases may last."""
    who = os.getpid(), client_id, group
    return {
        queue
        for *whose, queue, ends_ms in list(_outlived.values())
        if tuple(whose) == who and now_ms < ends_ms
    }


def _is_async(listener: Listener) -> bool:
    return inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(
        getattr(listener, "__call__", None)  # noqa: B004 - the method itself is examined
    )
