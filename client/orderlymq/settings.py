"""
Every setting of the SDK: RocketMQ's keys in snake_case, with their defaults, units and ranges.

Rule: a value outside its range is refused when the settings are made, with a text that names the key and
the range; nothing is clipped silently except where RocketMQ says so. Units stand in the names; RocketMQ's
own name of a key is in the field's metadata, and the documentation's table is made from it.
Milliseconds throughout, MiB for cache sizes, minutes for the consume timeout, as in RocketMQ.
"""

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from datetime import datetime
from enum import Enum
from typing import Any, Final

from orderlymq.consumer.assignment import AssignmentStrategy, Averagely
from orderlymq.errors import SettingError
from orderlymq_protocol.names import AUTO_CREATE_TOPIC

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
INT32_MAX: Final = 2**31 - 1
RECONSUME_CONCURRENT_MAX: Final = 16
SUSPEND_MIN_MS: Final = 10
SUSPEND_MAX_MS: Final = 30_000

_EPHEMERAL: Final = 65_535


class MessageModel(Enum):
    """CLUSTERING: each message to one member of the group. BROADCASTING: to every member."""

    CLUSTERING = "CLUSTERING"
    BROADCASTING = "BROADCASTING"


class ConsumeFrom(Enum):
    """Where a group starts that has no committed offset; the values are RocketMQ's wire names."""

    LAST = "CONSUME_FROM_LAST_OFFSET"
    FIRST = "CONSUME_FROM_FIRST_OFFSET"
    TIMESTAMP = "CONSUME_FROM_TIMESTAMP"


# Names that RocketMQ has deprecated; each means LAST there as well.
_DEPRECATED_CONSUME_FROM: Final = (
    "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST",
    "CONSUME_FROM_MIN_OFFSET",
    "CONSUME_FROM_MAX_OFFSET",
)


def parse_consume_from(value: "ConsumeFrom | str") -> ConsumeFrom:
    """Read `first`, `last`, `timestamp`, `earliest`, `latest` or a RocketMQ name.

    Raises:
        SettingError: It is none of them.
    """
    if isinstance(value, ConsumeFrom):
        return value
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
        # Local time on purpose: RocketMQ reads this text in the time zone of the process.
        return int(datetime.strptime(text, "%Y%m%d%H%M%S").astimezone().timestamp() * 1000)
    except ValueError as error:
        raise SettingError(
            f"consume_timestamp is {text!r}; it must be local time in the form yyyyMMddHHmmss"
        ) from error


