"""
`async for` over a consumer: one message at a time, as a listener that hands each to the loop.

Rules: a message is done when the loop asks for the next one, or when the consumer's `async with` block ends
without an error: Python does not show a loop how it is left. An exception that leaves the block leaves its last message undone.
The consumer hands out nothing while no loop asks, and never two messages at the same time.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Self, TypeAlias

from orderlymq.consumer.listeners.context import ConcurrentContext, NotBegun, OrderedContext
from orderlymq.errors import StateError
from orderlymq.message import ReceivedMessage

_Offer: TypeAlias = tuple[
    ReceivedMessage, OrderedContext | ConcurrentContext, "asyncio.Future[None]"
]


class LoopLeft(Exception):  # noqa: N818 - says what happened
    """The loop was left before it asked for the next message."""


class MessageLoop:
    """The hand-over between a consumer and the loop over it.

    Attributes:
        begin: called when the first loop asks for a message.
    """

    def __init__(self, group: str) -> None:
        self.begin: Callable[[], object] | None = None
        self._group = group
        self._offers: asyncio.Queue[_Offer | None] = asyncio.Queue()
        self._in_hand: asyncio.Future[None] | None = None
        self._current: MessageStream | None = None
        self._is_over = False
        self._error: BaseException | None = None

    async def offer(
        self, messages: Sequence[ReceivedMessage], context: OrderedContext | ConcurrentContext
    ) -> None:
        """Be the listener: return when the loop has done the message."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._offers.put_nowait((messages[0], context, done))
        try:
            await done
        finally:
            done.cancel()  # when the call itself was cancelled, nobody is to work on the message

    def stream(self) -> "MessageStream":
        """Begin a loop; what an earlier one has in hand comes again, and one that still waits ends."""
        self.leave()
        self._current = MessageStream(self)
        self._offers.put_nowait(None)
        return self._current

    async def next(self, stream: "MessageStream") -> ReceivedMessage:
        """Take the last message as done and return the next.

        Raises:
            StateError: Another loop over the consumer has begun.
            StopAsyncIteration: The consumer is closed.
        """
        self._check_current(stream)
        self.settle()
        if self.begin is not None:
            begin, self.begin = self.begin, None
            begin()
        while not self._is_over:
            offer = await self._offers.get()
            if not self.is_current(stream):
                self._offers.put_nowait(offer)  # it is for the later loop
            self._check_current(stream)
            if offer is None:
                continue
            message, context, done = offer
            if isinstance(context, ConcurrentContext) or context.still_holds():
                self._in_hand = done
                return message
            _give_back(done, "the lock ended before the loop took the message")
        if self._error is not None:
            raise self._error
        raise StopAsyncIteration

    def is_current(self, stream: "MessageStream") -> bool:
        """Whether no other loop has begun since."""
        return stream is self._current

    def _check_current(self, stream: "MessageStream") -> None:
        if not self.is_current(stream):
            raise StateError(
                f"another loop over the consumer {self._group} has begun; for work in parallel give "
                "it a listener, or make more consumers"
            )

    def settle(self) -> None:
        """Take the message in hand as done."""
        done, self._in_hand = self._in_hand, None
        if done is not None and not done.done():
            done.set_result(None)

    def leave(self) -> None:
        """Have the message in hand delivered again."""
        done, self._in_hand = self._in_hand, None
        if done is not None and not done.done():
            done.set_exception(LoopLeft("the loop was left before it asked for the next message"))

    def end(self, error: BaseException | None = None) -> None:
        """End the loop, with *error* if there is one; what it has not done comes again, and what it has not taken counts no try."""
        self._is_over, self._error = True, self._error or error
        self.leave()
        while not self._offers.empty():
            offer = self._offers.get_nowait()
            if offer is not None:
                _give_back(offer[2], "the loop ended before it took the message")
        self._offers.put_nowait(None)


def _give_back(done: "asyncio.Future[None]", why: str) -> None:
    if not done.done():
        done.set_exception(NotBegun(why))


class MessageStream(AsyncIterator[ReceivedMessage]):
    """Messages of one `async for`."""

    def __init__(self, loop: MessageLoop) -> None:
        self._loop = loop

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReceivedMessage:
        return await self._loop.next(self)

    def leave(self) -> None:
        """Have what this loop has in hand delivered again; nobody has seen it."""
        if self._loop.is_current(self):
            self._loop.leave()
