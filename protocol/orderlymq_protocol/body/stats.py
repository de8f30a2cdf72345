"""
Bodies with numbers about queues: offsets of topics, lag of groups, rates, consume-queue entries.

Rule: code 202 lists every queue, even an empty one, because the tools index into the table. A table is
written even if it is empty, because Java does not expect its absence.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from orderlymq_protocol.body.clients import SubscriptionData
from orderlymq_protocol.body.declaration import JsonModel
from orderlymq_protocol.body.messagequeue import MessageQueue


@dataclass(frozen=True, slots=True)
class TopicOffset(JsonModel):
    """Range of offsets of a queue and the millisecond of its last message, 0 if the queue is empty."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStats(JsonModel):
    """All queues of a topic on one broker (code 202)."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)
    topic_put_tps: float | None = None  # 5.x writes it


@dataclass(frozen=True, slots=True)
class OffsetWrapper(JsonModel):
    """How far a consumer group is in a queue.

    Attributes:
        last_timestamp: store time of its last consumed message.
        backlog: ours, for clients that ask for it: messages that a by-key group has not consumed. A held lane keeps `consumer_offset` back.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int | None = None
    backlog: int | None = None

    @property
    def lag(self) -> int:
        """The number of messages that the group has not consumed."""
        if self.backlog is not None:
            return self.backlog
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class ConsumeStats(JsonModel):
    """How far a consumer group is in all its queues on one broker (code 208)."""

    offset_table: Mapping[MessageQueue, OffsetWrapper] = field(default_factory=dict)
    consume_tps: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsItem(JsonModel):
    """A counter over a span of time; `avgpt` is the average per call."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(JsonModel):
    """A counter over a minute, an hour and a day (code 315)."""

    stats_minute: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = field(default_factory=BrokerStatsItem)
    stats_day: BrokerStatsItem = field(default_factory=BrokerStatsItem)


@dataclass(frozen=True, slots=True)
class ConsumeQueueData(JsonModel):
    """One entry of a consume queue."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    eval: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeQueueView(JsonModel):
    """Entries of a consume queue (code 321), and which of them the named consumer group wants."""

    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None
    queue_data: tuple[ConsumeQueueData, ...] = ()
    min_queue_index: int = 0
    max_queue_index: int = 0


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(JsonModel):
    """Oldest, newest and consumed message of a queue, in milliseconds (code 303)."""

    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpan(JsonModel):
    """The time spans of all queues of a topic (code 303)."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()
