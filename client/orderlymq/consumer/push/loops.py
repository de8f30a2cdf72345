"""
A consumer that a program loops over: `async for`, and the `async with` block around it.

Rules: as in `messageloop`, which hands over the messages. The blocking consumer uses this module, too, to begin and
leave loops for a thread.
"""

import asyncio
from typing import Self

from orderlymq.consumer.listeners.context import Listener
from orderlymq.consumer.listeners.messageloop import MessageLoop, MessageStream, Worker
from orderlymq.errors import StateError
from orderlymq.ownedtasks import Lifecycle


class LoopedConsumer(Lifecycle):
    """Base of a push consumer that supports loops; it has a loop once it is started without a listener."""

    group: str
    listener: Listener | None
    _loop: MessageLoop | None = None

    def __aiter__(self) -> MessageStream:
        return self._begin_loop()

    def _begin_loop(self, thread: int | None = None) -> MessageStream:
        """Begin a loop over the messages, for the tasks that ask or for a *thread*.

        Raises:
            StateError: The consumer is not started, or has a listener.
        """
        if self._loop is None:
            cure = (
                "it has a listener, which gets the messages"
                if self.listener is not None
                else "call start() or use `async with` first"
            )
            raise StateError(f"the consumer {self.group} cannot be looped over: {cure}")
        return self._loop.stream(thread)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        if self._loop is not None:
            self._loop.in_block = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._leave_block(asyncio.current_task(), is_done=kind is None)
        await self.close()

    def _leave_block(self, worker: Worker, *, is_done: bool) -> None:
        """Handle that a task or thread has left the `async with` block, which ends the last message of a loop."""
        if self._loop is not None:
            self._loop.leave_block(worker, is_done=is_done)
