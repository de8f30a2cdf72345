"""
The FastStream broker: it registers subscribers and publishers, and owns the connection that they share.

Rules: each consumer group has one subscriber in a broker, because all members of a group must have the same
subscriptions. The broker uses FastStream's internal modules, as FastStream's own brokers do, so FastStream's minor
version is pinned.
"""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, Literal

from fast_depends import dependency_provider
from fast_depends.dependencies import Dependant
from faststream._internal.basic_types import LoggerProto
from faststream._internal.broker import BrokerUsecase
from faststream._internal.configs import PublisherUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.logger import make_logger_state
from faststream._internal.parser import CodecProto, DefaultCodec
from faststream._internal.types import BrokerMiddleware, CustomCallable
from faststream.exceptions import FeatureNotSupportedException, SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.schema import BrokerSpec

from orderlymq.connection.identity import NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings
from orderlymq.durations import Duration
from orderlymq.errors import OrderlyMQError
from orderlymq.integrations.faststream.config import LogStorage, OrderlyMQConfig
from orderlymq.integrations.faststream.messages import Delivery, OrderlyMQPublishCommand
from orderlymq.integrations.faststream.publisher import (
    OrderlyMQProducer,
    OrderlyMQPublisher,
    OrderlyMQPublisherSpecification,
    PublisherConfig,
)
from orderlymq.integrations.faststream.subscriber import (
    OrderlyMQSubscriber,
    SubscriberConfig,
    SubscriberShown,
    make_subscriber,
)
from orderlymq.message import SendResult
from orderlymq.producer.producer import Producer
from orderlymq.settings import ClientSettings, ProducerSettings


