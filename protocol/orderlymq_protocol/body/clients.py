"""
Bodies that clients exchange with brokers: heartbeats, queue locks, connections of a group.

Rule: names of enumerations stay text. RocketMQ has retired some and added others, and an unknown name
must not cost a client its heartbeat. The C++ client, and clients built on it, write numbers instead; a number
without a name is refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from orderlymq_protocol.body.declaration import JsonModel, wire_name
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.integers import Int
from orderlymq_protocol.message.tags import ALL_TAGS, TagFilter

CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"
CONSUME_FROM_FIRST_OFFSET: Final = "CONSUME_FROM_FIRST_OFFSET"
CONSUME_FROM_TIMESTAMP: Final = "CONSUME_FROM_TIMESTAMP"
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
CLUSTERING: Final = "CLUSTERING"
BROADCASTING: Final = "BROADCASTING"
EXPRESSION_TAG: Final = "TAG"
EXPRESSION_SQL92: Final = "SQL92"
# In the order of RocketMQ's enumerations.
ConsumeType = Annotated[str, (CONSUME_ACTIVELY, CONSUME_PASSIVELY, "CONSUME_POP")]
MessageModel = Annotated[str, (BROADCASTING, CLUSTERING)]
ConsumeFromWhere = Annotated[
    str,
    (
        CONSUME_FROM_LAST_OFFSET,
        "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
        "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET",
        CONSUME_FROM_FIRST_OFFSET,
        CONSUME_FROM_TIMESTAMP,
    ),
]
# Most queues that one request locks or gives back: each becomes a row and a lease in one turn of a broker's
# loop, and this many take some 20 ms.
LOCK_QUEUES_MAX: Final = 4_096


@dataclass(frozen=True, slots=True)
class SubscriptionData(JsonModel):
    """Subscription of a consumer to one topic; `sub_version` is the millisecond in which it was made."""

    topic: str
    sub_string: str = ALL_TAGS
    tags_set: tuple[str, ...] = ()
    code_set: tuple[Int, ...] = ()
    sub_version: int = 0
    expression_type: str = EXPRESSION_TAG
    class_filter_mode: bool = False

    def __post_init__(self) -> None:
        # Apache's Go client leaves the type empty for a subscription by tags.
        object.__setattr__(self, "expression_type", self.expression_type or EXPRESSION_TAG)

    @classmethod
    def of_tags(cls, topic: str, expression: str | None, sub_version: int) -> "SubscriptionData":
        """Return the subscription for a tag expression.

        Raises:
            TagExpressionError: The expression names no tag.
        """
        tag_filter = TagFilter.parse(expression)
        return cls(
            topic,
            tag_filter.expression,
            tuple(sorted(tag_filter.tags)),
            tuple(sorted(tag_filter.codes)),
            sub_version,
        )


@dataclass(frozen=True, slots=True)
class ConsumerData(JsonModel):
    """One consumer group of a client.

    Attributes:
        concurrency: ours: how the group is to consume if this heartbeat creates it, Key or Queue.
    """

    group_name: str
    consume_type: ConsumeType = CONSUME_PASSIVELY
    message_model: MessageModel = CLUSTERING
    consume_from_where: ConsumeFromWhere = CONSUME_FROM_LAST_OFFSET
    subscription_data_set: tuple[SubscriptionData, ...] = ()
    unit_mode: bool = False
    concurrency: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerData(JsonModel):
    """One producer group of a client."""

    group_name: str


@dataclass(frozen=True, slots=True)
class HeartbeatData(JsonModel):
    """Everything that a client reports to a broker every 30 seconds."""

    client_id: str = field(metadata=wire_name("clientID"))
    producer_data_set: tuple[ProducerData, ...] = ()
    consumer_data_set: tuple[ConsumerData, ...] = ()


@dataclass(frozen=True, slots=True)
class CheckClientRequest(JsonModel):
    """A consumer's question whether the broker can serve its subscription (code 46)."""

    client_id: str
    group: str
    subscription_data: SubscriptionData


@dataclass(frozen=True, slots=True)
class LockBatchRequest(JsonModel):
    """A client's request to lock queues, or to give their locks back (codes 41 and 42).

    Only our own SDK sets `lease_ms`; without it the broker's default applies.
    """

    client_id: str
    consumer_group: str
    queues: tuple[MessageQueue, ...] = field(metadata=wire_name("mqSet"), default=())
    lease_ms: int | None = field(metadata=wire_name("leaseMillis"), default=None)
    only_this_broker: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerIdList(JsonModel):
    """The live members of a consumer group (code 38), from which a client computes its rebalance."""

    consumer_id_list: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Connection(JsonModel):
    """One client connection as the tools show it; *subscriptions* (topic to expression) is set only if asked for."""

    client_id: str
    client_addr: str
    language: str
    version: Int
    subscriptions: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class ConsumerConnection(JsonModel):
    """The connections of a consumer group and its subscriptions (code 203)."""

    connection_set: tuple[Connection, ...] = ()
    subscription_table: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerConnection(JsonModel):
    """The connections of a producer group (code 204)."""

    connection_set: tuple[Connection, ...] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo(JsonModel):
    """One producer as the tools show it; `remote_ip` is `/ip:port`, as Java writes an address."""

    client_id: str
    remote_ip: str = field(metadata=wire_name("remoteIP"))
    language: str
    version: Int
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class OffsetTable(JsonModel):
    """An offset per queue: the bodies of 220 and 222."""

    offset_table: Mapping[MessageQueue, int]


@dataclass(frozen=True, slots=True)
class ConsumerStatus(JsonModel):
    """The offsets of a client's consumer by queue (221), or those of several clients (223)."""

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] | None = None


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult(JsonModel):
    """The result of one message that a client was asked to consume immediately (309)."""

    consume_result: str
    remark: str | None = None
    spent_time_mills: int = 0
    order: bool = False
    auto_commit: bool = True
