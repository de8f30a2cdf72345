"""Requests to a former leader are answered by the present one, or end with the connection."""

import struct
import tracemalloc
from collections.abc import Callable

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    FRAME_SIZE_MAX,
    HEADER_SIZE_MAX,
    FrameDecoder,
)
from orderlymq_protocol.frame.command import FLAG_ONEWAY, RemotingCommand
from orderlymq_raft import Role
from orderlymq_raft.types import NodeId
from tests.broker.replication.simulation import SimulatedGroup
from tests.broker.server.router import Client, World, ask, move, moved, told

SEND = RequestCode.SEND_MESSAGE_V2
PULL = RequestCode.PULL_MESSAGE


def test_a_client_of_the_former_leader_is_served_by_the_next() -> None:
    """Law: a former leader's client is served by the next leader, which sees the client's own host and port."""
    world = moved()
    client = world.connect(1)
    world.ask(1, client, ask(SEND, 1))
    move(world)
    world.ask(1, client, ask(SEND, 2))

    assert told(client) == [(1, 0, "node 1"), (2, 0, "node 2")]
    ((code, peer),) = world.routers[2].handled
    assert (code, peer.host, peer.port, peer.connection < 0) == (SEND, *client.peer, True)


def test_what_reaches_a_leader_before_it_serves_waits_for_that() -> None:
    """Law: requests to a leader that does not serve yet wait for it, so that a planned move fails none."""
    world = World(always_open=True)
    world.routers[1].lead(1)
    client = world.connect(1)
    world.routers[1].follow(None, 2)
    world.routers[2].elect(2)
    world.routers[1].follow(2, 2)

    world.ask(1, client, ask(SEND, 1), ask(RequestCode.LOCK_BATCH_MQ, 2))
    early = told(client)
    world.routers[2].leadership.serving_began()

    assert early == []
    assert told(client) == [(1, 0, "node 2"), (2, 0, "node 2")]


def test_a_leader_that_never_served_leaves_no_client_waiting() -> None:
    """Law: if a leader ends before it served, connections with waiting requests are reset immediately."""
    world = World(always_open=True)
    client = world.connect(1)
    world.routers[1].follow(2, 2)
    world.routers[2].elect(2)
    world.ask(1, client, ask(SEND, 1))

    world.routers[2].follow(None, 3)

    assert (client.closed, client.told) == ("reset", [])
    assert world.routers[2].clients.waiting == 0


def test_the_leader_knows_by_which_listener_a_forwarded_client_came() -> None:
    """Law: a forwarded client keeps its listener, on which its rights and the addresses that it gets depend."""
    world = moved()
    move(world)
    client = Client(1, listener="outside")
    world.routers[1].clients.connection_made(client)
    world.ask(1, client, ask(SEND, 1))

    ((_, peer),) = world.routers[2].handled
    assert peer.listener == "outside"


def test_what_arrives_between_two_leaders_waits_for_the_second() -> None:
    """Law: requests that arrive while no leader is known wait for the next one."""
    world = moved()
    client = world.connect(1)
    world.routers[1].follow(None, 2)
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))
    assert told(client) == []

    world.routers[2].lead(2)
    world.routers[1].follow(2, 2)

    assert told(client) == [(1, 0, "node 2"), (2, 0, "node 2")]


def test_notices_of_the_next_leader_reach_the_client() -> None:
    """Law: the next leader's own requests (such as 40) reach the client on the same way."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    connection = world.routers[2].clients.connections()[0]

    notice = RemotingCommand(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 9, FLAG_ONEWAY)
    world.routers[2].clients.send(connection.id, notice)

    assert client.told[-1].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED


def test_the_end_of_a_client_is_reported_to_the_leader() -> None:
    """Law: the leader learns of the end of a forwarded client, because it has its locks and held pulls."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    number = world.routers[2].clients.connections()[0].id

    world.routers[1].clients.connection_lost(client)

    assert world.routers[2].gone == [number]
    assert world.routers[2].clients.connections() == []


