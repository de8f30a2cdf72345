"""
OrderlyMQ's client: strictly ordered messaging, and everything else that RocketMQ's clients can do.

Start with `Producer` and `Consumer`; `orderlymq.blocking` offers the same without asyncio. Each name is loaded
when it is first used, so that importing one of them does not load the whole SDK.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orderlymq.admin.client import AdminClient
    from orderlymq.admin.consumption import MessageTrack, TrackType, message_track
    from orderlymq.bodies import Avro, Json, Msgpack
    from orderlymq.connection.instance import ClientInstance
    from orderlymq.connection.namespaces import with_namespace, without_namespace
    from orderlymq.consumer.core.events import ConcurrentResult, OrderedResult
    from orderlymq.consumer.group.requests import PullResult, PullStatus
    from orderlymq.consumer.listeners.context import (
        ConcurrentContext,
        ConsumeContext,
        ConsumeHook,
        OrderedContext,
    )
    from orderlymq.consumer.pull.consumer import PullConsumer
    from orderlymq.consumer.pull.litepull import LitePullConsumer
    from orderlymq.consumer.push.consumer import Consumer
    from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, MessageModel
    from orderlymq.errors import (
        BodyInvalid,
        BodyUnreadable,
        BrokerError,
        BrokerUnreachable,
        NameServersUnreachable,
        OrderlyMQError,
        PullError,
        ReplyTimeout,
        SendError,
        SendRefused,
        SendUnknown,
        SettingError,
        StateError,
        TopicNotFound,
    )
    from orderlymq.message import Message, ReceivedMessage, SendResult, SendStatus
    from orderlymq.producer.producer import Producer
    from orderlymq.producer.requestreply import Reply
    from orderlymq.producer.sendoutcome import split_batch
    from orderlymq.producer.transactions import (
        TransactionProducer,
        TransactionResult,
        TransactionState,
    )
    from orderlymq.settings import ClientSettings, ProducerSettings
    from orderlymq_protocol.body.messagequeue import MessageQueue

__version__ = "0.1.0"

_HOMES = {
    "orderlymq.admin.client": ("AdminClient",),
    "orderlymq.bodies": ("Avro", "Json", "Msgpack"),
    "orderlymq.consumer.push.consumer": ("Consumer",),
    "orderlymq.consumer.listeners.context": (
        "ConcurrentContext",
        "ConsumeContext",
        "ConsumeHook",
        "OrderedContext",
    ),
    "orderlymq.errors": (
        *("BrokerError", "BrokerUnreachable", "NameServersUnreachable", "OrderlyMQError"),
        *("PullError", "SendError", "SendRefused", "SendUnknown", "SettingError", "StateError"),
        *("BodyInvalid", "BodyUnreadable", "ReplyTimeout", "TopicNotFound"),
    ),
    "orderlymq.consumer.core.events": ("ConcurrentResult", "OrderedResult"),
    "orderlymq.connection.instance": ("ClientInstance",),
    "orderlymq.consumer.pull.litepull": ("LitePullConsumer",),
    "orderlymq.message": ("Message", "ReceivedMessage", "SendResult", "SendStatus"),
    "orderlymq.connection.namespaces": ("with_namespace", "without_namespace"),
    "orderlymq.producer.producer": ("Producer",),
    "orderlymq.consumer.pull.consumer": ("PullConsumer",),
    "orderlymq.producer.requestreply": ("Reply",),
    "orderlymq.producer.sendoutcome": ("split_batch",),
    "orderlymq.consumer.settings": ("ConsumeFrom", "ConsumerSettings", "MessageModel"),
    "orderlymq.settings": ("ClientSettings", "ProducerSettings"),
    "orderlymq.admin.consumption": ("MessageTrack", "TrackType", "message_track"),
    "orderlymq.producer.transactions": (
        "TransactionProducer",
        "TransactionResult",
        "TransactionState",
    ),
    "orderlymq.consumer.group.requests": ("PullResult", "PullStatus"),
    "orderlymq_protocol.body.messagequeue": ("MessageQueue",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdminClient",
    "Avro",
    "BodyInvalid",
    "BodyUnreadable",
    "BrokerError",
    "BrokerUnreachable",
    "ClientInstance",
    "ClientSettings",
    "ConcurrentContext",
    "ConcurrentResult",
    "ConsumeContext",
    "ConsumeFrom",
    "ConsumeHook",
    "Consumer",
    "ConsumerSettings",
    "Json",
    "LitePullConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageTrack",
    "Msgpack",
    "NameServersUnreachable",
    "OrderedContext",
    "OrderedResult",
    "OrderlyMQError",
    "Producer",
    "ProducerSettings",
    "PullConsumer",
    "PullError",
    "PullResult",
    "PullStatus",
    "ReceivedMessage",
    "Reply",
    "ReplyTimeout",
    "SendError",
    "SendRefused",
    "SendResult",
    "SendStatus",
    "SendUnknown",
    "SettingError",
    "StateError",
    "TopicNotFound",
    "TrackType",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "message_track",
    "split_batch",
    "with_namespace",
    "without_namespace",
]


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module 'orderlymq' has no attribute {name!r}")
    return getattr(import_module(home), name)
