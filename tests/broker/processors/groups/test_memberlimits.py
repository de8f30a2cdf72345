"""Heartbeats use bounded memory of a replica, per connection and in total."""

from types import ModuleType

import pytest

from orderlymq_broker.core import clientsessions
from orderlymq_broker.core.clientsessions import CLIENTS_MAX, SAID_MAX, SAID_OF_CONNECTION_MAX
from orderlymq_broker.core.effects import Caller
from orderlymq_broker.state.groups import members
from orderlymq_broker.state.groups.members import MEMBERS_SIZE_MAX
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.codes import ResponseCode
from tests.broker.processors.driver import ALICE, BOB, Shell
from tests.broker.processors.requests import (
    create,
    heartbeat,
    heartbeat_body,
    lock,
    lock_body,
)


def test_one_connection_names_a_bounded_number_of_clients(shell: Shell) -> None:
    """Law: a connection may name a limited number of clients; known ones go on."""
    create(shell, TopicSet("orders", 1, 1))
    for number in range(CLIENTS_MAX):
        assert heartbeat(shell, f"c{number}", caller=ALICE).code == 0

    refused = [
        heartbeat(shell, "more", caller=ALICE),
        shell.call(41, {}, lock_body("more", 0), caller=ALICE),
    ]

    assert [reply.code for reply in refused] == [1, 1]
    assert "open another one" in (refused[0].remark or "")
    assert heartbeat(shell, "c0", caller=ALICE, tags="x").code == 0
    assert heartbeat(shell, "more", caller=BOB).code == 0


def large_heartbeat(client: str, subscriptions: int = 700) -> bytes:
    """Return a heartbeat with more long subscriptions than a real program has."""
    return heartbeat_body(
        client, topics=tuple(f"topic-{number:03}-{'x' * 100}" for number in range(subscriptions))
    )


def test_the_clients_of_one_connection_say_no_more_than_it_may_keep(shell: Shell) -> None:
    """Law: the subscriptions of a connection's clients are limited together;
    64 clients with a thousand each once took 70 MB.
    """
    create(shell, GroupSet("billing"))
    size = len(large_heartbeat("c00"))
    allowed = SAID_OF_CONNECTION_MAX // size

    replies = [
        shell.call(34, {}, large_heartbeat(f"c{number:02}")) for number in range(allowed + 1)
    ]

    assert [reply.code for reply in replies[:-1]] == [0] * allowed
    assert replies[-1].code == ResponseCode.SYSTEM_BUSY
    assert replies[-1].remark is not None
    assert "several connections" in replies[-1].remark
    assert len(shell.state.members.of_group("billing")) == allowed
    assert heartbeat(shell, "c00").code == 0
    assert shell.call(34, {}, large_heartbeat("c99")).code == 0


def test_small_heartbeats_find_room_beside_large_ones(shell: Shell) -> None:
    """Law: while large heartbeats fill their room, small ones still fit; the room is freed with the connection."""
    create(shell, GroupSet("billing"))
    sessions = shell.core.context.sessions
    for room in (sessions.said, sessions.said_large):
        room.take("others", SAID_MAX)

    assert shell.call(34, {}, large_heartbeat("big")).code == ResponseCode.SYSTEM_BUSY
    assert heartbeat(shell, "small", caller=BOB).code == 0
    said = sessions.said.used
    shell.run(shell.core.connection_closed(BOB.connection))
    assert sessions.said.used < said


@pytest.mark.parametrize(
    "field", ["consumeType", "messageModel", "consumeFromWhere", "expressionType"]
)
def test_every_text_of_a_member_counts(shell: Shell, field: str) -> None:
    """Law: every text of a member counts, also invented names of enumerations."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    body = fastjson.loads(heartbeat_body("long"))
    (consumer,) = body["consumerDataSet"]
    owner = consumer["subscriptionDataSet"][0] if field == "expressionType" else consumer
    owner[field] = "X" * 100_000

    assert shell.call(34, {}, fastjson.dumps(body)).code == 0

    assert 100_000 < shell.state.members.large_room.used < 110_000


def test_members_that_hold_locks_count_though_their_connections_are_gone(shell: Shell) -> None:
    """Law: members that hold locks count without a connection until their leases end; usual members still find room."""
    create(shell, TopicSet("orders", 4, 4), GroupSet("billing"))
    assert shell.call(34, {}, large_heartbeat("gone")).code == 0
    lock(shell, "gone", 0)
    shell.run(shell.core.connection_closed(ALICE.connection))
    shell.settle()
    assert "gone" in shell.state.members.of_group("billing")
    table = shell.state.members
    missing = MEMBERS_SIZE_MAX - table.room.used
    for room in (table.room, table.large_room):
        room.take("others", missing)

    refused = shell.call(34, {}, large_heartbeat("big"), caller=BOB)

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert heartbeat(shell, "small", caller=BOB).code == 0
    for room in (table.room, table.large_room):
        room.take("others", -missing)
    shell.state.check_invariants()
    assert shell.restart().state.members.room.parts() == table.room.parts()


@pytest.mark.parametrize(
    ("subscriptions", "size"), [(1, 60_000), (60, 1_000_000)], ids=["small", "large"]
)
@pytest.mark.parametrize(
    ("module", "limit"), [(clientsessions, "SAID_MAX"), (members, "MEMBERS_SIZE_MAX")]
)
@pytest.mark.parametrize("by_account", [True, False], ids=["account", "address"])
def test_the_clients_of_one_account_or_address_keep_nobody_out(
    monkeypatch: pytest.MonkeyPatch,
    module: ModuleType,
    limit: str,
    subscriptions: int,
    size: int,
    *,
    by_account: bool,
) -> None:
    """Law: the clients of one account or address cannot fill all room; other consumers can join."""
    monkeypatch.setattr(module, limit, size)
    shell = Shell().lead()
    create(shell, GroupSet("billing"))

    def join(number: int, who: int) -> int:
        host, account = (1, f"account-{who}") if by_account else (who, "")
        caller = Caller(number, f"192.0.2.{host}", 40_000, account)
        return shell.call(34, {}, large_heartbeat(f"c{number}", subscriptions), caller=caller).code

    greedy = [join(number, 1) for number in range(1, 400)]
    later = [join(number, number) for number in range(1_001, 1_004)]

    assert greedy[0] == 0
    assert greedy[-1] == ResponseCode.SYSTEM_BUSY
    assert later == [0, 0, 0]
