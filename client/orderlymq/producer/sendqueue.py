"""
Per-key send queues: sends that leave one after the other, in the order of their calls.

Rules: the next send of a queue starts when the previous one is stored. When one fails, everything that waits
behind it is refused without being sent. Otherwise a later message could be stored although the earlier one is
missing, or before it if that one was stored late after all. An empty queue ends. A send is one call: a message, a
batch or a request.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from orderlymq.errors import SendRefused
from orderlymq.message import Message, SendResult
from orderlymq.producer.sendoutcome import unheard
from orderlymq_protocol.body.messagequeue import MessageQueue

SendQueueKey: TypeAlias = tuple[str, MessageQueue | int | None, str | None]
"""Topic, fixed queue, sharding key."""

Send: TypeAlias = Callable[[], Coroutine[Any, Any, SendResult]]


def behind_failed(cause: BaseException) -> SendRefused:
    """Return the error of a send that waited behind a failed one."""
    refusal = SendRefused(f"not sent, because an earlier send of the same key failed: {cause}")
    refusal.__cause__ = cause
    return refusal


class SendQueue:
    """The pending sends of one key; *ended* is called when none is left."""

    def __init__(self, ended: Callable[[], object]) -> None:
        self._ended = ended
        self._waiting: deque[tuple[Send, Sequence[Message], asyncio.Future[SendResult]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def enter(self, messages: Sequence[Message], send: Send) -> "asyncio.Future[SendResult]":
        """Append a send of *messages*; its time-out counts from when it starts."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._waiting.append((send, messages, future))
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="send queue")
        return future

    async def _run(self) -> None:
        try:
            while self._waiting:
                send, messages, future = self._waiting.popleft()
                if future.cancelled():
                    continue
                try:
                    result = await send()
                except asyncio.CancelledError:
                    future.cancel()
                    raise
                except Exception as error:
                    self._refuse_waiting(error)
                    if not future.cancelled():
                        future.set_exception(error)
                else:
                    if future.cancelled():
                        unheard(messages)
                    else:
                        future.set_result(result)
        except asyncio.CancelledError as error:
            self._refuse_waiting(error)
            raise
        finally:
            self._ended()

    def _refuse_waiting(self, cause: BaseException) -> None:
        while self._waiting:
            *_, future = self._waiting.popleft()
            if not future.cancelled():
                future.set_exception(behind_failed(cause))
