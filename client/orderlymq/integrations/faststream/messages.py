"""
Messages on their way through FastStream: received, ended and published ones.

Rule: the end of a handler decides the result of the SDK's listener. Acknowledged and rejected messages are done. All
other messages are delivered again, before the next one of their queue or key.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from faststream import Context
from faststream.message import StreamMessage, decode_message
from faststream.message.message import AckStatus
from faststream.response.publish_type import PublishType
from faststream.response.response import PublishCommand, Response

from orderlymq.durations import Duration
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.message.properties import RESERVED_NAMES

CONTENT_TYPE: Final = "content-type"
CORRELATION_ID: Final = "correlation-id"


@dataclass(slots=True)
class Delivery:
    """One call of the SDK's listener; `outcome` is None until a handler or FastStream decides."""

    message: ReceivedMessage
    outcome: AckStatus | None = None


class OrderlyMQMessage(StreamMessage[Delivery]):
    """A message as handlers get it; `raw_message.message` is the SDK's message."""

    @property
    def key(self) -> str | None:
        """The sharding key."""
        return self.raw_message.message.key

    async def ack(self) -> None:
        """Mark the message as done."""
        await super().ack()
        self._note()

    async def nack(self) -> None:
        """Have the message delivered again, before the next one of its key."""
        await super().nack()
        self._note()

    async def reject(self) -> None:
        """Mark the message as done, although it was not handled; the next one follows."""
        await super().reject()
        self._note()

    def _note(self) -> None:
        if self.raw_message.outcome is None:
            self.raw_message.outcome = self.committed


HandledMessage = Annotated[OrderlyMQMessage, Context("message")]
"""The annotation by which FastStream gives a handler its message."""


async def parse(delivery: Delivery) -> OrderlyMQMessage:
    """Return a delivery as FastStream's message."""
    message = delivery.message
    headers = {
        name: value
        for name, value in message.properties.items()
        if name not in RESERVED_NAMES and not name.startswith("__")
    }
    return OrderlyMQMessage(
        raw_message=delivery,
        body=message.body,
        headers=headers,
        content_type=headers.pop(CONTENT_TYPE, None),
        correlation_id=headers.pop(CORRELATION_ID, None),
        message_id=message.message_id,
    )


async def decode(message: StreamMessage[Delivery]) -> Any:
    """Return the value of the body, according to its content type."""
    return decode_message(message)


class OrderlyMQResponse(Response):
    """Return value of a handler with more settings for the message that its publishers send.

    Args:
        body: as in `OrderlyMQBroker.publish`.
        key: sharding key; None keeps the key of the handled message.
        headers: properties of the message.
        correlation_id: None keeps that of the handled message.
    """

    def __init__(
        self,
        body: Any,
        *,
        key: str | int | None = None,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.key = key

    def get_publish_key(self) -> str | int | None:
        """Return the sharding key."""
        return self.key

    def as_publish_command(self) -> "OrderlyMQPublishCommand":
        """Return the message to publish; the publisher sets the topic."""
        return OrderlyMQPublishCommand(
            self.body,
            topic="",
            key=self.key,
            headers=self.headers,
            correlation_id=self.correlation_id,
        )


class OrderlyMQPublishCommand(PublishCommand):
    """A message to send."""

    def __init__(
        self,
        body: Any,
        *,
        topic: str,
        key: str | int | None = None,
        tags: str = "",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = None,
    ) -> None:
        super().__init__(
            body,
            destination=topic,
            headers=dict(headers or {}),
            correlation_id=correlation_id,
            _publish_type=PublishType.PUBLISH,
        )
        self.key = key
        self.tags = tags
        self.timeout = timeout

    @classmethod
    def of(cls, command: PublishCommand) -> "OrderlyMQPublishCommand":
        """Return the command itself if it is one of this class, or else one with the fields of a plain command."""
        if isinstance(command, OrderlyMQPublishCommand):
            return command
        return cls(
            command.body,
            topic=command.destination,
            headers=command.headers,
            correlation_id=command.correlation_id,
        )
