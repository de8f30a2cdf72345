"""Every setting of the push consumer, with defaults, units and ranges; see `orderlymq.settings` for the rules."""

from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from typing import Final

from orderlymq.consumer.assignment import AssignmentStrategy, Averagely, check_strategy
from orderlymq.durations import Duration, seconds
from orderlymq.errors import SettingError
from orderlymq.settings import COUNT_MAX, check_ranges, setting, time_setting
from orderlymq_protocol.body.lanes import LANE_MESSAGES_MAX, LANES_MAX
from orderlymq_protocol.integers import INT32_MAX

RECONSUME_CONCURRENT_MAX: Final = 16
# Each listener call may take a thread.
CONCURRENCY_MAX: Final = 1000
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000


class MessageModel(Enum):
    """CLUSTERING: each message goes to one member of the group. BROADCASTING: it goes to every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(Enum):
    """Where a consumer group without a committed offset starts; the values are RocketMQ's wire names."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


# Names that RocketMQ has deprecated; RocketMQ treats each of them as LAST, too.
_DEPRECATED_CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)


def parse_consume_from(value: "ConsumeFrom | str") -> ConsumeFrom:
    """Read `first`, `last`, `timestamp`, `earliest`, `latest` or a RocketMQ name.

    Raises:
        SettingError: The value is none of them.
    """
    if isinstance(value, ConsumeFrom):
        return value
    if not isinstance(value, str):
        raise SettingError(f"consume_from is {value!r}; it must be first, last or timestamp")
    match value.lower():
        case "first" | "earliest":
            return ConsumeFrom.FIRST
        case "last" | "latest":
            return ConsumeFrom.LAST
        case "timestamp":
            return ConsumeFrom.TIMESTAMP
    if value in _DEPRECATED_CONSUME_FROM:
        return ConsumeFrom.LAST
    try:
        return ConsumeFrom(value)
    except ValueError as error:
        raise SettingError(
            f"consume_from is {value!r}; it must be first, last or timestamp"
        ) from error


