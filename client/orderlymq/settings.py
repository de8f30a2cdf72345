"""
Every setting of the SDK: RocketMQ's keys in snake_case, with their defaults, units and ranges.

Rule: a value outside its range is refused when the settings are made; the error names the key and the range. No
value is clipped silently, except where RocketMQ specifies it. Times are seconds or a `timedelta` (`durations`); the
names of sizes include their unit. The field's metadata holds RocketMQ's own name of a key, and the documentation's
table is made from it.
"""

from collections.abc import Callable
from dataclasses import MISSING, Field, dataclass, field, fields
from enum import Enum
from typing import Any, Final, TypeVar

from orderlymq.durations import Duration, seconds
from orderlymq.errors import SettingError
from orderlymq_protocol.integers import INT32_MAX
from orderlymq_protocol.names import AUTO_CREATE_TOPIC, InvalidName

S = TypeVar("S")

DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"

# RocketMQ limits its counts to this.
COUNT_MAX: Final = 65_535
# 32 bits of milliseconds hold a little more than this.
_DAYS_S: Final = 24 * 86_400


def check_name(check: Callable[[str], None], name: str) -> None:
    """Refuse a name that breaks the rule of *check*.

    Raises:
        SettingError: The text names the rule.
    """
    try:
        check(name)
    except InvalidName as error:
        raise SettingError(str(error)) from error


