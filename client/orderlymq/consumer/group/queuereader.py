"""Reads queues for a consumer group: offsets and pulls; shared by the pull consumers, the commands and the console."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.group.offsets import BrokerOffsets
from orderlymq.consumer.group.requests import (
    PullOptions,
    PullResult,
    fence,
    pull_request,
    read_offset,
    read_pull,
)
from orderlymq.consumer.group.subscriptions import make_subscription
from orderlymq.errors import (
    BodyUnreadable,
    BrokerError,
    BrokerUnreachable,
    PullError,
    SettingError,
)
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import (
    QueueHeader,
    SearchOffsetHeader,
)
from orderlymq_runtime.remoting.client import RemotingError
from orderlymq_runtime.wallclock import machine_ms

_PULL_TIMEOUT_S: Final = 10.0  # RocketMQ's consumerPullTimeoutMillis


def check_place(queue: object, offset: object = 0) -> None:
    """Refuse an invalid queue or offset, before any code stores it or retries with it.

    Raises:
        SettingError: One of them is invalid; the text states the expected form.
    """
    if not isinstance(queue, MessageQueue):
        raise SettingError(f"queue is {queue!r}; give a MessageQueue, as fetch_queues returns them")
    if isinstance(offset, bool) or not isinstance(offset, int):
        raise SettingError(f"offset is {offset!r}; it must be an integer")


class QueueReader:
    """Reads queues for a consumer group: offsets and pulls; shared by the pull consumers and the commands."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self.instance = instance
        self.group = group
        self.offsets = BrokerOffsets(instance, group)

    async def pull(  # noqa: PLR0913 - the fields of one request
        self,
        queue: MessageQueue,
        offset: int,
        *,
        expression: str | None = "*",
        kind: str = "TAG",
        count: int = 32,
        suspend_ms: int = 0,
        timeout_s: float = _PULL_TIMEOUT_S,
        lite: bool = False,
        unreadable: bool = False,
        body_max: int | None = None,
    ) -> PullResult:
        """Pull once; the messages end before one whose body cannot be inflated, unless *unreadable* is true.

        With *body_max*, each message has at most that many of the first bytes of its body.

        Raises:
            PullError: The broker refused or did not answer.
            BodyUnreadable: The first message has a body that cannot be inflated.
        """
        check_place(queue, offset)
        asked, queue = queue, self.instance.whole_queue(queue)
        subscription = make_subscription(queue.topic, expression or "*", kind, machine_ms())
        command = pull_request(
            PullOptions(
                group=self.group,
                queue=queue,
                offset=offset,
                count=count,
                subscription=subscription.data,
                suspend_ms=suspend_ms,
                with_subscription=True,
                lite=lite,
                fence=fence(self.instance.client_id),
            )
        )
        try:
            address = await self.instance.leader(queue.broker_name, queue.topic)
            answer = await self.instance.invoke(address, command, timeout_s)
            result = read_pull(answer, queue, self.group, address, body_max)
        except (RemotingError, BrokerError, BrokerUnreachable) as error:
            place = f"{queue.topic} {queue.broker_name}:{queue.queue_id}"
            raise PullError(f"the pull of {place} at {offset} failed: {error}") from error
        matches = subscription.tags.matches_tag
        wanted = tuple(message for message in result.messages if matches(message.tags))
        for message in wanted:
            message.topic = self.instance.bare(message.topic)
        end = next((n for n, message in enumerate(wanted) if message.unreadable), None)
        if end is None or unreadable:
            return replace(result, messages=wanted)
        at = wanted[end].queue_offset
        if not end:
            raise BodyUnreadable(asked, at, wanted[end].unreadable)
        return replace(result, messages=wanted[:end], next_offset=at)

    async def messages(
        self, queue: MessageQueue, begin: int, end: int
    ) -> AsyncIterator[ReceivedMessage]:
        """Yield the stored messages from *begin* to before *end*, including those whose bodies cannot be inflated.

        Raises:
            PullError: The broker refused or did not answer.
        """
        offset = begin
        while offset < end:
            result = await self.pull(queue, offset, unreadable=True)
            for message in result.messages:
                if message.queue_offset < end:
                    yield message
            offset = max(result.next_offset, offset + 1)

    async def max_offset(self, queue: MessageQueue) -> int:
        """Return the offset that the next message will get."""
        check_place(queue)
        header = QueueHeader(queue.topic, queue.queue_id)
        return read_offset(await self._call(queue, RequestCode.GET_MAX_OFFSET, header.to_ext()))

    async def min_offset(self, queue: MessageQueue) -> int:
        """Return the oldest offset that is still stored."""
        check_place(queue)
        header = QueueHeader(queue.topic, queue.queue_id)
        return read_offset(await self._call(queue, RequestCode.GET_MIN_OFFSET, header.to_ext()))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time in milliseconds."""
        check_place(queue)
        header = SearchOffsetHeader(queue.topic, queue.queue_id, timestamp_ms)
        code = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
        return read_offset(await self._call(queue, code, header.to_ext()))

    async def _call(
        self, queue: MessageQueue, code: RequestCode, ext: dict[str, str]
    ) -> RemotingCommand:
        address = await self.instance.leader(queue.broker_name, queue.topic)
        return await self.instance.call(address, code, ext)
