"""Clients choose ids, keys and origins; reports and the log show them shortened and readable."""

import orjson

from orderlymq_broker.processors.observe.messages import ID_LENGTH_SHOWN, KEY_LENGTH_SHOWN
from orderlymq_broker.processors.observe.status import SHOWN_MAX
from orderlymq_broker.processors.observe.watch import BLOCKED_MS, LOOK_MS
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import retry_topic
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import BOB
from tests.broker.processors.requests import create, heartbeat, properties, send

# The part of a page that the operator reads.
PAGE_SIZE_MAX = 1 << 20
LONG = 10_000


def fail(admin: AdminShell, number: int, origin: str) -> RemotingCommand:
    """Send a message to the group's retry topic, as its consumers may."""
    said = properties(
        UNIQ_KEY=f"{number:03}" + "u" * LONG, __SHARDINGKEY="k" * LONG, RETRY_TOPIC=origin
    )
    return send(admin, retry_topic("billing"), props=said, e=0, j=3)


def test_a_status_is_short_however_long_the_texts_of_clients_are(admin: AdminShell) -> None:
    """Law: a status with all rows and the longest texts is still smaller than what the operator reads."""
    create_topic(admin)
    create(admin, GroupSet("billing"))
    heartbeat(admin, "alice", tags="a" * LONG)
    heartbeat(admin, "bob", caller=BOB, tags="b" * LONG)
    long = properties(UNIQ_KEY="u" * LONG, __SHARDINGKEY="k" * LONG)
    assert send(admin, props=long, e=0).code == 0

    for number in range(SHOWN_MAX):
        assert fail(admin, number, "x" * LONG).code == 0
    admin.pass_time(BLOCKED_MS + 2 * LOOK_MS, step=1_000)

    status = admin.core.group_status()
    found = status["watch"]
    assert [len(found[kind]) for kind in ("failing", "disagreeing")] == [SHOWN_MAX, 1]
    (row,) = [each for each in found["blocked"] if each["topic"] == "orders"]
    assert row["messageId"] == "u" * ID_LENGTH_SHOWN
    assert row["key"] == "k" * KEY_LENGTH_SHOWN
    assert len(orjson.dumps(status, option=orjson.OPT_INDENT_2)) < PAGE_SIZE_MAX // 4
    assert all(len(text) < 2_000 for text in admin.core.watch.warnings.take())


def test_a_message_failed_in_a_topic_that_is_here_or_in_none(admin: AdminShell) -> None:
    """Law: the origin that a message names is shown only if there is such a topic,
    because people copy the line into a shell.
    """
    create_topic(admin)
    create(admin, GroupSet("billing"))
    heartbeat(admin, "alice")

    fail(admin, 1, "orders")
    fail(admin, 2, "orders;rm -r /")
    admin.pass_time(2 * LOOK_MS, step=1_000)

    rows = admin.core.group_status()["watch"]["failing"]
    assert {row["messageId"][:3]: row["topic"] for row in rows} == {
        "001": "orders",
        "002": retry_topic("billing"),
    }
