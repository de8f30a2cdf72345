"""How far consumer groups have pulled, as mqadmin 5.x shows it: "Inflight" is pulled but not committed."""

from collections.abc import Callable
from typing import Any

import pytest

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.pullpositions import POSITIONS_MAX, PullPositions
from orderlymq_broker.state.groups.members import MemberTable
from orderlymq_broker.state.records import GroupDeleted, GroupSet, MemberSeen, TopicDeleted
from orderlymq_broker.state.tables import TableWrites
from orderlymq_protocol.body.messagequeue import MessageQueue
from tests.broker.processors.adminshell import AdminShell, create_topic
from tests.broker.processors.driver import ALICE, TOOL
from tests.broker.processors.requests import (
    commit_ext,
    create,
    heartbeat,
    pull,
    pull_ext,
    send,
)
from tests.broker.store.memory import MemoryStore


@pytest.fixture
def consumed(admin: AdminShell) -> AdminShell:
    """Consumer group billing has committed two of five messages and has pulled four."""
    create_topic(admin, queues=1)
    create(admin, GroupSet("billing"))
    for _ in range(5):
        assert send(admin).code == 0
    heartbeat(admin, "alice")
    assert pull(admin, maxMsgNums=4).code == 0
    assert admin.call(15, commit_ext(2)).code == 0
    return admin


def offsets(admin: AdminShell, group: str = "billing") -> tuple[int, int, int]:
    """Return the end of queue 0, the pulled offset and the committed offset."""
    table = admin.read(208, consumerGroup=group, topic="orders")["offsetTable"]
    row = table[MessageQueue("orders", "broker-a", 0)]
    return row["brokerOffset"], row["pullOffset"], row["consumerOffset"]


def test_what_is_pulled_and_not_committed_is_in_flight(consumed: AdminShell) -> None:
    """Law: 208 and 317 show the next offset of the last pull's answer, also if it is lower,
    after a retry or by another member.
    """
    assert offsets(consumed) == (5, 4, 2)
    everything = consumed.read(317, isOrder=False)
    (row,) = everything["consumeStatsList"]
    assert [each["pullOffset"] for each in row["billing"][0]["offsetTable"].values()] == [4]
    assert (everything["totalDiff"], everything["totalInflightDiff"]) == (3, 2)

    pull(consumed, offset=2, maxMsgNums=1)
    assert offsets(consumed) == (5, 3, 2)

    consumed.submit(11, pull_ext(offset=5, sysFlag=6))
    assert offsets(consumed) == (5, 5, 2)


def test_a_group_that_has_pulled_nothing_has_nothing_in_flight(admin: AdminShell) -> None:
    """Law: without a pull, the pulled offset equals the committed one;
    tools of 5.x subtract them and would show a negative number.
    """
    create_topic(admin, queues=1)
    create(admin, GroupSet("billing"))
    for _ in range(3):
        send(admin)
    assert admin.call(15, commit_ext(3), caller=TOOL).code == 0

    assert offsets(admin) == (3, 3, 3)


def test_what_a_tool_reads_is_not_in_flight(admin: AdminShell) -> None:
    """Law: a tool's pull does not count, because a consumer group without members consumes nothing."""
    create_topic(admin, queues=1)
    create(admin, GroupSet("billing"))
    send(admin)

    assert pull(admin, caller=TOOL).code == 0

    assert offsets(admin) == (1, 0, 0)


def test_nothing_is_in_flight_after_a_reset(consumed: AdminShell) -> None:
    """Law: after a reset of offsets, members start at the new offset, and nothing is in flight."""
    consumed.tool(222, topic="orders", group="billing", timestamp=0, isForce=True)

    assert offsets(consumed) == (5, 0, 0)


def _leave(admin: AdminShell) -> None:
    assert admin.call(35, {"clientID": "alice", "consumerGroup": "billing"}).code == 0


def _make_again(admin: AdminShell, *gone: Any) -> None:
    admin.run([Propose(list(gone))])
    admin.settle()
    create_topic(admin, queues=1)
    create(admin, GroupSet("billing"))


@pytest.mark.parametrize(
    ("end", "committed"),
    [
        pytest.param(_leave, (5, 2, 2), id="the last member leaves"),
        pytest.param(
            lambda admin: admin.run(admin.core.connection_closed(ALICE.connection)),
            (5, 2, 2),
            id="the last connection is closed",
        ),
        pytest.param(lambda admin: admin.follow().lead(), (5, 2, 2), id="another leader"),
        pytest.param(
            lambda admin: _make_again(admin, TopicDeleted("orders")), (0, 0, 0), id="topic deleted"
        ),
        pytest.param(
            lambda admin: _make_again(admin, GroupDeleted("billing", clean_offsets=True)),
            (5, 0, 0),
            id="group deleted",
        ),
    ],
)
def test_a_position_goes_with_its_group_topic_and_leader(
    consumed: AdminShell, end: Callable[[AdminShell], object], committed: tuple[int, int, int]
) -> None:
    """Law: a position is dropped with its consumer group, its topic or the leadership; then the committed offset is shown."""
    end(consumed)
    consumed.settle()

    assert offsets(consumed) == committed
    assert not consumed.core.context.positions.of("billing", "orders")


def test_no_more_queues_are_noted_than_there_is_room_for() -> None:
    """Law: the number of positions is limited; known ones are updated, and dropped ones free their place."""
    members = MemberTable(MemoryStore())
    members.see(MemberSeen("billing", "alice", "192.0.2.1:1"), TableWrites())
    positions = PullPositions(members)
    for queue in range(POSITIONS_MAX):
        positions.note("billing", f"t{queue % 7}", queue, 1)

    positions.note("billing", "late", 0, 1)
    positions.note("billing", "t0", 0, 2)
    assert (dict(positions.of("billing", "late")), positions.of("billing", "t0")[0]) == ({}, 2)

    positions.reset([("billing", "t0")])
    positions.note("billing", "late", 0, 3)
    assert positions.of("billing", "late") == {0: 3}