def parse_consume_timestamp(text: str) -> int:
    """Return the milliseconds since the epoch of a local time written `yyyyMMddHHmmss`.

    Raises:
        SettingError: The text has another form.
    """
    try:
        if len(text) != 14 or not text.isdecimal():
            raise ValueError(text)
        # RocketMQ reads this text in the time zone of the process, so local time is intended.
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").astimezone().timestamp() * 1000)
    except ValueError as error:
        raise SettingError(
            f"consume_timestamp is {text!r}; it must be local time in the form yyyyMMddHHmmss"
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Settings of a push consumer, ordered or concurrent.

    Attributes:
        consume_thread_min: accepted without effect; threads are started when they are needed.
        consume_thread_max: maximum number of listener calls that run at the same time, async or in threads.
        adjust_thread_pool_nums_threshold: accepted without effect, as in RocketMQ.
        max_reconsume_times: -1 means 16 for concurrent consumers and 2147483647 for ordered ones.
        suspend_current_queue_time: how long a queue waits after a failure.
        consume_timeout: a concurrent message that stays this long in a listener goes back to the broker; by key, the
            consumer group's setting applies instead.
        server_assignment: take the queues that the brokers name (QUERY_ASSIGNMENT) instead of computing them;
            RocketMQ's clientRebalance=false. An operator may have decided the assignment.
        lock_lease: lease that the consumer asks for with a queue lock or a lane; RocketMQ brokers always grant 60 s.
        lock_renew: interval between renewals of locks and lanes; at most half of the lease. With a third of it, the
            default, two lost renewals in a row lose no queue.
        shutdown_timeout: how long closing waits for running listeners.
        lane_messages_max: by key: messages of one lane that a fetch brings. The listener still gets them in one call
            after the other; if this member dies, they are delivered again.
        lane_ahead_max: by key: maximum number of lanes in hand beyond those that listeners work on.
        uncommitted_warning_count: warn when this many messages were consumed without a COMMIT.
    """

    message_model: MessageModel = field(
        default=MessageModel.CLUSTERING, metadata={"rocketmq": "messageModel"}
    )
    consume_from: ConsumeFrom = field(
        default=ConsumeFrom.LAST, metadata={"rocketmq": "consumeFromWhere"}
    )
    consume_timestamp: str = setting("", "consumeTimestamp")
    allocate_message_queue_strategy: AssignmentStrategy = field(
        default_factory=Averagely, metadata={"rocketmq": "allocateMessageQueueStrategy"}
    )
    consume_thread_min: int = setting(20, "consumeThreadMin", 1, CONCURRENCY_MAX)
    consume_thread_max: int = setting(64, "consumeThreadMax", 1, CONCURRENCY_MAX)
    adjust_thread_pool_nums_threshold: int = setting(
        100_000, "adjustThreadPoolNumsThreshold", 0, 2**63 - 1
    )
    consume_concurrently_max_span: int = setting(2_000, "consumeConcurrentlyMaxSpan", 1, COUNT_MAX)
    pull_threshold_for_queue: int = setting(1_000, "pullThresholdForQueue", 1, COUNT_MAX)
    pull_threshold_size_for_queue_mib: int = setting(100, "pullThresholdSizeForQueue", 1, 1024)
    pull_threshold_for_topic: int = setting(-1, "pullThresholdForTopic", 1, 6_553_500, off=-1)
    pull_threshold_size_for_topic_mib: int = setting(
        -1, "pullThresholdSizeForTopic", 1, 102_400, off=-1
    )
    consume_message_batch_max_size: int = setting(1, "consumeMessageBatchMaxSize", 1, 1024)
    pull_batch_size: int = setting(32, "pullBatchSize", 1, 1024)
    pull_interval: Duration = time_setting(0, "pullInterval", 0, 65.535)
    post_subscription_when_pull: bool = setting(default=False, rocketmq="postSubscriptionWhenPull")
    max_reconsume_times: int = setting(-1, "maxReconsumeTimes", -1, INT32_MAX)
    suspend_current_queue_time: Duration = time_setting(
        1, "suspendCurrentQueueTimeMillis", SUSPEND_MIN_MS / 1000, SUSPEND_MAX_MS / 1000
    )
    consume_timeout: Duration = time_setting(15 * 60, "consumeTimeout", 1)
    broker_suspend_max_time: Duration = time_setting(15, "brokerSuspendMaxTimeMillis", 0.001, 25)
    server_assignment: bool = setting(default=False, rocketmq="")
    lock_lease: Duration = time_setting(15, "rocketmq.client.rebalance.lockMaxLiveTime", 0.1, 60)
    lock_renew: Duration = time_setting(5, "rocketmq.client.rebalance.lockInterval", 0.01, 20)
    max_time_consume_continuously: Duration = time_setting(
        60, "rocketmq.client.maxTimeConsumeContinuously", 0.001
    )
    shutdown_timeout: Duration = time_setting(30, "awaitTerminationMillisWhenShutdown", 0)
    uncommitted_warning_count: int = setting(500, "", 1, INT32_MAX)
    lane_messages_max: int = setting(16, "", 1, LANE_MESSAGES_MAX)
    lane_ahead_max: int = setting(2 * LANES_MAX, "", 0, 2_048)

    def __post_init__(self) -> None:
        check_ranges(self)
        check_strategy(self.allocate_message_queue_strategy)
        if self.consume_thread_min > self.consume_thread_max:
            raise SettingError(
                f"consume_thread_min is {self.consume_thread_min}; it must not be larger than "
                f"consume_thread_max ({self.consume_thread_max})"
            )
        renew_s, lease_s = seconds(self.lock_renew), seconds(self.lock_lease)
        if renew_s * 2 > lease_s:
            raise SettingError(
                f"lock_renew is {renew_s} seconds; it must be at most half of lock_lease "
                f"({lease_s}), or one lost renewal loses every queue"
            )
        if self.consume_timestamp:
            parse_consume_timestamp(self.consume_timestamp)

    def but(
        self,
        consume_from: "ConsumeFrom | str | None",
        message_model: MessageModel | None,
        concurrency: int | None = None,
    ) -> "ConsumerSettings":
        """Return these settings with the arguments of a consumer, which take precedence."""
        found = self
        if concurrency is not None:
            if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
                raise SettingError(
                    f"concurrency is {concurrency!r}; it must be an integer from 1 to {CONCURRENCY_MAX}"
                )
            least = min(self.consume_thread_min, concurrency)
            found = replace(found, consume_thread_min=least, consume_thread_max=concurrency)
        if consume_from is not None:
            found = replace(found, consume_from=parse_consume_from(consume_from))
        if message_model is not None:
            found = replace(found, message_model=message_model)
        return found

    def lane_batch(self) -> int:
        """Return how many messages of one lane a listener gets in one call."""
        return min(self.consume_message_batch_max_size, LANE_MESSAGES_MAX)

    def lane_messages(self) -> int:
        """Return how many messages of one lane a fetch brings."""
        return max(self.lane_messages_max, self.lane_batch())

    def reconsume_max(self, *, ordered: bool) -> int:
        """Return how often a message is tried again before it becomes a dead letter."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return INT32_MAX if ordered else RECONSUME_CONCURRENT_MAX
