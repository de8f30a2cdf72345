"""Every setting, compared with the table of names, defaults and ranges."""

from datetime import timedelta

import pytest

from orderlymq.consumer.assignment import Averagely
from orderlymq.consumer.settings import (
    ConsumeFrom,
    ConsumerSettings,
    MessageModel,
    parse_consume_from,
    parse_consume_timestamp,
)
from orderlymq.durations import milliseconds, seconds
from orderlymq.errors import SettingError
from orderlymq.settings import ClientSettings, ProducerSettings
from orderlymq_protocol.shares import averagely
from tests.client.parity.table import rocketmq_names

CLIENT_DEFAULTS = {
    "clientIP": "",
    "instanceName": "",
    "clientCallbackExecutorThreads": 0,
    "pollNameServerInterval": 30.0,
    "heartbeatBrokerInterval": 30.0,
    "persistConsumerOffsetInterval": 5.0,
    "token": "",
    "unitMode": False,
}
PRODUCER_DEFAULTS = {
    "createTopicKey": "TBW102",
    "defaultTopicQueueNums": 4,
    "sendMsgTimeout": 3.0,
    "compressMsgBodyOverHowmuch": 4_096,
    "retryTimesWhenSendFailed": 2,
    "retryTimesWhenSendAsyncFailed": 2,
    "retryAnotherBrokerWhenNotStoreOK": False,
    "maxMessageSize": 4_194_304,
}
CONSUMER_DEFAULTS = {
    "messageModel": MessageModel.CLUSTERING,
    "consumeFromWhere": ConsumeFrom.LAST,
    "consumeTimestamp": "",
    "consumeThreadMin": 20,
    "consumeThreadMax": 64,
    "adjustThreadPoolNumsThreshold": 100_000,
    "consumeConcurrentlyMaxSpan": 2_000,
    "pullThresholdForQueue": 1_000,
    "pullThresholdSizeForQueue": 100,
    "pullThresholdForTopic": -1,
    "pullThresholdSizeForTopic": -1,
    "consumeMessageBatchMaxSize": 1,
    "pullBatchSize": 32,
    "pullInterval": 0.0,
    "postSubscriptionWhenPull": False,
    "maxReconsumeTimes": -1,
    "suspendCurrentQueueTimeMillis": 1.0,
    "consumeTimeout": 900.0,
    "allocateMessageQueueStrategy": Averagely(),
}


@pytest.mark.parametrize(
    ("settings", "table"),
    [
        (ClientSettings(), CLIENT_DEFAULTS),
        (ProducerSettings(), PRODUCER_DEFAULTS),
        (ConsumerSettings(), CONSUMER_DEFAULTS),
    ],
)
def test_names_and_defaults_are_those_of_the_table(
    settings: object, table: dict[str, object]
) -> None:
    """Law: each setting has RocketMQ's key and default (CFG-C, CFG-P, CFG-S)."""
    names = rocketmq_names(type(settings))
    found = {rocketmq: getattr(settings, own) for own, rocketmq in names.items()}

    assert {name: found.get(name) for name in table} == table


@pytest.mark.parametrize(
    ("key", "bad", "limits"),
    [
        ("consume_thread_min", 0, "[1, 1000]"),
        ("consume_thread_max", 1001, "[1, 1000]"),
        ("consume_concurrently_max_span", 65_536, "[1, 65535]"),
        ("pull_threshold_for_queue", 0, "[1, 65535]"),
        ("pull_threshold_size_for_queue_mib", 1025, "[1, 1024]"),
        ("pull_threshold_for_topic", 0, "[1, 6553500], or -1"),
        ("pull_threshold_size_for_topic_mib", 102_401, "[1, 102400], or -1"),
        ("consume_message_batch_max_size", 0, "[1, 1024]"),
        ("pull_batch_size", 1025, "[1, 1024]"),
        ("pull_interval", 66.0, "[0, 65.535]"),
        ("max_reconsume_times", -2, "[-1, 2147483647]"),
        ("suspend_current_queue_time", 0.009, "[0.01, 30.0]"),
    ],
)
def test_a_value_out_of_range_is_refused_with_key_and_range(
    key: str, bad: float, limits: str
) -> None:
    """Law: a value out of range is refused with key and range (CFG)."""
    with pytest.raises(SettingError) as caught:
        ConsumerSettings(**{key: bad})  # type: ignore[arg-type]  # the point of the test

    assert f"{key} is {bad}" in str(caught.value)
    assert limits in str(caught.value)


