"""
`async for` over a consumer: one message at a time, through a listener that hands each message to the loop.

Rules: a message is done when the loop asks for the next one, or when the consumer's `async with` block ends without an
error, because Python does not tell a loop how it was left. The last message is not done if an exception leaves the
block or ends the loop's own task. It is not done either if its loop, in another thread or in a task that still runs,
was left before the block ends. The consumer hands out no message while no loop asks, and never two at the same time.

When the consumer is closed, a loop body that still works keeps its message. The work on a message ends when the loop
asks for the next one, when the loop is left, or when its task ends. A loop is left when no code holds its iterator any
more; inside `async with`, when the block ends or another loop begins. The body belongs to the task that calls `anext`,
even if another task waits for the answer, as with `asyncio.wait_for` before Python 3.12. A task that returns the
message has passed it on, so the end of that task says nothing about the message.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

from orderlymq.consumer.listeners.context import ConcurrentContext, NotBegun, OrderedContext
from orderlymq.errors import StateError
from orderlymq.message import ReceivedMessage

_log = logging.getLogger(__name__)

_Offer: TypeAlias = tuple[
    ReceivedMessage, OrderedContext | ConcurrentContext, "asyncio.Future[None]"
]
Outlives: TypeAlias = Callable[["asyncio.Future[None]", OrderedContext | ConcurrentContext], object]
Worker: TypeAlias = asyncio.Task[Any] | int | None
"""The worker or caller: a task, the number of a thread, or None for no one in particular."""


class LoopLeft(Exception):  # noqa: N818 - says what happened
    """The loop was left before it asked for the next message."""


@dataclass(slots=True, eq=False)
class _InHand:
    """A message that a loop has in hand.

    Attributes:
        message: the message.
        done: future that ends the listener call of the message.
        stream: returns the message's loop, None if that was left.
        worker: the task that asked for the message, kept so that its end is noticed; or the number of the thread.
        is_wanted: a later loop, or the closing of the consumer, waits for the end of the message.
        has_later: a later loop has begun, so the end of the block no longer counts.
    """

    message: ReceivedMessage
    done: asyncio.Future[None]
    stream: "weakref.ref[MessageStream]"
    worker: asyncio.Task[Any] | int
    is_wanted: bool = False
    has_later: bool = False

    @property
    def task(self) -> asyncio.Task[Any] | None:
        return None if isinstance(self.worker, int) else self.worker

    def is_done(self, by: "Worker", *, group: str) -> bool:
        """Return whether the message is done when *by* leaves the block without an error.

        It is if *by* had it, or if its task has ended without an error. The outcome is unknown for another thread, and
        for a task that has left its loop but still runs.
        """
        if self.worker == by:
            return True
        if self.task is None or not self.task.done() or self.task.cancelled():
            return False
        error = self.task.exception()  # asyncio then counts it as seen
        if error is not None:
            _log.warning("a loop over the consumer [%s] has failed", group, exc_info=error)
        return error is None

    def has_ended(self, by: "Worker", *, in_block: bool) -> bool:
        """Return whether no task or thread works on the message any more, as far as *by* can tell."""
        task = self.task
        if task is not None and task.done() and (self.has_later or not self._is_handed_on(task)):
            return True
        return self.stream() is None and (self.worker == by or not in_block or self.has_later)

    def _is_handed_on(self, ended: "asyncio.Task[Any]") -> bool:
        """Return whether a task that has ended has returned the message, so that it is unknown who works on it."""
        if ended.cancelled() or ended._exception is not None:  # the method would mark it as seen
            return False
        return ended.result() is self.message


class MessageLoop:
    """The hand-over between a consumer and the loop over it.

    Attributes:
        begin: called when the first loop asks for a message, or when it is certain that none will.
        outlives: called with the future and the context of a message that a loop body still works on after its listener
            call was cancelled.
        in_block: true inside `async with`; the end of that block ends the last message.
    """

    def __init__(self, group: str) -> None:
        self.begin: Callable[[], object] | None = None
        self.outlives: Outlives | None = None
        self.in_block = False
        self._group = group
        self._events = asyncio.get_running_loop()
        self._offers: asyncio.Queue[_Offer | None] = asyncio.Queue()
        self._in_hand: _InHand | None = None
        self._current: weakref.ref[MessageStream] | None = None
        self._is_over = False
        self._error: BaseException | None = None

    async def offer(
        self, messages: Sequence[ReceivedMessage], context: OrderedContext | ConcurrentContext
    ) -> None:
        """Act as the listener: return when the loop has done the message."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offers.put_nowait((messages[0], context, done))
        try:
            await asyncio.shield(done)
        except asyncio.CancelledError:
            hand = self._in_hand
            if hand is not None and hand.done is done and self.outlives is not None:
                self.outlives(done, context)  # nothing can end the work of a program
            else:
                done.cancel()  # no loop may begin it
            raise

    def stream(self, thread: int | None = None) -> "MessageStream":
        """Begin a loop of one thread, or of the tasks that ask.

        The message of an earlier loop is delivered again as soon as no other task or thread works on it. An earlier
        loop that waits for a message ends.
        """
        if self._in_hand is not None:
            self._in_hand.has_later = True
        by = asyncio.current_task() if thread is None else thread
        if self._is_others(by):
            self._want(by)
        else:
            self.leave()
        stream = MessageStream(self, thread)
        self._current = weakref.ref(stream)
        self._offers.put_nowait(None)
        return stream

    async def next(self, stream: "MessageStream", by: Worker) -> ReceivedMessage:
        """Take the last message as done and return the next one, for *by*.

        Raises:
            StateError: Another loop over the consumer has begun.
            StopAsyncIteration: The consumer is closed.
        """
        if self.is_in_hand_of(stream):
            self.settle()
        self._check_current(stream)
        self._begin()
        while not self._is_over:
            offer = await self._offers.get()
            if not self.is_current(stream):
                self._offers.put_nowait(offer)  # it is for the later loop
            self._check_current(stream)
            if offer is None:
                continue
            message, context, done = offer
            if isinstance(context, ConcurrentContext) or context.still_holds():
                left = weakref.ref(stream, self._left)
                self._in_hand = _InHand(message, done, left, _worker(by))
                return message
            _give_back(done, "the lock ended before the loop took the message")
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def is_in_hand_of(self, stream: "MessageStream") -> bool:
        """Return whether this loop has the message in hand."""
        return self._in_hand is not None and self._in_hand.stream() is stream

    def is_current(self, stream: "MessageStream") -> bool:
        """Return whether no other loop has begun since this one."""
        return self._current is not None and self._current() is stream

    def _check_current(self, stream: "MessageStream") -> None:
        if not self.is_current(stream):
            raise StateError(
                f"another loop over the consumer {self._group} has begun; for work in parallel give "
                "it a listener, or make more consumers"
            )

    def settle(self) -> None:
        """Mark the message in hand as done."""
        done = self._let_go()
        if done is not None:
            done.set_result(None)

    def leave(self) -> None:
        """Have the message in hand delivered again."""
        done = self._let_go()
        if done is not None:
            done.set_exception(LoopLeft("the loop was left before it asked for the next message"))
            done.exception()  # else asyncio logs it as unseen where the call was cut off

    def leave_block(self, by: Worker, *, is_done: bool) -> None:
        """Mark the last message as done, or have it delivered again, unless another task or thread than *by* works on it.

        The block may not know how another task left the message; the message is done only if that task has ended
        without an error.
        """
        self.in_block = False
        hand = self._in_hand
        if hand is not None and not self._is_others(by):
            (self.settle if is_done and hand.is_done(by, group=self._group) else self.leave)()

    def is_at_work(self, worker: Worker) -> bool:
        """Return whether this task or thread works on the message in hand, and so cannot wait for the message's end."""
        hand = self._in_hand
        return (
            hand is not None
            and hand.worker == worker
            and not hand.has_ended(worker, in_block=self.in_block)
        )

    def end(self, by: Worker = None, error: BaseException | None = None) -> None:
        """End the loop, with *error* if there is one; for a message that it has not taken, no try is counted.

        A message that a loop body works on stays in hand until that work has ended. It is done if the loop asks for the
        next one.
        """
        self._is_over, self._error = True, self._error or error
        self._want(by)
        while not self._offers.empty():
            offer = self._offers.get_nowait()
            if offer is not None:
                _give_back(offer[2], "the loop ended before it took the message")
        self._offers.put_nowait(None)
        self._begin()  # otherwise an offer that waits for its slot would keep its queue

    def _begin(self) -> None:
        begin, self.begin = self.begin, None
        if begin is not None:
            begin()

    def _is_others(self, by: Worker) -> bool:
        """Return whether another task or thread than *by* works on the message in hand."""
        hand = self._in_hand
        return (
            hand is not None
            and hand.worker != by
            and not hand.has_ended(by, in_block=self.in_block)
        )

    def _let_go(self) -> "asyncio.Future[None] | None":
        hand, self._in_hand = self._in_hand, None
        if hand is None:
            return None
        if hand.is_wanted and hand.task is not None:
            hand.task.remove_done_callback(self._look)
        return None if hand.done.done() else hand.done

    def _left(self, _stream: object) -> None:
        """Handle the end of a stream's life, which Python may report in any thread."""
        with contextlib.suppress(RuntimeError):  # the event loop has ended already
            self._events.call_soon_threadsafe(self._look, None)

    def _want(self, by: Worker) -> None:
        """Have the message in hand delivered again as soon as all work on it has ended, unless the loop asks for the next one."""
        hand = self._in_hand
        if hand is not None and not hand.is_wanted:
            hand.is_wanted = True
            if hand.task is not None:
                hand.task.add_done_callback(self._look)
        self._look(by)

    def _look(self, by: Worker) -> None:
        hand = self._in_hand
        if hand is not None and hand.is_wanted and hand.has_ended(by, in_block=self.in_block):
            self.leave()


def _worker(by: Worker) -> asyncio.Task[Any] | int:
    """Return the worker that gets the message: *by*, or the current task if *by* is None or has ended since."""
    if by is None or (isinstance(by, asyncio.Task) and by.done()):
        by = asyncio.current_task()
        assert by is not None
    return by


def _give_back(done: "asyncio.Future[None]", why: str) -> None:
    if not done.done():
        done.set_exception(NotBegun(why))


class MessageStream(AsyncIterator[ReceivedMessage]):
    """The messages of one `async for`, or of a loop in a *thread*."""

    def __init__(self, loop: MessageLoop, thread: int | None = None) -> None:
        self._loop = loop
        self._thread = thread

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, ReceivedMessage]:
        return self._loop.next(self, self._caller() if self._thread is None else self._thread)

    @staticmethod
    def _caller() -> asyncio.Task[Any] | None:
        try:
            return asyncio.current_task()
        except RuntimeError:  # a thread without an event loop; its call runs in another thread
            return None

    def leave(self) -> None:
        """Have the message that this loop has in hand delivered again; the program has not seen it."""
        if self._loop.is_in_hand_of(self):
            self._loop.leave()
