"""
Bodies that describe topics and consumer groups, and the version stamp of tables of them.

Rule: an absent member takes RocketMQ's default; members of newer versions are ignored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Final

from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.body.lanes import RETRY_PAUSE_MAX_MS, RETRY_PAUSE_MS
from orderlymq_protocol.integers import Int
from orderlymq_protocol.message.properties import SHARDING_KEY

PERM_INHERIT: Final = 0x1
PERM_WRITE: Final = 0x2
PERM_READ: Final = 0x4
# A bit that RocketMQ names and no client reads.
PERM_PRIORITY: Final = 0x8
# Bits of a topic's system flag, RocketMQ TopicSysFlag.
UNIT: Final = 0x1
UNIT_SUBSCRIPTION: Final = 0x2
SINGLE_TAG: Final = "SINGLE_TAG"
MESSAGE_TYPE_ATTRIBUTE: Final = "message.type"
# A topic with this attribute that is not ordered still answers repeated sends from the window.
DEDUP_ATTRIBUTE: Final = "duplicate.window"
# 5.x's tools ask for order with this value, and leave out the older flag.
TYPE_IN_ORDER: Final = "FIFO"

#: The values that an attribute of a topic may get: those that a broker honours, and those that describe what it does anyway.
TOPIC_ATTRIBUTES: Final[Mapping[str, tuple[str, ...]]] = {
    DEDUP_ATTRIBUTE: ("true", "false"),
    MESSAGE_TYPE_ATTRIBUTE: (
        "UNSPECIFIED",
        "NORMAL",
        TYPE_IN_ORDER,
        "DELAY",
        "TRANSACTION",
        "MIXED",
    ),
    "cleanup.policy": ("DELETE",),
    # The messages of a batch have their own offsets here, which is all that BatchCQ shows to a client.
    "queue.type": ("SimpleCQ", "BatchCQ"),
    "reserve.time": ("-1",),
}

#: Most queues of a topic on one broker: each is a row in answers and an index in clients. RocketMQ's own largest has 1024.
QUEUES_MAX: Final = 16_384
QueueNums = Annotated[int, (0, QUEUES_MAX)]


@dataclass(frozen=True, slots=True)
class DataVersion(JsonModel):
    """The version of a table: a counter, and the millisecond of its last change."""

    counter: int = 0
    timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicConfig(JsonModel):
    """A topic on one broker."""

    topic_name: str
    read_queue_nums: QueueNums = 16
    write_queue_nums: QueueNums = 16
    perm: Int = PERM_READ | PERM_WRITE
    topic_filter_type: str = SINGLE_TAG
    topic_sys_flag: Int = 0
    order: bool = False

    @property
    def readable(self) -> bool:
        """Whether consumers may read."""
        return self.perm & PERM_READ != 0

    @property
    def writable(self) -> bool:
        """Whether producers may write."""
        return self.perm & PERM_WRITE != 0


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig(JsonModel):
    """A consumer group on one broker; the fields from `on_dead_letter` on are ours, and other tools ignore them.

    Brokers always write `consume_concurrently`. A tool that does not know it leaves it out, and so changes nothing of it.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = False
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: Int = 1
    retry_max_times: Int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int = 0
    consume_timeout_minute: Int = 15
    on_dead_letter: str = "Continue"
    concurrency: str = "Queue"
    lane_key_property: str = SHARDING_KEY
    consume_concurrently: bool | None = None
    retry_pause_millis: Int = RETRY_PAUSE_MS
    retry_pause_max_millis: Int = RETRY_PAUSE_MAX_MS


@dataclass(frozen=True, slots=True)
class TopicConfigTable(JsonModel):
    """All topics of a broker (code 21, and inside a registration)."""

    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class SubscriptionGroupTable(JsonModel):
    """All consumer groups of a broker (code 201)."""

    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)
    data_version: DataVersion = field(default_factory=DataVersion)


@dataclass(frozen=True, slots=True)
class TopicConfigList(JsonModel):
    """Topics to create together (code 18)."""

    topic_config_list: tuple[TopicConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class SubscriptionGroupList(JsonModel):
    """Consumer groups to create together (code 225)."""

    group_config_list: tuple[SubscriptionGroupConfig, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicList(JsonModel):
    """Names of topics (codes 206, 224, 304, 305)."""

    topic_list: tuple[str, ...] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class KVTable(JsonModel):
    """Texts by name (codes 28, 103, 219)."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupList(JsonModel):
    """Names of consumer groups (code 300)."""

    group_list: tuple[str, ...] = ()
