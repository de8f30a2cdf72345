"""Deliveries for FastStream: a subscriber is a consumer of the SDK whose listener calls the handlers."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fast_depends.utils import is_coroutine_callable
from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.publisher import PublisherProto
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream.exceptions import FeatureNotSupportedException
from faststream.message import StreamMessage
from faststream.message.message import AckStatus
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message as MessageSpec
from faststream.specification.schema import Operation, SubscriberSpec

from orderlymq.consumer.group.subscriptions import (
    check_group,
    check_ordered,
    make_subscription,
)
from orderlymq.consumer.listeners.context import NotBegun
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.integrations.faststream.config import OrderlyMQConfig
from orderlymq.integrations.faststream.messages import (
    Delivery,
    OrderlyMQMessage,
    decode,
    parse,
)
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.catalogue import EXPRESSION_TAG
from orderlymq_runtime.wallclock import machine_ms


class MessageAgain(Exception):  # noqa: N818 - says what happens next
    """A message must be delivered again; FastStream's log has the reason."""


@dataclass(kw_only=True)
class SubscriberConfig(SubscriberUsecaseConfig):
    """Arguments of a subscriber for its consumer; the fields are those of `orderlymq.Consumer`."""

    topic: str
    group: str
    tags: str
    ordered: bool | Literal["key"]
    concurrency: int | None
    consume_from: ConsumeFrom | str | None
    settings: ConsumerSettings

    @property
    def ack_policy(self) -> AckPolicy:
        """What the end of a handler means; by default, after an error the message is delivered again."""
        for policy in (self._ack_policy, self._outer_config.ack_policy):
            if policy is not EMPTY:
                return policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class SubscriberShown(SubscriberSpecificationConfig):
    """Settings of a subscriber for AsyncAPI."""

    topic: str


class OrderlyMQSubscriberSpecification(SubscriberSpecification[Any, SubscriberShown]):
    """Describes a subscriber for AsyncAPI."""

    @property
    def channel_labels(self) -> list[str]:
        """The topic of the subscriber."""
        return [self.config.topic]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel of the subscriber."""
        message = MessageSpec(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        return {
            self.name: SubscriberSpec(
                address=self.config.topic,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class OrderlyMQSubscriber(SubscriberUsecase[Delivery]):
    """The handlers of one topic in one consumer group."""

    _outer_config: OrderlyMQConfig

    def __init__(
        self,
        config: SubscriberConfig,
        specification: SubscriberSpecification[Any, Any],
        calls: CallsCollection[Delivery],
    ) -> None:
        config.parser, config.decoder = parse, decode
        super().__init__(config, specification, calls)
        check_group(config.group)
        check_ordered(config.ordered)
        subscription = make_subscription(config.topic, config.tags, EXPRESSION_TAG, machine_ms())
        self.topic = config.topic
        self.group = config.group
        self._wanted_tags = subscription.tags
        self._config = config
        self._consumer: Consumer | None = None
        self._in_threads = False
        self._calling: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Join the consumer group."""
        await super().start()
        self._post_start()
        if not self.calls:
            return
        # FastStream calls a handler that is not a coroutine function in a thread.
        self._in_threads = not all(
            is_coroutine_callable(each.handler._original_call) for each in self.calls
        )
        wanted = self._config
        self._consumer = Consumer(
            self.group,
            topics={self.topic: wanted.tags},
            listener=self._listen,
            ordered=wanted.ordered,
            concurrency=wanted.concurrency,
            consume_from=wanted.consume_from,
            settings=wanted.settings,
            instance=self._outer_config.instance,
        )
        await self._consumer.start()
        if self._in_threads and self._consumer.listeners is not None:
            self._consumer.listeners.cancels = False

    async def stop(self) -> None:
        """Finish the running handlers, commit, leave the consumer group."""
        if self._consumer is not None:
            # Messages that FastStream no longer handles would count as failed.
            self._consumer.suspend()
        await super().stop()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            self._closing = asyncio.create_task(consumer.close(), name=f"close {self.group}")
        # If a handler stops its own subscriber, `close` waits for that handler, so the handler must not wait for
        # `close`.
        if self._closing is not None and asyncio.current_task() not in self._calling:
            await self._closing

    async def _listen(self, messages: Sequence[ReceivedMessage], _context: object) -> None:
        """Act as the listener: return when the message is done, raise if it must be delivered again."""
        delivery = Delivery(messages[0])
        call = self._call(delivery)
        await (_to_the_end(call) if self._in_threads else call)
        if delivery.outcome not in {AckStatus.ACKED, AckStatus.REJECTED}:
            raise MessageAgain(f"{messages[0]!r} was not acknowledged")

    async def _call(self, delivery: Delivery) -> None:
        if not self.running:
            raise NotBegun(
                f"the subscriber of {self.topic} stops"
            )  # FastStream would drop it silently
        task = asyncio.current_task()
        assert task is not None
        self._calling.add(task)
        try:
            await self.consume(delivery)
        finally:
            self._calling.discard(task)

    def wants(self, topic: str, tag: str | None) -> bool:
        """Return whether a message to *topic* with this tag is for the handlers."""
        return topic == self.topic and self._wanted_tags.matches_tag(tag)

    def get_log_context(self, message: StreamMessage[Delivery] | None) -> dict[str, str]:
        """Return the fields of each log line in addition to its text."""
        return {
            "topic": self.topic,
            "group": self.group,
            "message_id": getattr(message, "message_id", ""),
        }

    def _make_response_publisher(self, _message: StreamMessage[Delivery]) -> list[PublisherProto]:
        return []

    async def get_one(self, *, timeout: float = 5) -> OrderlyMQMessage | None:
        """Refuse, because a consumer group has no single reads."""
        raise FeatureNotSupportedException(
            "this broker has no `get_one`; use a handler, or orderlymq.Consumer"
        )

    def __aiter__(self) -> AsyncIterator[OrderlyMQMessage]:
        raise FeatureNotSupportedException(
            "this subscriber cannot be iterated; use a handler, or `async for` over "
            "orderlymq.Consumer"
        )


async def _to_the_end(call: Coroutine[Any, Any, None]) -> None:
    """Await a call to its end, even if this is cancelled.

    A thread cannot be stopped, and its message must not be delivered again while it runs.
    """
    task = asyncio.create_task(call)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
    task.result()


def make_subscriber(config: SubscriberConfig, shown: SubscriberShown) -> OrderlyMQSubscriber:
    """Return a subscriber without handlers."""
    calls = CallsCollection[Delivery]()
    specification = OrderlyMQSubscriberSpecification(config._outer_config, shown, calls)
    return OrderlyMQSubscriber(config, specification, calls)