def check_text(name: str, text: str) -> None:
    """Refuse text that UTF-8 cannot encode.

    Heartbeats carry such names. One that cannot be encoded would stop the heartbeats of all groups of its client.

    Raises:
        SettingError: The text has a lone surrogate.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"{name} cannot be encoded as UTF-8: {error.reason}") from error


def setting(
    default: Any,
    rocketmq: str,
    low: int | None = None,
    high: int | None = None,
    *,
    off: int | None = None,
    secret: bool = False,
) -> Any:
    """Declare a setting: its default, its RocketMQ name, its range, and a value that turns it off."""
    metadata = {"rocketmq": rocketmq, "low": low, "high": high, "off": off}
    return field(default=default, metadata=metadata, repr=not secret)


def time_setting(default_s: float, rocketmq: str, low_s: float, high_s: float = _DAYS_S) -> Any:
    """Declare a setting that is a time span, with its default and its range in seconds."""
    metadata = {"rocketmq": rocketmq, "low": low_s, "high": high_s, "off": None, "unit": "s"}
    return field(default=float(default_s), metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Settings that producers and consumers share.

    Attributes:
        client_ip: shown in the client id; the own address towards the name server when empty.
        instance_name: part of the client id; process id and start time when empty.
        namespace: wraps the names of topics and groups on their way to brokers; messages
            come with bare topics, queues and ids carry the whole names.
        unit_name, unit_mode: carried, without effect (a RocketMQ routing feature).
        client_callback_executor_threads: accepted, without effect: callbacks run on the event loop.
        token: sent with every request as `SecurityToken` when set.
        access_key: account whose secret signs every request, as RocketMQ's AclClientRPCHook does.
        secret_key: the secret of that account.
        use_tls: speak TLS with brokers and name servers; without a CA file any server is trusted.
        tls_ca_file: PEM file with the authorities that may sign a server's certificate.
        tls_certificate_file: PEM file with the client's certificate, where brokers ask for one.
        tls_key_file: PEM file with the key of that certificate.
        tls_verify_host: whether a server's certificate must be good for the address that is called; off where
            addresses are not known when it is made, as in Kubernetes: the CA is trusted alone then.
        request_timeout: of every request without a time of its own.
    """

    client_ip: str = setting("", "clientIP")
    instance_name: str = setting("", "instanceName")
    namespace: str = setting("", "namespace")
    unit_name: str = setting("", "unitName")
    unit_mode: bool = setting(default=False, rocketmq="unitMode")
    client_callback_executor_threads: int = setting(0, "clientCallbackExecutorThreads", 0, 1000)
    poll_name_server_interval: Duration = time_setting(30, "pollNameServerInterval", 0.01)
    heartbeat_broker_interval: Duration = time_setting(30, "heartbeatBrokerInterval", 0.01)
    persist_consumer_offset_interval: Duration = time_setting(
        5, "persistConsumerOffsetInterval", 0.01
    )
    rebalance_interval: Duration = time_setting(20, "rocketmq.client.rebalance.waitInterval", 0.01)
    token: str = setting("", "token", secret=True)
    access_key: str = setting("", "accessKey")
    secret_key: str = setting("", "secretKey", secret=True)
    use_tls: bool = setting(default=False, rocketmq="useTLS")
    tls_ca_file: str = setting("", "")
    tls_certificate_file: str = setting("", "")
    tls_key_file: str = setting("", "")
    tls_verify_host: bool = setting(default=True, rocketmq="")
    request_timeout: Duration = time_setting(3, "mqClientApiTimeout", 0.001)

    def __post_init__(self) -> None:
        check_ranges(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a producer.

    Attributes:
        send_message_timeout: covers all tries of one send together.
        retry_times_when_send_failed: further tries of a plain send, each on another broker if there is
            one. Where there is none, tries that surely stored nothing are not counted, unless this is 0:
            the send waits for a leader until the time is over. Sends by key, selector or queue are tried
            again on the same queue until the time is over.
        retry_times_when_send_async_failed: the same for `send_nowait`.
        retry_another_broker_when_not_store_ok: also when the message was stored with another status than
            OK; refused for sends by key, selector or queue, where it would break the order.
        compress_level: zlib, 1 fast to 9 small.
        send_buffer_bytes: bodies of sends that nobody waits for; `send_nowait` refuses what passes it.
        queue_change_patience: how long a send without a time-out of its own waits while the number of
            queues of its topic is being changed; each try then has the usual time.
    """

    create_topic_key: str = setting(AUTO_CREATE_TOPIC, "createTopicKey")
    default_topic_queue_nums: int = setting(4, "defaultTopicQueueNums", 1, COUNT_MAX)
    send_message_timeout: Duration = time_setting(3, "sendMsgTimeout", 0.001)
    compress_message_body_over_bytes: int = setting(
        4_096, "compressMsgBodyOverHowmuch", 0, INT32_MAX
    )
    compress_level: int = setting(5, "rocketmq.message.compressLevel", 1, 9)
    retry_times_when_send_failed: int = setting(2, "retryTimesWhenSendFailed", 0, 100)
    retry_times_when_send_async_failed: int = setting(2, "retryTimesWhenSendAsyncFailed", 0, 100)
    retry_another_broker_when_not_store_ok: bool = setting(
        default=False, rocketmq="retryAnotherBrokerWhenNotStoreOK"
    )
    max_message_size_bytes: int = setting(4 * 1024 * 1024, "maxMessageSize", 1, 15 * 1024 * 1024)
    queue_change_patience: Duration = time_setting(120, "", 0)

    send_buffer_bytes: int = setting(64 * 1024 * 1024, "", 1, 2**40)

    def __post_init__(self) -> None:
        check_ranges(self)

    def compresses(self, body: bytes) -> bool:
        """Return whether a message with this body is compressed when it is sent alone."""
        return len(body) >= self.compress_message_body_over_bytes


def settings_of(kind: type[S], given: S | None) -> S:
    """Return the settings that a user gave, or the defaults.

    Raises:
        SettingError: They are of another type.
    """
    if given is None:
        return kind()
    if not isinstance(given, kind):
        found = type(given).__name__
        raise SettingError(f"the settings are of type {found}; pass {kind.__name__}(...)")
    return given


def check_ranges(settings: Any) -> None:
    """Refuse the first field whose value is of another type or outside its range.

    Raises:
        SettingError: The text names the key and the range.
    """
    for declared in fields(settings):
        _check_field(declared, getattr(settings, declared.name))


def _check_field(declared: "Field[Any]", value: object) -> None:
    default = declared.default
    if default is MISSING:
        return
    expected: type = type(default)
    off = declared.metadata.get("off")
    if expected is float:
        value = seconds(value)  # type: ignore[arg-type]  # it refuses what is no span
    if expected in (int, bool, str) and type(value) is not expected:
        raise SettingError(f"{declared.name} is {value!r}; it must be of type {expected.__name__}")
    if isinstance(value, str) and declared.metadata.get("rocketmq"):  # a path may hold any bytes
        check_text(declared.name, value)
    if issubclass(expected, Enum) and not isinstance(value, expected):
        choices = ", ".join(choice.name for choice in expected)
        raise SettingError(f"{declared.name} is {value!r}; it must be one of {choices}")
    low, high = declared.metadata.get("low"), declared.metadata.get("high")
    if low is None or high is None or value == off:
        return
    assert isinstance(value, int | float)
    if not low <= value <= high:
        unit = " seconds" if expected is float else ""
        alternative = "" if off is None else f", or {off} for no limit"
        raise SettingError(
            f"{declared.name} is {value}{unit}; it must be in [{low}, {high}]{alternative}"
        )