class OrderlyMQBroker(BrokerUsecase[Delivery, Producer, OrderlyMQConfig]):
    """An OrderlyMQ cluster as a FastStream broker.

    Args:
        name_servers: as in `orderlymq.Producer`.
        client_settings: settings of the connection.
        producer_settings: settings of `publish`.
        graceful_timeout: seconds that handlers have to finish when the broker stops.
        ack_policy: what the end of a handler means; `NACK_ON_ERROR` by default. A subscriber may override it.
        decoder, parser, codec, dependencies, middlewares, apply_types, logger, log_level, description: as in
            FastStream.
    """

    def __init__(  # noqa: PLR0913 - what FastStream lets a user say about a broker
        self,
        name_servers: NameServers = None,
        *,
        client_settings: ClientSettings | None = None,
        producer_settings: ProducerSettings | None = None,
        graceful_timeout: float | None = 15.0,
        ack_policy: AckPolicy = EMPTY,
        decoder: CustomCallable | None = None,
        parser: CustomCallable | None = None,
        codec: CodecProto | None = None,
        dependencies: Sequence[Dependant] = (),
        middlewares: Sequence[BrokerMiddleware[Any, Any]] = (),
        apply_types: bool = True,
        logger: LoggerProto | None = EMPTY,
        log_level: int = logging.INFO,
        description: str | None = None,
    ) -> None:
        config = OrderlyMQConfig(
            producer=OrderlyMQProducer(parser, decoder),
            broker_middlewares=middlewares,
            broker_parser=parser,
            broker_decoder=decoder,
            broker_codec=codec,
            logger=make_logger_state(
                logger=logger, log_level=log_level, default_storage_cls=LogStorage
            ),
            fd_config=FastDependsConfig(
                use_fastdepends=apply_types, provider=dependency_provider, context=ContextRepo()
            ),
            broker_dependencies=dependencies,
            graceful_timeout=graceful_timeout,
            ack_policy=ack_policy,
            extra_context={"broker": self},
        )
        self._shared = config
        self._settings = producer_settings
        shown = name_servers if isinstance(name_servers, str) else "orderlymq"
        super().__init__(
            config=config,
            routers=(),
            specification=BrokerSpec(
                url=[shown],
                protocol="orderlymq",
                protocol_version=None,
                description=description,
                tags=(),
                security=None,
            ),
            name_servers=name_servers,
            settings=client_settings,
        )

    # -- registration

    def subscriber(  # type: ignore[override]  # noqa: D417, PLR0913  # FastStream's own arguments are explained there
        self,
        topic: str,
        *,
        group: str,
        tags: str = "*",
        ordered: bool | Literal["key"] = True,
        concurrency: int | None = None,
        consume_from: ConsumeFrom | str | None = None,
        settings: ConsumerSettings | None = None,
        ack_policy: AckPolicy = EMPTY,
        dependencies: Sequence[Dependant] = (),
        parser: CustomCallable | None = None,
        decoder: CustomCallable | None = None,
        codec: CodecProto | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> OrderlyMQSubscriber:
        """Register a subscriber; decorate a handler with it.

        Args:
            topic: topic to consume.
            group: the consumer group.
            tags: a tag expression such as `A || B`.
            ordered: as in `orderlymq.Consumer`: True by queue, "key" by key, False without order.
            concurrency: number of handler calls at the same time.
            consume_from: where a consumer group without a committed offset starts.
            settings: settings of the consumer.
            ack_policy: with `NACK_ON_ERROR`, a message is delivered again, in its place, if the handler raises.

        Raises:
            SetupError: Another subscriber of this broker has the group.
        """
        if any(isinstance(s, OrderlyMQSubscriber) and s.group == group for s in self.subscribers):
            raise SetupError(
                f"the group {group} already has a subscriber in this broker; give each topic its own group"
            )
        subscriber = make_subscriber(
            SubscriberConfig(
                topic=topic,
                group=group,
                tags=tags,
                ordered=ordered,
                concurrency=concurrency,
                consume_from=consume_from,
                settings=replace(settings or ConsumerSettings(), consume_message_batch_max_size=1),
                no_reply=True,
                _outer_config=self._shared,
                _ack_policy=ack_policy,
            ),
            SubscriberShown(
                topic=topic,
                title_=title,
                description_=description,
                include_in_schema=include_in_schema,
            ),
        )
        super().subscriber(subscriber, persistent=persistent)
        return subscriber.add_call(
            parser_=parser or self._parser,
            decoder_=decoder or self._decoder,
            codec_=codec,
            dependencies_=dependencies,
        )

    def publisher(  # type: ignore[override]  # noqa: D417  # as above
        self,
        topic: str,
        *,
        headers: Mapping[str, Any] | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> OrderlyMQPublisher:
        """Register a publisher; a handler that it decorates sends its result, with the key of the handled message.

        Args:
            topic: topic to send to.
            headers: properties of each message.
        """
        publisher = OrderlyMQPublisher(
            PublisherUsecaseConfig(_outer_config=self._shared),
            OrderlyMQPublisherSpecification(
                self._shared,
                PublisherConfig(
                    topic=topic,
                    title_=title,
                    description_=description,
                    schema_=schema,
                    include_in_schema=include_in_schema,
                ),
            ),
            headers or {},
        )
        super().publisher(publisher, persistent=persistent)
        return publisher

    # -- life

    async def _connect(self) -> Producer:
        kwargs = self._connection_kwargs
        instance = ClientInstance(kwargs["name_servers"], kwargs["settings"])
        producer = Producer(instance=instance, settings=self._settings)
        await producer.start()
        shared = self._shared
        shared.instance = instance
        shared.producer.producer = producer
        shared.producer.serializer = shared.fd_config._serializer
        shared.producer.codec = shared.broker_codec or DefaultCodec()
        return producer

    async def start(self) -> None:
        """Connect and start to consume."""
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        """Finish the running handlers, leave the consumer groups, disconnect."""
        await super().stop(exc_type, exc_val, exc_tb)
        producer, self._connection = self._connection, None
        self._shared.instance = self._shared.producer.producer = None
        if producer is not None:
            await producer.close()

    async def ping(self, timeout: float | None) -> bool:
        """Return whether a name server answers within *timeout* seconds; None waits until all of them were tried."""
        instance = self._shared.instance
        if instance is None:
            return False
        from orderlymq.admin.client import AdminClient  # noqa: PLC0415 - who asks needs it alone

        try:
            async with asyncio.timeout(timeout):
                await AdminClient(instance=instance).cluster_info()
        except (OrderlyMQError, ValueError, TimeoutError):  # a ValueError: it is no name server
            return False
        return True

    # -- sends

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        key: str | int | None = None,
        tags: str = "",
        headers: Mapping[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: Duration | None = None,
    ) -> SendResult:
        """Send a message and wait until it is stored.

        Args:
            message: bytes, text, or a value that FastStream converts to JSON.
            topic: topic to send to.
            key: sharding key: messages of one key stay in order.
            tags: one tag.
            headers: properties of the message.
            correlation_id: id that follows a message through handlers; None creates one.
            timeout: limit for all tries together.

        Raises:
            SendRefused, SendUnknown, TopicNotFound, SettingError: As `orderlymq.Producer.send`.
        """
        command = OrderlyMQPublishCommand(
            message,
            topic=topic,
            key=key,
            tags=tags,
            headers=headers,
            correlation_id=correlation_id or self._shared.id_generator(),
            timeout=timeout,
        )
        result: SendResult = await self._basic_publish(command, producer=self._shared.producer)
        return result

    async def request(self, *_: Any, **__: Any) -> Any:
        """Refuse, because replies use topics."""
        raise FeatureNotSupportedException(
            "this broker has no `request`; publish to a topic, or use orderlymq.Producer.request"
        )
