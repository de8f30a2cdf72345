"""Sends for FastStream: the producer behind `publish`, and publishers that send what handlers return."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fast_depends.library.serializer import SerializerProto
from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.constants import ContentTypes
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream._internal.types import CustomCallable, PublisherMiddleware
from faststream.exceptions import FeatureNotSupportedException, IncorrectState
from faststream.response.response import PublishCommand
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, PublisherSpec

from orderlymq.integrations.faststream.messages import (
    CONTENT_TYPE,
    CORRELATION_ID,
    OrderlyMQMessage,
    OrderlyMQPublishCommand,
    decode,
    parse,
)
from orderlymq.message import Message, SendResult
from orderlymq.producer.producer import Producer


class OrderlyMQProducer(ProducerProto[OrderlyMQPublishCommand]):
    """Performs FastStream's `publish` with a producer of the SDK."""

    def __init__(self, parser: CustomCallable | None, decoder: CustomCallable | None) -> None:
        self._parser = ParserComposition(parser, parse)
        self._decoder = ParserComposition(decoder, decode)
        self.codec: CodecProto = DefaultCodec()
        self.serializer: SerializerProto | None = None
        self.producer: Producer | None = None

    async def publish(self, cmd: OrderlyMQPublishCommand) -> SendResult:
        """Send the message; return where it is stored."""
        if self.producer is None:
            raise IncorrectState("the broker is not connected: call start(), or use `async with`")
        return await self.producer.send(await self.message(cmd), timeout=cmd.timeout)

    async def message(self, cmd: OrderlyMQPublishCommand) -> Message:
        """Return the message for a command; None and empty text become JSON, because no body may be empty."""
        body, content_type = await self.codec.encode(cmd.body, self.serializer)
        if isinstance(cmd.body, str | bytes | None) and not cmd.body:
            body = b"null" if cmd.body is None else b'""'
            content_type = ContentTypes.JSON.value
        properties = {name: str(value) for name, value in cmd.headers.items()}
        if content_type:
            properties.setdefault(CONTENT_TYPE, content_type)
        if cmd.correlation_id:
            properties.setdefault(CORRELATION_ID, cmd.correlation_id)
        return Message(
            topic=cmd.destination, body=body, key=cmd.key, tags=cmd.tags, properties=properties
        )

    async def request(self, cmd: OrderlyMQPublishCommand) -> Any:
        """Refuse, because replies use topics."""
        raise FeatureNotSupportedException(
            "this broker has no `request`; publish to a topic, or use orderlymq.Producer.request"
        )

    async def publish_batch(self, cmd: OrderlyMQPublishCommand) -> Any:
        """Refuse, because a batch needs one key."""
        raise FeatureNotSupportedException(
            "this broker has no `publish_batch`; use orderlymq.Producer.send_batch"
        )


@dataclass(kw_only=True)
class PublisherConfig(PublisherSpecificationConfig):
    """Settings of a publisher for AsyncAPI."""

    topic: str


class OrderlyMQPublisherSpecification(PublisherSpecification[Any, PublisherConfig]):
    """Describes a publisher for AsyncAPI."""

    @property
    def name(self) -> str:
        """The key of the publisher's channel."""
        return self.config.title_ or f"{self.config.topic}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel of the publisher."""
        message = MessageSpec(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads(), "Publisher")
        )
        return {
            self.name: PublisherSpec(
                address=self.config.topic,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class OrderlyMQPublisher(PublisherUsecase):
    """Sends to one topic, with `publish` or as a decorator of handlers."""

    def __init__(
        self,
        config: PublisherUsecaseConfig,
        specification: PublisherSpecification[Any, Any],
        headers: Mapping[str, Any],
    ) -> None:
        super().__init__(config, specification)
        self.topic = specification.config.topic
        self.headers = dict(headers)

    async def publish(
        self,
        message: Any = None,
        *,
        key: str | int | None = None,
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
    ) -> SendResult:
        """Send a message to the publisher's topic."""
        command = OrderlyMQPublishCommand(
            message,
            topic=self.topic,
            key=key,
            headers={**self.headers, **(headers or {})},
            correlation_id=correlation_id or self._outer_config.id_generator(),
        )
        producer = self._outer_config.producer
        result: SendResult = await self._basic_publish(
            command, producer=producer, _extra_middlewares=()
        )
        return result

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Send the result of a handler; if it has no key, it gets the key of the handled message."""
        command = OrderlyMQPublishCommand.of(cmd)
        command.destination = self.topic
        command.add_headers(self.headers, override=False)
        handled = self._outer_config.context.get_local("message")
        if command.key is None and isinstance(handled, OrderlyMQMessage):
            command.key = handled.key
        await self._basic_publish(
            command, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares
        )

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse, as `OrderlyMQProducer.request` does."""
        raise FeatureNotSupportedException("this broker has no `request`")
