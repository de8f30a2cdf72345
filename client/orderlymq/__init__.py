"""
OrderlyMQ's client: strictly ordered messaging, and everything else that RocketMQ's clients can do.

Start with `Producer` and `Consumer`; `orderlymq.blocking` has the same without asyncio. Names are loaded
when they are first used, so that importing one thing does not cost everything.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orderlymq.admin import AdminClient
    from orderlymq.consumer import Consumer
    from orderlymq.contexts import ConcurrentContext, ConsumeContext, ConsumeHook, OrderedContext
    from orderlymq.errors import (
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
    from orderlymq.events import ConcurrentResult, OrderedResult
    from orderlymq.instance import ClientInstance
    from orderlymq.litepull import LitePullConsumer
    from orderlymq.message import Message, ReceivedMessage, SendResult, SendStatus
    from orderlymq.namespaces import with_namespace, without_namespace
    from orderlymq.producer import Producer
    from orderlymq.pullconsumer import PullConsumer
    from orderlymq.requests import Reply
    from orderlymq.sending import split_batch
    from orderlymq.settings import (
        ClientSettings,
        ConsumeFrom,
        ConsumerSettings,
        MessageModel,
        ProducerSettings,
    )
    from orderlymq.tracks import MessageTrack, TrackType, message_track
    from orderlymq.transactions import TransactionProducer, TransactionResult, TransactionState
    from orderlymq.wire import PullResult, PullStatus
    from orderlymq_protocol.body.messagequeue import MessageQueue

__version__ = "0.1.0"

_HOMES = {
    "orderlymq.admin": ("AdminClient",),
    "orderlymq.consumer": ("Consumer",),
    "orderlymq.contexts": ("ConcurrentContext", "ConsumeContext", "ConsumeHook", "OrderedContext"),
    "orderlymq.errors": (
        *("BrokerError", "BrokerUnreachable", "NameServersUnreachable", "OrderlyMQError"),
        *("PullError", "SendError", "SendRefused", "SendUnknown", "SettingError", "StateError"),
        *("ReplyTimeout", "TopicNotFound"),
    ),
    "orderlymq.events": ("ConcurrentResult", "OrderedResult"),
    "orderlymq.instance": ("ClientInstance",),
    "orderlymq.litepull": ("LitePullConsumer",),
    "orderlymq.message": ("Message", "ReceivedMessage", "SendResult", "SendStatus"),
    "orderlymq.namespaces": ("with_namespace", "without_namespace"),
    "orderlymq.producer": ("Producer",),
    "orderlymq.pullconsumer": ("PullConsumer",),
    "orderlymq.requests": ("Reply",),
    "orderlymq.sending": ("split_batch",),
    "orderlymq.settings": (
        *("ClientSettings", "ConsumeFrom", "ConsumerSettings", "MessageModel", "ProducerSettings"),
    ),
    "orderlymq.tracks": ("MessageTrack", "TrackType", "message_track"),
    "orderlymq.transactions": ("TransactionProducer", "TransactionResult", "TransactionState"),
    "orderlymq.wire": ("PullResult", "PullStatus"),
    "orderlymq_protocol.body.messagequeue": ("MessageQueue",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AdminClient",
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
    "LitePullConsumer",
    "Message",
    "MessageModel",
    "MessageQueue",
    "MessageTrack",
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