def test_the_end_of_a_client_is_reported_when_a_full_link_takes_it() -> None:
    """Law: if the link is full, the end of a client is reported as soon as it has room;
    else the leader would take it for alive.
    """
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    number = world.routers[2].clients.connections()[0].id
    world.cut.add(2)
    world.routers[1].clients.connection_lost(client)
    world.pass_time(0.1)
    assert world.routers[2].gone == []

    world.cut.clear()
    world.pass_time(0.1)
    world.pass_time(0.1)

    assert world.routers[2].gone == [number]


def test_a_node_that_is_lost_is_notified_of_no_client() -> None:
    """Law: nothing is reported to a lost node, which has ended all forwarded clients itself."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    world.cut.add(2)
    world.routers[1].clients.connection_lost(client)

    world.routers[1].outbox.node_lost(NodeId(2))
    world.pass_time(0.1)
    sent = world.routers[1].sent
    world.pass_time(0.1)

    assert world.routers[1].sent == sent


def test_of_a_node_that_is_lost_nothing_is_kept() -> None:
    """Law: clients that end after their node was lost leave nothing to be sent to it."""
    world = moved()
    idle, asking = world.connect(1, 1), world.connect(1, 2)
    move(world)
    world.ask(1, idle, ask(SEND, 1))
    world.routers[2].holds = {SEND}
    world.ask(1, asking, ask(SEND, 2))
    world.cut.add(2)
    router = world.routers[1]

    router.outbox.node_lost(NodeId(2))
    for client in (idle, asking):
        router.clients.connection_lost(client)
    sent = router.sent
    world.pass_time(0.1)

    assert (idle.closed, asking.closed) == ("", "reset")
    assert (router.sent, router.outbox._passed) == (sent, {})


def test_a_client_that_a_former_leader_has_ended_is_served_when_that_leads_again() -> None:
    """Law: a replica that dropped a client's requests learns that the client goes on elsewhere,
    so that it serves it when it leads again.
    """
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    world.routers[1].follow(3, 3)
    world.routers[1].outbox._passed[client.id].leader = NodeId(3)
    world.cut.add(2)
    world.routers[2].follow(3, 3)
    world.cut.clear()

    world.pass_time(0.1)
    world.routers[2].lead(4)
    world.routers[1].follow(2, 4)
    world.ask(1, client, ask(SEND, 2))

    assert told(client) == [(1, 0, "node 2"), (2, 0, "node 2")]


def test_requests_of_unknown_fate_end_with_the_connection() -> None:
    """Law: if the leader is lost, connections with unanswered requests are reset, because their outcome is unknown."""
    world = moved()
    asking, idle = world.connect(1, 1), world.connect(1, 2)
    world.routers[2].holds = {SEND}
    move(world)
    world.ask(1, asking, ask(SEND, 1))

    world.routers[1].outbox.leader_lost(NodeId(2))

    assert (asking.closed, idle.closed) == ("reset", "")


def test_a_replica_that_does_not_lead_sends_the_client_away() -> None:
    """Law: a client forwarded to a replica that does not lead is reset, so that it asks again."""
    world = moved()
    client = world.connect(1)
    world.routers[1].follow(2, 2)

    world.ask(1, client, ask(SEND, 1))

    assert client.closed == "reset"


def test_while_the_leader_cannot_be_reached_requests_wait() -> None:
    """Law: while the link to the leader is being restored, requests wait."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.cut.add(2)
    world.ask(1, client, ask(SEND, 1))
    assert told(client) == []

    world.cut.clear()
    world.pass_time(0.1)

    assert told(client) == [(1, 0, "node 2")]


def test_of_clients_that_no_link_has_taken_nothing_is_kept() -> None:
    """Law: clients that never reached the leader leave nothing behind when they end."""
    world = moved()
    before = world.connect(1, 1)
    world.routers[1].follow(2, 2)
    world.cut.add(2)
    for number in range(2, 100):
        client = world.connect(1, number)
        world.ask(1, client, ask(SEND, 1))
        world.routers[1].clients.connection_lost(client)
    world.ask(1, before, ask(SEND, 1))
    world.routers[1].clients.connection_lost(before)

    outbox = world.routers[1].outbox
    assert (outbox._unnotified, outbox._passed) == (set(), {})


