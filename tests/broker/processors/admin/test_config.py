"""The broker's settings as tools see and change them."""

from typing import Any

import msgspec
import pytest

from orderlymq_broker.core.livesettings import LIVE, text_of
from orderlymq_broker.processors.admin.config import MANIFEST_MS
from orderlymq_protocol.brokerkeys import BROKER_KEYS, BrokerKey, Kind, Use
from orderlymq_protocol.names import TRACE_TOPIC
from tests.broker.processors.adminshell import AdminShell, create_topic, golden
from tests.broker.processors.driver import settings
from tests.broker.processors.requests import heartbeat, pull, send, send_ext


def shown(admin: AdminShell) -> dict[str, str]:
    lines = admin.tool(26).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_are_shown_as_properties_with_a_version(admin: AdminShell) -> None:
    """Law: 26 returns key=value lines and a version in JSON; every key is one of RocketMQ's."""
    theirs = {
        line.partition("=")[0]
        for line in golden(26, "response")[0].body.decode().splitlines()
        if "=" in line
    }

    reply = admin.tool(26)

    assert reply.ext == {"version": '{"counter":0,"timestamp":0}'}
    # The capture is of 4.9; timers at any time came with 5.0, taking them back with 5.3.
    assert set(shown(admin)) <= theirs | {
        "timerWheelEnable",
        "timerMaxDelaySec",
        "recallMessageEnable",
    }
    assert shown(admin)["brokerName"] == "broker-a"