def _key(
    default: Any,
    rocketmq: str,
    low: int | None = None,
    high: int | None = None,
    *,
    off: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a setting: its RocketMQ name, its range, and a value that turns it off."""
    metadata = {"rocketmq": rocketmq, "low": low, "high": high, "off": off}
    return field(default=default, metadata=metadata, repr=not secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Shared by producers and consumers.

    Attributes:
        client_ip: shown in the client id; the own address towards the name server when empty.
        instance_name: part of the client id; process id and start time when empty.
        namespace: wraps the names of topics and groups on their way to brokers, see `namespaces`; messages
            come with bare topics, queues and ids carry the whole names.
        unit_name, unit_mode: carried, without effect (a RocketMQ routing feature).
        client_callback_executor_threads: accepted, without effect: callbacks run on the event loop.
        token: sent with every request as `SecurityToken` when set.
        access_key, secret_key: sign every request as RocketMQ's AclClientRPCHook does.
        use_tls: speak TLS with brokers and name servers; without a CA file any server is trusted.
        tls_ca_file, tls_certificate_file, tls_key_file: PEM files; the last two where brokers ask for
            a client's certificate.
        tls_verify_host: whether a server's certificate must be good for the address that is called; off where
            addresses are not known when it is made, as in Kubernetes: the CA is trusted alone then.
        connect_timeout_ms, request_timeout_ms: of every request without a time of its own.
    """

    client_ip: str = _key("", "clientIP")
    instance_name: str = _key("", "instanceName")
    namespace: str = _key("", "namespace")
    unit_name: str = _key("", "unitName")
    unit_mode: bool = _key(default=False, rocketmq="unitMode")
    client_callback_executor_threads: int = _key(0, "clientCallbackExecutorThreads", 0, 1000)
    poll_name_server_interval_ms: int = _key(30_000, "pollNameServerInterval", 10, INT32_MAX)
    heartbeat_broker_interval_ms: int = _key(30_000, "heartbeatBrokerInterval", 10, INT32_MAX)
    persist_consumer_offset_interval_ms: int = _key(
        5_000, "persistConsumerOffsetInterval", 10, INT32_MAX
    )
    rebalance_interval_ms: int = _key(
        20_000, "rocketmq.client.rebalance.waitInterval", 10, INT32_MAX
    )
    token: str = _key("", "token", secret=True)
    access_key: str = _key("", "accessKey")
    secret_key: str = _key("", "secretKey", secret=True)
    use_tls: bool = _key(default=False, rocketmq="useTLS")
    tls_ca_file: str = _key("", "")
    tls_certificate_file: str = _key("", "")
    tls_key_file: str = _key("", "")
    tls_verify_host: bool = _key(default=True, rocketmq="")
    request_timeout_ms: int = _key(3_000, "mqClientApiTimeout", 1, INT32_MAX)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Of a producer.

    Attributes:
        send_message_timeout_ms: covers all tries of one send together.
        retry_times_when_send_failed: further tries of a plain send, each on another broker if there is
            one. Sends by key, selector or queue are tried again on the same queue until the time is over.
        retry_times_when_send_async_failed: the same for `send_nowait`.
        retry_another_broker_when_not_store_ok: also when the message was stored with another status than
            OK; refused for sends by key, selector or queue, where it would break the order.
        compress_level: zlib, 1 fast to 9 small.
        queue_change_patience_ms: how long a send without a time-out of its own waits while the number of
            queues of its topic is being changed; each try then has the usual time.
    """

    create_topic_key: str = _key(AUTO_CREATE_TOPIC, "createTopicKey")
    default_topic_queue_nums: int = _key(4, "defaultTopicQueueNums", 1, _EPHEMERAL)
    send_message_timeout_ms: int = _key(3_000, "sendMsgTimeout", 1, INT32_MAX)
    compress_message_body_over_bytes: int = _key(4_096, "compressMsgBodyOverHowmuch", 0, INT32_MAX)
    compress_level: int = _key(5, "rocketmq.message.compressLevel", 1, 9)
    retry_times_when_send_failed: int = _key(2, "retryTimesWhenSendFailed", 0, 100)
    retry_times_when_send_async_failed: int = _key(2, "retryTimesWhenSendAsyncFailed", 0, 100)
    retry_another_broker_when_not_store_ok: bool = _key(
        default=False, rocketmq="retryAnotherBrokerWhenNotStoreOK"
    )
    max_message_size_bytes: int = _key(4 * 1024 * 1024, "maxMessageSize", 1, 15 * 1024 * 1024)
    queue_change_patience_ms: int = _key(120_000, "", 0, INT32_MAX)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Of a push consumer, ordered or concurrent.

    Attributes:
        consume_thread_min: accepted; threads are started when they are needed.
        consume_thread_max: listeners that run at the same time, async or in threads.
        adjust_thread_pool_nums_threshold: accepted, without effect, as in RocketMQ.
        max_reconsume_times: -1 means 16 concurrent, 2147483647 ordered.
        suspend_current_queue_time_ms: applied between 10 and 30000.
        consume_timeout_minutes: a concurrent message this long in a listener goes back to the broker.
        server_assignment: take the queues that the brokers name (QUERY_ASSIGNMENT) instead of computing
            them; RocketMQ's clientRebalance=false. An operator may have decided the division.
        lock_lease_ms: how long a grant of a queue lock is asked for; RocketMQ brokers grant 60 s anyway.
        lock_renew_ms: at most a third of the lease, so that two lost renewals do not lose the queue.
        shutdown_timeout_ms: how long closing waits for running listeners.
        uncommitted_warning_count: warn when this many messages were consumed without a COMMIT.
    """

    message_model: MessageModel = field(
        default=MessageModel.CLUSTERING, metadata={"rocketmq": "messageModel"}
    )
    consume_from: ConsumeFrom = field(
        default=ConsumeFrom.LAST, metadata={"rocketmq": "consumeFromWhere"}
    )
    consume_timestamp: str = _key("", "consumeTimestamp")
    allocate_message_queue_strategy: AssignmentStrategy = field(
        default_factory=Averagely, metadata={"rocketmq": "allocateMessageQueueStrategy"}
    )
    consume_thread_min: int = _key(20, "consumeThreadMin", 1, 1000)
    consume_thread_max: int = _key(64, "consumeThreadMax", 1, 1000)
    adjust_thread_pool_nums_threshold: int = _key(
        100_000, "adjustThreadPoolNumsThreshold", 0, 2**63 - 1
    )
    consume_concurrently_max_span: int = _key(2_000, "consumeConcurrentlyMaxSpan", 1, _EPHEMERAL)
    pull_threshold_for_queue: int = _key(1_000, "pullThresholdForQueue", 1, _EPHEMERAL)
    pull_threshold_size_for_queue_mib: int = _key(100, "pullThresholdSizeForQueue", 1, 1024)
    pull_threshold_for_topic: int = _key(-1, "pullThresholdForTopic", 1, 6_553_500, off=-1)
    pull_threshold_size_for_topic_mib: int = _key(
        -1, "pullThresholdSizeForTopic", 1, 102_400, off=-1
    )
    consume_message_batch_max_size: int = _key(1, "consumeMessageBatchMaxSize", 1, 1024)
    pull_batch_size: int = _key(32, "pullBatchSize", 1, 1024)
    pull_interval_ms: int = _key(0, "pullInterval", 0, _EPHEMERAL)
    post_subscription_when_pull: bool = _key(default=False, rocketmq="postSubscriptionWhenPull")
    max_reconsume_times: int = _key(-1, "maxReconsumeTimes", -1, INT32_MAX)
    suspend_current_queue_time_ms: int = _key(
        1_000, "suspendCurrentQueueTimeMillis", SUSPEND_MIN_MS, SUSPEND_MAX_MS
    )
    consume_timeout_minutes: int = _key(15, "consumeTimeout", 1, INT32_MAX)
    broker_suspend_max_time_ms: int = _key(15_000, "brokerSuspendMaxTimeMillis", 1, 25_000)
    server_assignment: bool = _key(default=False, rocketmq="")
    lock_lease_ms: int = _key(15_000, "rocketmq.client.rebalance.lockMaxLiveTime", 100, 60_000)
    lock_renew_ms: int = _key(5_000, "rocketmq.client.rebalance.lockInterval", 10, 20_000)
    max_time_consume_continuously_ms: int = _key(
        60_000, "rocketmq.client.maxTimeConsumeContinuously", 1, INT32_MAX
    )
    shutdown_timeout_ms: int = _key(30_000, "awaitTerminationMillisWhenShutdown", 0, INT32_MAX)
    uncommitted_warning_count: int = _key(500, "", 1, INT32_MAX)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.consume_thread_min > self.consume_thread_max:
            raise SettingError(
                f"consume_thread_min is {self.consume_thread_min}; it must not be larger than "
                f"consume_thread_max ({self.consume_thread_max})"
            )
        if self.lock_renew_ms * 2 > self.lock_lease_ms:
            raise SettingError(
                f"lock_renew_ms is {self.lock_renew_ms}; it must be at most half of lock_lease_ms "
                f"({self.lock_lease_ms}), or one lost renewal loses every queue"
            )
        if self.consume_timestamp:
            parse_consume_timestamp(self.consume_timestamp)

    def but(
        self, consume_from: "ConsumeFrom | str | None", message_model: MessageModel | None
    ) -> "ConsumerSettings":
        """Return these settings with the arguments of a consumer that win over them."""
        found = self
        if consume_from is not None:
            found = replace(found, consume_from=parse_consume_from(consume_from))
        if message_model is not None:
            found = replace(found, message_model=message_model)
        return found

    def reconsume_max(self, *, ordered: bool) -> int:
        """Return how often a message is tried again before it is dead."""
        if self.max_reconsume_times >= 0:
            return self.max_reconsume_times
        return INT32_MAX if ordered else RECONSUME_CONCURRENT_MAX


def check_ranges(settings: Any) -> None:
    """Refuse the first field whose value is of another type or outside its range.

    Raises:
        SettingError: The text names the key and the range.
    """
    for declared in fields(settings):
        _check_field(declared, getattr(settings, declared.name))


def rocketmq_names(settings_type: type) -> Mapping[str, str]:
    """Return RocketMQ's name of every key of a settings class that has one."""
    return {
        declared.name: declared.metadata["rocketmq"]
        for declared in fields(settings_type)
        if declared.metadata.get("rocketmq")
    }


def _check_field(declared: "Field[Any]", value: object) -> None:
    default = declared.default
    if default is MISSING:
        return
    expected: type = type(default)
    if expected in (int, bool, str) and type(value) is not expected:
        raise SettingError(f"{declared.name} is {value!r}; it must be of type {expected.__name__}")
    if issubclass(expected, Enum) and not isinstance(value, expected):
        choices = ", ".join(choice.name for choice in expected)
        raise SettingError(f"{declared.name} is {value!r}; it must be one of {choices}")
    low, high = declared.metadata.get("low"), declared.metadata.get("high")
    if low is None or high is None or value == declared.metadata["off"]:
        return
    assert isinstance(value, int)
    if not low <= value <= high:
        off = declared.metadata["off"]
        alternative = "" if off is None else f", or {off} for no limit"
        raise SettingError(
            f"{declared.name} is {value}; it must be in [{low}, {high}]{alternative}"
        )
