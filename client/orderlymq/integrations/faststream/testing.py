"""
FastStream's test broker: a published message goes to the handlers of its topic in the same task, without a cluster.

`orderlymq_testing` has a real cluster in the process, for tests of order and failures.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from faststream._internal.testing.broker import TestBroker, change_producer

from orderlymq.integrations.faststream.broker import OrderlyMQBroker
from orderlymq.integrations.faststream.messages import Delivery, OrderlyMQPublishCommand
from orderlymq.integrations.faststream.publisher import OrderlyMQProducer, OrderlyMQPublisher
from orderlymq.integrations.faststream.subscriber import OrderlyMQSubscriber
from orderlymq.message import Message, ReceivedMessage, SendResult, SendStatus
from orderlymq.producer.sendoutcome import check_message
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_runtime.wallclock import machine_ms


class TestOrderlyMQBroker(TestBroker[OrderlyMQBroker, OrderlyMQBroker], broker=OrderlyMQBroker):
    """Use `async with TestOrderlyMQBroker(broker) as broker`, as with FastStream's own test brokers."""

    def create_publisher_fake_subscriber(
        self, broker: OrderlyMQBroker, publisher: OrderlyMQPublisher
    ) -> tuple[OrderlyMQSubscriber, bool]:
        """Return a subscriber to a publisher's topic, and whether a real one exists; otherwise register one."""
        for each in _subscribers(self.brokers):
            if each.wants(publisher.topic, None):
                return each, True
        group = f"test-{publisher.topic}"
        return broker.subscriber(publisher.topic, group=group, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: OrderlyMQBroker) -> Iterator[None]:
        shared = broker.config.broker_config
        settings = broker._settings or ProducerSettings()
        fake = _InProcess(shared.producer, self.brokers, settings)
        fake.serializer = shared.fd_config._serializer
        fake.codec = shared.broker_codec or fake.codec
        with change_producer(shared, fake):
            yield

    async def _fake_connect(self, broker: OrderlyMQBroker, *_: Any, **__: Any) -> None:
        return None


class _InProcess(OrderlyMQProducer):
    """Calls handlers instead of sending; refuses the messages that a producer would refuse."""

    def __init__(
        self,
        real: OrderlyMQProducer,
        brokers: Sequence[OrderlyMQBroker],
        settings: ProducerSettings,
    ) -> None:
        super().__init__(None, None)
        self._parser, self._decoder = real._parser, real._decoder
        self._brokers = brokers
        self._settings = settings
        self._sent = 0

    async def publish(self, cmd: OrderlyMQPublishCommand) -> SendResult:
        message = await self.message(cmd)
        check_message(message, self._settings.max_message_size_bytes, self._settings.compresses)
        queue = MessageQueue(message.topic, "test", 0)
        offset, self._sent = self._sent, self._sent + 1
        message.unique_key = f"test-{offset}"
        for subscriber in _subscribers(self._brokers):
            if subscriber.wants(message.topic, message.tags or None):
                await subscriber.process_message(Delivery(_received(message, queue, offset)))
        return SendResult(SendStatus.OK, message.unique_key, message.unique_key, queue, offset)


def _subscribers(brokers: Sequence[OrderlyMQBroker]) -> Iterator[OrderlyMQSubscriber]:
    for broker in brokers:
        for each in broker.subscribers:
            assert isinstance(each, OrderlyMQSubscriber)
            yield each


def _received(message: Message, queue: MessageQueue, offset: int) -> ReceivedMessage:
    now_ms = machine_ms()
    nowhere = ("127.0.0.1", 0)
    return ReceivedMessage(
        topic=message.topic,
        body=message.body,
        queue=queue,
        queue_offset=offset,
        properties=message.wire_properties(),
        message_id=message.unique_key,
        offset_message_id=message.unique_key,
        born_timestamp=now_ms,
        store_timestamp=now_ms,
        born_host=nowhere,
        store_host=nowhere,
        reconsume_times=0,
        flag=message.flag,
        sys_flag=0,
        physical_offset=offset,
        size_bytes=len(message.body),
    )