def test_a_client_that_the_next_leader_never_heard_of_is_none_of_its_own() -> None:
    """Law: a former leader gets the end of a client that the next leader never heard of."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.ask(1, client, ask(SEND, 1))
    (connection,) = world.routers[2].clients.connections()
    world.routers[1].follow(3, 3)
    world.ask(1, client, ask(SEND, 2))

    world.routers[1].clients.connection_lost(client)

    assert world.routers[2].gone == [connection.id]
    assert world.routers[1].outbox._unnotified == set()


def test_of_a_pull_that_was_passed_on_nothing_long_is_kept() -> None:
    """Law: a follower keeps little of a forwarded pull, however large the pull was."""
    world = moved()
    client = world.connect(1)
    move(world)
    world.routers[2].holds = {PULL}
    world.ask(1, client, ask(PULL, 0))

    tracemalloc.start()
    for number in range(1, 101):
        pull = ask(PULL, number, queueOffset="4" * 50_000, subscription="x" * 50_000)
        world.ask(1, client, pull)
        del pull
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert kept < 1 << 20


def just_readable() -> RemotingCommand:
    """Return the body of the largest frame whose header leaves fields out; encoded again it is larger."""
    header = b'{"code":10}'
    body = bytes(FRAME_SIZE_MAX - 8 - len(header))
    frame = struct.pack(">II", FRAME_SIZE_MAX - 4, len(header)) + header + body
    (command,) = FrameDecoder().receive_data(frame)
    return command


def just_readable_header() -> RemotingCommand:
    """Return the largest header that leaves fields out."""
    begin, end = b'{"code":10,"extFields":{"a":"', b'"}}'
    header = begin.ljust(HEADER_SIZE_MAX - len(end), b"x") + end
    frame = struct.pack(">II", 4 + len(header), len(header)) + header
    (command,) = FrameDecoder().receive_data(frame)
    return command


@pytest.mark.parametrize("largest", [just_readable, just_readable_header])
def test_a_request_that_cannot_be_passed_on_ends_its_own_connection_alone(
    largest: Callable[[], RemotingCommand],
) -> None:
    """Law: a request that is too large to forward ends its own connection only."""
    world = moved()
    bad, good = world.connect(1, 1), world.connect(1, 2)
    world.routers[1].follow(None, 2)
    world.ask(1, bad, largest())
    world.ask(1, good, ask(SEND, 1))
    world.routers[2].lead(2)

    world.routers[1].follow(2, 2)

    assert (bad.closed, bad.told) == ("reset", [])
    assert (good.closed, told(good)) == ("", [(1, 0, "node 2")])


def test_a_request_that_cannot_be_passed_on_does_not_end_the_replica() -> None:
    """Law: a request that cannot be forwarded when the leader changes does not end the replica."""
    world, group = World(), SimulatedGroup()
    router = world.routers[1]
    former = group.elect()
    former.on_role = lambda change: router.leadership.role_changed(
        change, leads=change.role is Role.LEADER
    )
    client = world.connect(1)
    world.ask(1, client, just_readable())

    group.cut.add(former.id)
    group.pass_time(2.0)
    group.cut.clear()
    group.pass_time(2.0)

    assert router.outbox.leader not in (None, former.id)
    assert client.closed == "reset"
    group.check()


def test_an_answer_that_the_link_does_not_take_ends_the_connection() -> None:
    """Law: if the link has no room for an answer, the client's connection is reset as soon as it has room."""
    world = moved()
    client = world.connect(1)
    world.routers[2].holds = {SEND}
    move(world)
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))
    connection = world.routers[2].clients.connections()[0]

    world.cut.add(1)
    connection.send(ask(SEND, 1).reply())
    world.pass_time(0.1)
    assert (client.told, client.closed) == ([], "")
    world.cut.clear()
    world.pass_time(0.1)

    assert (client.told, client.closed) == ([], "reset")