def test_a_time_is_seconds_or_a_timedelta() -> None:
    """Law: a time is seconds or a timedelta, with the same range."""
    settings = ConsumerSettings(lock_lease=timedelta(seconds=20), shutdown_timeout=0.5)

    assert (seconds(settings.lock_lease), seconds(settings.shutdown_timeout)) == (20.0, 0.5)
    assert milliseconds(timedelta(milliseconds=1.4)) == 1
    with pytest.raises(SettingError, match=r"lock_lease is 120\.0 seconds; it must be in"):
        ConsumerSettings(lock_lease=timedelta(minutes=2))
    for wrong in ("5s", True, None):
        with pytest.raises(SettingError, match="give seconds or a timedelta"):
            ConsumerSettings(lock_lease=wrong)  # type: ignore[arg-type]  # the point


def test_other_contradictions_are_refused() -> None:
    """Law: contradicting threads, leases, types and times are refused."""
    with pytest.raises(SettingError, match="consume_thread_min is 100"):
        ConsumerSettings(consume_thread_min=100)
    for concurrency in (0, 1_001):
        with pytest.raises(
            SettingError, match=rf"^concurrency is {concurrency}; .* from 1 to 1000"
        ):
            ConsumerSettings().but(None, None, concurrency)
    with pytest.raises(SettingError, match="at most half of lock_lease"):
        ConsumerSettings(lock_lease=5, lock_renew=4)
    with pytest.raises(SettingError, match="must be of type int"):
        ProducerSettings(default_topic_queue_nums="4")  # type: ignore[arg-type]  # the point
    with pytest.raises(SettingError, match="must be one of CLUSTERING, BROADCASTING"):
        ConsumerSettings(message_model="CLUSTERING")  # type: ignore[arg-type]  # the point
    with pytest.raises(SettingError, match="yyyyMMddHHmmss"):
        ConsumerSettings(consume_timestamp="2026-01-01")


@pytest.mark.parametrize("wrong", ["AVG", Averagely, None, averagely])
def test_what_is_no_strategy_is_refused(wrong: object) -> None:
    """Law: what is no strategy is refused; each rebalance would fail, and the member's queues stand still."""
    with pytest.raises(SettingError, match=r"allocate_message_queue_strategy is .* Averagely\(\)"):
        ConsumerSettings(allocate_message_queue_strategy=wrong)  # type: ignore[arg-type]  # the point


def test_a_text_that_cannot_be_sent_is_refused_without_being_shown() -> None:
    """Law: a text that cannot be encoded is refused without being shown; a path may hold any bytes."""
    for name in ("instance_name", "client_ip", "unit_name", "token", "secret_key"):
        with pytest.raises(SettingError, match=f"{name} cannot be encoded as UTF-8") as caught:
            ClientSettings(**{name: "hidden\ud800"})  # type: ignore[arg-type]  # texts all
        assert "hidden" not in str(caught.value)
    ClientSettings(tls_ca_file="ca\udcff.pem")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("first", ConsumeFrom.FIRST),
        ("earliest", ConsumeFrom.FIRST),
        ("latest", ConsumeFrom.LAST),
        ("CONSUME_FROM_TIMESTAMP", ConsumeFrom.TIMESTAMP),
        ("CONSUME_FROM_MIN_OFFSET", ConsumeFrom.LAST),
        ("CONSUME_FROM_MAX_OFFSET", ConsumeFrom.LAST),
        ("CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", ConsumeFrom.LAST),
        (ConsumeFrom.FIRST, ConsumeFrom.FIRST),
    ],
)
def test_start_positions_have_short_and_rocketmq_names(
    text: str | ConsumeFrom, where: ConsumeFrom
) -> None:
    """Law: start positions have short names and RocketMQ's, the three deprecated ones included (CFG-S3)."""
    assert parse_consume_from(text) is where


def test_an_unknown_start_position_names_the_known_ones() -> None:
    """Law: an unknown start position is refused with the known ones (CFG-S3)."""
    with pytest.raises(SettingError, match="first, last or timestamp"):
        parse_consume_from("somewhere")


def test_the_consume_timestamp_is_local_time() -> None:
    """Law: consume_timestamp is local time in seconds (CFG-S4)."""
    assert (
        parse_consume_timestamp("20260131120001") - parse_consume_timestamp("20260131120000")
        == 1_000
    )
    for bad in ("", "20260131", "2026013112000a", "20261331120000"):
        with pytest.raises(SettingError, match="yyyyMMddHHmmss"):
            parse_consume_timestamp(bad)


def test_the_reconsume_maximum_depends_on_the_kind_of_consumer() -> None:
    """Law: -1 as the maximum of tries means 16 for concurrent and 2147483647 for ordered consumers (CFG-S18)."""
    assert ConsumerSettings().reconsume_max(ordered=True) == 2**31 - 1
    assert ConsumerSettings().reconsume_max(ordered=False) == 16
    assert ConsumerSettings(max_reconsume_times=3).reconsume_max(ordered=True) == 3
