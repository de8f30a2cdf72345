"""The broker's settings as tools see and change them."""

import pytest

from tests.broker.processors.administering import AdminShell, golden
from tests.broker.processors.requests import heartbeat, send


def shown(admin: AdminShell) -> dict[str, str]:
    lines = admin.tool(26).body.decode().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_settings_are_shown_as_properties_with_a_version(admin: AdminShell) -> None:
    """26: key=value lines, the version as JSON in ext, every key one that RocketMQ shows."""
    theirs = {
        line.partition("=")[0]
        for line in golden(26, "response")[0].body.decode().splitlines()
        if "=" in line
    }

    reply = admin.tool(26)

    assert reply.ext == {"version": '{"counter":0,"timestamp":0}'}
    assert set(shown(admin)) <= theirs
    assert shown(admin)["brokerName"] == "broker-a"


def test_auto_creation_can_be_turned_off_while_the_broker_runs(admin: AdminShell) -> None:
    """25: it works at once, and the version tells of it."""
    assert send(admin, "first").code == 0

    reply = admin.tool(25, b"autoCreateTopicEnable=false\nautoCreateSubscriptionGroup=false\n")

    assert (reply.code, "manifest" in (reply.remark or "")) == (0, True)
    assert send(admin, "second").code == 17
    heartbeat(admin, "alice", group="new")
    assert "new" not in admin.state.groups.by_name
    assert shown(admin)["autoCreateTopicEnable"] == "false"
    assert admin.tool(26).ext == {"version": f'{{"counter":1,"timestamp":{admin.wall_ms}}}'}


def test_retention_and_the_disk_mark_can_be_changed(admin: AdminShell) -> None:
    """fileReservedTime in hours, diskMaxUsedSpaceRatio in per cent; sending resumes a little below."""
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
        (b"noSuchKey=1\n", "noSuchKey"),
        (b"autoCreateTopicEnable=maybe\n", "true or false"),
        (b"fileReservedTime=0\n", "hours"),
        (b"fileReservedTime=soon\n", "does not fit"),
        (b"diskMaxUsedSpaceRatio=100\n", "percentage"),
        (b"", "key=value"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_what_cannot_be_changed_is_refused_by_name(
    admin: AdminShell, body: bytes, part: str
) -> None:
    """1 with the key and what to do; keys before it in the same request are not taken either."""
    before = admin.core.context.settings

    reply = admin.tool(25, body and b"autoCreateSubscriptionGroup=false\n" + body)

    assert (reply.code, part in (reply.remark or "")) == (1, True)
    assert admin.core.context.settings is before


def test_a_value_that_is_already_so_and_flush_timers_are_accepted(admin: AdminShell) -> None:
    """Tools set them by habit; nothing changes, so neither does the version."""
    for frame in golden(25, "request"):
        assert admin.tool(25, frame.body).code == 0
    assert admin.tool(25, b"# comment\nbrokerName=broker-a\n").code == 0

    assert admin.tool(26).ext["version"] == '{"counter":0,"timestamp":0}'


def test_cleaning_lets_retention_look_at_once(admin: AdminShell) -> None:
    """306, 316 and 329 answer 0; what is past its time goes with the next ticks."""
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
