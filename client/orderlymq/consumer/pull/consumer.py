"""
The plain pull consumer: the application decides about each pull, and keeps the offsets.

Rule: this consumer does only what the application asks for. For most uses, `LitePullConsumer` (which keeps the offsets)
or `Consumer` (which delivers messages to a listener) is easier.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from orderlymq.consumer.group.calls import hand_back
from orderlymq.consumer.group.requests import PullResult, is_sent_away
from orderlymq.consumer.pull.groupreader import SUSPEND_MS, SUSPENDED_TIMEOUT_S, GroupReader
from orderlymq.consumer.settings import RECONSUME_CONCURRENT_MAX
from orderlymq.errors import PullError, StateError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue

_BACK_OFF_FIRST_S: Final = 0.05
_BACK_OFF_MAX_S: Final = 5.0


class PullConsumer(GroupReader):
    """Pulls when the application calls `pull`; `close` commits the offsets of `update_offset`.

    Args:
        group: the consumer group whose committed offsets `committed` and `commit` read and write.
    """

    async def _finish(self) -> None:
        await self._reader.offsets.persist(list(self._reader.offsets.queues))

    async def pull(
        self, queue: MessageQueue, expression: str | None, offset: int, count: int = 32
    ) -> PullResult:
        """Pull up to *count* messages from *offset* on; answer immediately. The expression None selects every message.

        Raises:
            PullError: The broker refused or did not answer.
            BodyUnreadable: The first message cannot be read. Messages before an unreadable one are returned.
        """
        return await self._reader.pull(queue, offset, expression=expression, count=count)

    async def pull_block_if_not_found(
        self, queue: MessageQueue, expression: str | None, offset: int, count: int = 32
    ) -> PullResult:
        """Pull as `pull` does, but wait up to 20 s at the broker for a message.

        Raises:
            PullError, BodyUnreadable: As `pull`.
        """
        return await self._reader.pull(
            queue,
            offset,
            expression=expression,
            count=count,
            suspend_ms=SUSPEND_MS,
            timeout_s=SUSPENDED_TIMEOUT_S,
        )

    async def messages(
        self, queue: MessageQueue, offset: int, expression: str | None = None
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the messages of a queue for ever: wait for new ones, and retry after failed pulls.

        Raises:
            BodyUnreadable: As `pull`; begin again after its `offset`.
            StateError: The consumer was closed.
        """
        back_off_s = _BACK_OFF_FIRST_S
        while self._state != "SHUTDOWN_ALREADY":
            try:
                result = await self.pull_block_if_not_found(queue, expression, offset)
            except PullError as error:
                if self._state == "SHUTDOWN_ALREADY":
                    break
                self._not_pulled(queue, error)
                result = None
            else:
                self._pulled(queue)
            if result is None or is_sent_away(result, offset):
                await asyncio.sleep(back_off_s)
                back_off_s = min(_BACK_OFF_MAX_S, back_off_s * 2)
                continue
            back_off_s = _BACK_OFF_FIRST_S
            for message in result.messages:
                yield message
            offset = result.next_offset
        raise StateError(f"the consumer {self.group} was closed while its messages were read")

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        return await self._reader.max_offset(self._place(queue))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest offset that is still stored."""
        return await self._reader.min_offset(self._place(queue))

    def update_offset(self, queue: MessageQueue, offset: int) -> None:
        """Remember an offset, which `close` commits.

        Raises:
            SettingError: The queue is no MessageQueue, or the offset is no integer.
        """
        queue = self._place(queue, offset)
        self._reader.offsets.update(queue, offset, epoch=None, increase_only=False)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        """Commit an offset for the consumer group now; if that fails, `close` tries again.

        Raises:
            BrokerUnreachable: The broker did not answer; the offset may be committed.
            BrokerError: The broker refused it, for example because another member holds the queue.
        """
        self.update_offset(queue, offset)
        await self._reader.offsets.commit(self._place(queue))

    async def send_back(self, message: ReceivedMessage, delay_level: int = 0) -> None:
        """Have a message delivered again later through the group's retry topic; delay level -1 sends it to the dead-letter queue.

        Raises:
            PullError: The broker took neither the request nor a copy.
        """
        ok, reason = await hand_back(
            self._instance,
            self.group,
            message,
            delay_level=delay_level,
            maximum=RECONSUME_CONCURRENT_MAX,
        )
        if not ok:
            raise PullError(f"{message!r} could not be sent back: {reason}")