def test_auto_creation_can_be_turned_off_while_the_broker_runs(admin: AdminShell) -> None:
    """Law: 25 turns automatic creation off immediately, and the version rises."""
    assert send(admin, "first").code == 0

    reply = admin.tool(25, b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n")

    assert (reply.code, "manifest" in (reply.remark or "")) == (0, True)
    assert send(admin, "second").code == 17
    heartbeat(admin, "alice", group="new")
    assert "new" not in admin.state.groups.by_name
    assert shown(admin)["autoCreateTopicEnable"] == "false"
    assert admin.tool(26).ext == {"version": f'{{"counter":1,"timestamp":{admin.wall_ms}}}'}


def test_retention_and_the_disk_mark_can_be_changed(admin: AdminShell) -> None:
    """Law: fileReservedTime (hours) and diskMaxUsedSpaceRatio (per cent) can be changed;
    sends resume a little below the mark.
    """
    assert admin.tool(25, b"fileReservedTime=24\ndiskMaxUsedSpaceRatio=50\n").code == 0

    storage = admin.core.context.settings.storage
    assert storage.retention_ms == 24 * 3_600_000
    assert storage.disk_refuse_ratio == 0.5
    assert storage.disk_resume_ratio == pytest.approx(0.48)
    admin.core.set_environment(0.6, {})
    assert send(admin).code == 14


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"brokerName=other\n", "brokerName"),
        (b"sendMessageThreadPoolNums=16\n", "more broker groups give more throughput"),
        (b"messageDelayLevel=1s 2s\n", "takes effect when a replica starts"),
        (b"brokerPermission=3\n", "write one of 2, 4, 6: 6 read and write, 4 read only"),
        (b"transactionCheckMax=0\n", "from 1 to 1000"),
        (b"noSuchKey=1\n", "noSuchKey"),
        (b"longPollingEnable=false\n", "it is always on"),
        (b"autoCreateTopicEnable=maybe\n", "true or false"),
        (b"fileReservedTime=0\n", "hours"),
        (b"fileReservedTime=soon\n", "is not allowed"),
        (b"diskMaxUsedSpaceRatio=100\n", "percent from 10 to 99"),
        (b"", "key=value"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(
    admin: AdminShell, body: bytes, part: str
) -> None:
    """Law: a key that cannot be changed is refused by name, and no other key of the request is changed."""
    before = admin.core.context.settings

    reply = admin.tool(25, body and b"autoCreateSubscriptionGroup=false\n" + body)

    assert (reply.code, part in (reply.remark or "")) == (1, True)
    assert admin.core.context.settings is before


def test_a_value_that_is_already_so_and_flush_timers_are_accepted(admin: AdminShell) -> None:
    """Law: a value that is set already, and flush timers, are accepted without a change of the version,
    because tools send them by habit.
    """
    for frame in golden(25, "request"):
        assert admin.tool(25, frame.body).code == 0
    assert admin.tool(25, b"# comment\nbrokerName=broker-a\n").code == 0

    assert admin.tool(26).ext["version"] == '{"counter":0,"timestamp":0}'


@pytest.mark.parametrize("key", list(BROKER_KEYS.values()), ids=lambda key: key.name)
def test_what_rocketmq_takes_and_what_is_so_here_is_accepted(
    admin: AdminShell, key: BrokerKey
) -> None:
    """Law: keys without an effect here are accepted with values that hold anyway;
    a value that would not be kept is refused.
    """
    accepted = {Use.INERT: (key.default, "other"), Use.ALWAYS: ("true", "TRUE")}.get(key.use, ())

    for value in accepted:
        assert admin.tool(25, f"{key.name}={value}\n".encode()).code == 0
    if key.use in (Use.ALWAYS, Use.REFUSED):
        assert admin.tool(25, f"{key.name}=false\n".encode()).code == 1
    assert admin.tool(26).ext["version"] == '{"counter":0,"timestamp":0}'


def test_a_change_outlives_the_leader_and_a_restart(admin: AdminShell) -> None:
    """Law: a changed setting is in the log, so the next leader and a restarted replica have it."""
    assert admin.tool(25, b"transactionCheckMax=3\nfileReservedTime=5\n").code == 0

    admin.follow()
    admin.lead()
    again = AdminShell(admin.settings, admin.store)
    again.lead()

    for shell in (admin, again):
        assert shown(shell)["transactionCheckMax"] == "3"
        assert shell.core.context.settings.storage.retention_ms == 5 * 3_600_000
    assert again.state.digest() == admin.state.digest()
    admin.replay()


def test_a_manifest_that_says_something_new_wins(admin: AdminShell) -> None:
    """Law: a new value in the manifest wins over a change at run time, which replaced the former value only."""
    admin.tool(25, b"fileReservedTime=5\ntransactionCheckMax=3\n")
    storage = msgspec.structs.replace(admin.settings.storage, retention_ms=9 * 3_600_000)

    newer = AdminShell(settings(storage=storage), admin.store)
    newer.lead()

    assert shown(newer)["fileReservedTime"] == "9"
    assert shown(newer)["transactionCheckMax"] == "3"


def test_a_value_of_the_manifest_ends_the_override(admin: AdminShell) -> None:
    """Law: setting a key back to the manifest's value removes the change."""
    admin.tool(25, b"fileReservedTime=5\n")

    assert admin.tool(25, b"fileReservedTime=72\n").code == 0
    assert admin.state.overrides.values == {}


def test_what_the_manifest_has_ended_does_not_come_back_with_it(admin: AdminShell) -> None:
    """Law: a change that the manifest has replaced does not return with the old manifest.

    Else an old retention of an hour could delete messages.
    """
    admin.tool(25, b"fileReservedTime=1\ntransactionCheckMax=3\n")
    storage = msgspec.structs.replace(admin.settings.storage, retention_ms=9 * 3_600_000)
    admin.run(admin.core.follow(settings(storage=storage)))
    admin.pass_time(MANIFEST_MS + 60_000, step=60_000)

    admin.run(admin.core.follow(settings()))

    assert shown(admin)["fileReservedTime"] == "72"
    assert shown(admin)["transactionCheckMax"] == "3"
    admin.replay()


def test_a_leader_that_has_the_former_manifest_for_a_while_ends_nothing(admin: AdminShell) -> None:
    """Law: a leader that still has the former manifest does not end a change, because kubelets update files minutes apart."""
    storage = msgspec.structs.replace(admin.settings.storage, retention_ms=9 * 3_600_000)
    admin.run(admin.core.follow(settings(storage=storage)))
    admin.tool(25, b"fileReservedTime=1\n")
    admin.follow()
    admin.run(admin.core.follow(settings()))
    admin.lead()
    admin.pass_time(3 * 60_000, step=60_000)
    assert shown(admin)["fileReservedTime"] == "72"

    admin.run(admin.core.follow(settings(storage=storage)))

    admin.pass_time(MANIFEST_MS + 60_000, step=60_000)
    assert shown(admin)["fileReservedTime"] == "1"


@pytest.mark.parametrize("name", sorted(LIVE))
def test_every_live_key_can_be_changed_and_set_back(admin: AdminShell, name: str) -> None:
    """Law: every changeable key accepts the value that 26 shows, and can be set back."""
    before, key = shown(admin)[name], BROKER_KEYS[name]
    other = {"true": "false", "false": "true"}.get(before) or str(max(key.low, int(before) - 2))

    for value in (other, before):
        assert admin.tool(25, f"{name}={value}\n".encode()).code == 0
        assert shown(admin)[name] == value


def test_the_live_keys_are_those_of_the_table() -> None:
    """Law: the keys in the table of changeable keys have defaults as stated, RocketMQ's or our own."""
    table = {key.name for key in BROKER_KEYS.values() if key.use is Use.LIVE}

    assert table == set(LIVE)
    for name in table:
        key = BROKER_KEYS[name]
        assert text_of(settings(), name) == (key.ours or key.default)
        assert key.kind is not Kind.TEXT


def test_a_broker_may_be_made_read_only_or_write_only(admin: AdminShell) -> None:
    """Law: brokerPermission 4 refuses sends and 2 refuses pulls, with 16 and what to do; 6 allows both."""
    create_topic(admin)

    admin.tool(25, b"brokerPermission=4\n")
    refused = send(admin, e=0)
    assert (refused.code, "brokerPermission is 4" in (refused.remark or "")) == (16, True)
    assert pull(admin).code != 16

    admin.tool(25, b"brokerPermission=2\n")
    refused = pull(admin)
    assert (refused.code, "brokerPermission is 2" in (refused.remark or "")) == (16, True)
    assert send(admin, e=0).code == 0


def test_transactions_may_be_refused(admin: AdminShell) -> None:
    """Law: rejectTransactionMessage refuses half messages with 16; other messages are stored."""
    create_topic(admin)
    admin.tool(25, b"rejectTransactionMessage=true\n")
    half: dict[str, Any] = {"e": 0, "f": 4, "i": "TRAN_MSG\x01true\x02PGROUP\x01shop"}

    refused = send(admin, **half)

    assert (refused.code, "rejectTransactionMessage" in (refused.remark or "")) == (16, True)
    assert not admin.state.transactions.open
    assert send(admin, e=0).code == 0
    admin.tool(25, b"rejectTransactionMessage=false\n")
    assert send(admin, **half).code == 0


def test_the_size_limit_and_the_queues_of_new_topics_follow_immediately(admin: AdminShell) -> None:
    """Law: maxMessageSize and defaultTopicQueueNums take effect immediately."""
    admin.tool(25, b"maxMessageSize=100\ndefaultTopicQueueNums=2\n")

    refused = send(admin, "fresh", body=b"x" * 101)
    assert (refused.code, "100B" in (refused.remark or "")) == (13, True)
    assert send(admin, "fresh", body=b"x" * 100).code == 0
    assert admin.state.topics.by_name["fresh"].queue_count == 2


def test_tools_that_export_settings_find_their_keys(admin: AdminShell) -> None:
    """Law: 26 has all keys that mqadmin exportConfigs copies; it fails on a missing one."""
    wanted = {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerClusterName",
        "brokerId",
        "brokerName",
        "brokerRole",
        "fileReservedTime",
        "filterServerNums",
        "flushDiskType",
        "maxMessageSize",
        "messageDelayLevel",
        "msgTraceTopicName",
        "slaveReadEnable",
        "traceOn",
        "traceTopicEnable",
        "useTLS",
    }

    assert wanted <= set(shown(admin))
    assert shown(admin)["msgTraceTopicName"] == TRACE_TOPIC


def test_cleaning_all_the_time_does_not_keep_retention_from_its_end(admin: AdminShell) -> None:
    """Law: a request to clean (306) before each tick does not restart retention's round, which would never end."""
    create_topic(admin, "wide", 40)
    admin.tool(25, b"fileReservedTime=1\n")
    for number in range(40):
        admin.submit(310, send_ext("wide", e=number), bytes(40_000))
    admin.settle()
    admin.wall_ms += 2 * 3_600_000

    for _ in range(20):
        assert admin.tool(306).code == 0
        admin.run(admin.core.tick(admin.now))
        admin.settle()

    assert admin.state.floor == admin.state.physical_end > 0


def test_cleaning_lets_retention_look_immediately(admin: AdminShell) -> None:
    """Law: 306, 316 and 329 answer 0, and retention deletes with the next ticks."""
    admin.tool(25, b"fileReservedTime=1\n")
    for _ in range(3):
        send(admin)
    admin.pass_time(100)
    admin.wall_ms += 2 * 3_600_000

    assert [admin.tool(code).code for code in (306, 316, 329)] == [0, 0, 0]
    for _ in range(20):
        admin.run(admin.core.tick(admin.now))
        admin.settle()

    assert admin.state.floor == admin.state.physical_end > 0