def test_an_answer_that_cannot_be_written_is_replaced_also_at_the_leader() -> None:
    """Law: an answer that cannot be encoded is replaced by an error, for forwarded clients too."""
    world = moved()
    client = world.connect(1)
    world.routers[2].holds = {SEND}
    move(world)
    world.ask(1, client, ask(SEND, 1))

    connection = world.routers[2].clients.connections()[0]
    connection.send(ask(SEND, 1).reply(body=bytes(FRAME_SIZE_MAX)))

    ((opaque, code, remark),) = told(client)
    assert (opaque, code) == (1, ResponseCode.SYSTEM_ERROR)
    assert "cannot be sent" in (remark or "")


def test_the_longest_answer_passes_from_replica_to_replica() -> None:
    """Law: the longest answer that is allowed can be forwarded; else its client would repeat the request for ever."""
    world = moved()
    client = world.connect(1)
    world.routers[2].holds = {SEND}
    move(world)
    world.ask(1, client, ask(SEND, 1))
    ids = {"msgId": "0" * (ANSWER_HEADER_SIZE_MAX - 1_000)}

    world.routers[2].clients.connections()[0].send(ask(SEND, 1).reply(ext=ids))

    assert (client.closed, [each.ext for each in client.told]) == ("", [ids])


def test_nothing_of_a_client_overtakes_what_was_dropped_of_it() -> None:
    """Law: after a forwarded request was dropped, no later request of that client is served, however late it learns of it."""
    world = moved()
    move(world)
    leader = world.routers[2]
    client = world.connect(1)
    leader.certain = False
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))
    world.cut.add(1)
    world.pass_time(0.1)
    world.pass_time(2.0)
    assert leader.clients.waiting == 0

    leader.certain = True
    world.ask(1, client, ask(SEND, 3))
    world.cut.clear()
    world.pass_time(0.1)
    world.ask(1, client, ask(SEND, 4))

    assert (leader.executed, client.closed, client.told) == ([], "reset", [])
    world.routers[1].clients.connection_lost(client)
    assert (leader.clients.connections(), leader.inbox._clients, leader.inbox._ended) == (
        [],
        {},
        set(),
    )


def test_a_client_that_was_forgotten_at_its_end_is_no_new_one() -> None:
    """Law: this also holds if the leader lost and regained its leadership meanwhile."""
    world = moved()
    move(world)
    leader = world.routers[2]
    client, other = world.connect(1, 1), world.connect(1, 2)
    leader.certain = False
    world.ask(1, client, ask(SEND, 1))
    world.cut.add(1)
    leader.follow(None, 3)
    leader.lead(4)

    leader.certain = True
    world.ask(1, client, ask(SEND, 2))
    world.ask(1, other, ask(SEND, 3))

    assert leader.executed == [3]
    world.cut.clear()
    world.pass_time(0.1)
    assert client.closed == "reset"


def test_the_end_of_a_client_is_kept_until_its_replica_confirms_it() -> None:
    """Law: the end of a client is remembered until its replica confirms it, and then forgotten."""
    world = moved()
    move(world)
    leader = world.routers[2]
    gone, elsewhere = world.connect(1, 1), world.connect(1, 2)
    world.ask(1, gone, ask(SEND, 1))
    world.ask(1, elsewhere, ask(SEND, 2))
    for connection in leader.clients.connections():
        leader.inbox._ended.add((NodeId(1), connection.origin))  # type: ignore[attr-defined]
    passed = world.routers[1].outbox._passed
    passed[elsewhere.id].leader = NodeId(3)
    world.routers[1].clients.connection_lost(gone)
    assert leader.inbox._ended == {(NodeId(1), elsewhere.id)}

    leader.inbox._end(NodeId(1), elsewhere.id)

    assert (elsewhere.closed, leader.inbox._ended) == ("", set())


def test_what_waits_of_a_client_ends_with_its_first_dropped_request() -> None:
    """Law: if one request ends the client, requests waiting behind it are not served."""
    world = World()
    router = world.routers[1]
    router.lead(1)
    router.certain = False
    client = world.connect(1)
    world.ask(1, client, ask(SEND, 1), ask(SEND, 2))
    closing = client.close
    router.on_handle = lambda: closing(orderly=False, kind="not_served")

    router.certain = True
    world.pass_time(0.1)

    assert router.executed == [1]
