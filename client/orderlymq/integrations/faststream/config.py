"""Shared configuration of subscribers and publishers, and FastStream's access log with our columns."""

from dataclasses import dataclass, field
from typing import Any

from faststream._internal.basic_types import LoggerProto
from faststream._internal.configs import (
    BrokerConfig,
    UnderlyingDriverAnnotation,
    UnderlyingDriverAnnotations,
)
from faststream._internal.context.repository import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage
from faststream._internal.logger.logging import get_broker_logger

from orderlymq.connection.instance import ClientInstance
from orderlymq.integrations.faststream.messages import HandledMessage, OrderlyMQMessage
from orderlymq.integrations.faststream.publisher import OrderlyMQProducer


@dataclass(kw_only=True)
class OrderlyMQConfig(BrokerConfig):
    """Shared by subscribers and publishers; `instance` is set while the broker is connected."""

    producer: OrderlyMQProducer
    instance: ClientInstance | None = None
    default_driver_annotations: UnderlyingDriverAnnotations = field(
        default_factory=lambda: {
            OrderlyMQMessage: UnderlyingDriverAnnotation(
                type_hint=HandledMessage,
                module="orderlymq.integrations.faststream",
                name="OrderlyMQMessage",
            )
        }
    )


class LogStorage(DefaultLoggerStorage):
    """FastStream's access log, with the topic and the consumer group in each line."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Do nothing, because columns are not padded."""

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """Return the logger of the broker."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="orderlymq",
                default_context={"topic": "", "group": ""},
                message_id_ln=32,
                fmt="%(asctime)s %(levelname)-8s - %(topic)s | %(group)s | %(message_id)s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger
