"""Connections between replicas over real sockets: greeting, refusal, loss and return."""

import asyncio
import contextlib
import logging
import socket

import pytest

from orderlymq_broker.replication.transport import pendinghandshakes
from orderlymq_broker.replication.transport.frameheaders import ForwardedConnection, Purpose
from orderlymq_broker.replication.transport.frames import (
    FrameKind,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import Refused, dial
from orderlymq_broker.settings import Address
from orderlymq_raft.types import NodeId
from orderlymq_runtime.remoting.server import PortInUseError
from tests.broker.replication.transport.peers import KEY, PATIENCE_S, MakePeer, Peer, beat
from tests.ports import free_ports

END = encode_frame(FrameKind.ORIGIN_CLOSED, ForwardedConnection(7))


async def test_time_of_day_reaches_all_peers_that_are_there(make_peer: MakePeer) -> None:
    """Law: the clock is sent to all connected peers; one that is away is skipped."""
    one, two, three = await make_peer(1), await make_peer(2), await make_peer(3)
    away = Peer(4, free_ports(1)[0])
    one.call(two, three, away)
    await one.recorder.wait_for(
        lambda: all(one.transport.is_connected(NodeId(node)) for node in (2, 3))
    )
    one.transport.tick(1_700_000_000_000)

    await one.recorder.wait_for(lambda: bool(two.recorder.clocks and three.recorder.clocks))
    assert {*two.recorder.clocks, *three.recorder.clocks} == {(1, 1_700_000_000_000)}


async def test_what_is_sent_when_a_peer_is_reached_comes_before_raft(make_peer: MakePeer) -> None:
    """Law: what is sent when a peer is reached arrives before raft messages, so that it knows the clocks of its voters."""
    one, two = await make_peer(1), await make_peer(2)
    one.recorder.on_reached = lambda node: one.transport.show_clock(node, 7)
    one.call(two)
    while not two.recorder.messages:
        one.transport.send([beat(1, 2, 0)])
        await asyncio.sleep(0)

    assert two.recorder.messages_before_clock == 0


async def test_a_peer_learns_how_long_a_replica_sticks_before_it_reads_an_answer(
    make_peer: MakePeer,
) -> None:
    """Law: a peer learns a replica's stickiness before its first answer, because a lease rests on it."""
    one, two = await make_peer(1, sticks_ms=175), await make_peer(2)
    one.recorder.on_reached = lambda node: one.transport.show_clock(node, 7)
    one.call(two)
    while not two.recorder.messages:
        one.transport.send([beat(1, 2, 0)])
        await asyncio.sleep(0)

    assert two.recorder.messages_before_clock == 0
    assert two.recorder.stickiness == [(1, 175)]


async def test_peers_learn_what_state_a_replica_takes_in(make_peer: MakePeer) -> None:
    """Law: peers learn each second which snapshot a replica is installing, because one of them may lead when that ends."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await one.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))

    for index in (50, 0):
        one.transport.tick(7, index)
    await two.recorder.wait_for(lambda: len(two.recorder.taken_in) == 2)

    assert two.recorder.taken_in == [(1, 50), (1, 0)]


async def test_messages_arrive_in_order(make_peer: MakePeer) -> None:
    """Law: messages of one direction arrive in order."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    two.call(one)
    await one.recorder.wait_for(lambda: "greeted 2" in one.recorder.events)
    await two.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))

    sent = [beat(1, 2, number) for number in range(100)]
    for message in sent:
        one.transport.send([message])

    await two.recorder.wait_for(lambda: len(two.recorder.messages) == 100)
    assert two.recorder.messages == sent


async def test_a_frame_about_a_client_arrives(make_peer: MakePeer) -> None:
    """Law: frames about forwarded clients arrive on their own connection."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    two.call(one)

    await two.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), END))
    assert not one.transport.send_frame(NodeId(3), END)

    await two.recorder.wait_for(lambda: bool(two.recorder.frames))
    assert [(node, frame.kind) for node, frame in two.recorder.frames] == [
        (1, FrameKind.ORIGIN_CLOSED)
    ]


async def test_nothing_of_a_client_goes_where_no_answer_comes_from(make_peer: MakePeer) -> None:
    """Law: frames about clients go only to a peer that can call back, so that a client asks elsewhere instead of waiting."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    link = one.transport._links[NodeId(2), "clients"]
    await one.recorder.wait_for(lambda: link.is_up)
    assert not one.transport.send_frame(NodeId(2), END)

    two.call(one)
    await one.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), END))


async def test_a_heartbeat_waits_behind_no_message_of_a_client(make_peer: MakePeer) -> None:
    """Law: a heartbeat does not wait behind forwarded client messages, so that these cause no election."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    two.call(one)
    await two.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))
    pieces = encode_frame(FrameKind.FORWARDED_SEND, ForwardedConnection(7), [bytes(8 << 20)])
    await two.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), pieces))

    for _ in range(4):
        assert one.transport.send_frame(NodeId(2), pieces)
    assert one.transport.is_slow(NodeId(2))
    one.transport.send([beat(1, 2, 1)])
    await two.recorder.wait_for(lambda: bool(two.recorder.messages))
    arrived = len(two.recorder.frames)
    await two.recorder.wait_for(lambda: len(two.recorder.frames) == 5)

    assert arrived < 5
    assert not one.transport.is_slow(NodeId(2))


async def test_who_loses_the_connection_for_clients_loses_no_leader(make_peer: MakePeer) -> None:
    """Law: the loss of the clients' connection does not affect the raft connection; each loss is reported separately."""
    one = await make_peer(1)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    for_raft = await dial(caller, NodeId(1), one.address, "raft")
    for_clients = await dial(caller, NodeId(1), one.address, "clients")

    for_clients.abort()
    await one.recorder.wait_for(lambda: one.recorder.of_clients == ["lost 2"])

    assert (for_raft.is_open, one.recorder.events) == (True, ["greeted 2"])
    for_raft.close()


async def test_who_cannot_be_answered_loses_the_connection_on_which_it_asks(
    make_peer: MakePeer,
) -> None:
    """Law: if a peer cannot be answered, its clients' connection is closed, so that no client waits for a lost answer."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    for_raft = await dial(caller, NodeId(1), one.address, "raft")
    for_clients = await dial(caller, NodeId(1), one.address, "clients")
    await two.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), END))

    await two.transport.close()

    async with asyncio.timeout(PATIENCE_S):
        await for_clients.closed
    assert for_raft.is_open
    for_raft.close()


async def test_who_calls_again_for_clients_is_called_again(make_peer: MakePeer) -> None:
    """Law: when a peer calls again for clients, this replica calls again too, because its old connection may be dead."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    await dial(caller, NodeId(1), one.address, "clients")
    await two.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), END))

    again = await dial(caller, NodeId(1), one.address, "clients")

    await two.recorder.wait_for(lambda: "lost 1" in two.recorder.of_clients)
    await two.recorder.wait_for(lambda: one.transport.send_frame(NodeId(2), END))
    assert again.is_open
    again.close()


async def test_two_that_lose_a_connection_for_clients_begin_again_once(make_peer: MakePeer) -> None:
    """Law: two peers that lose a clients' connection restore it once; the new connections end nothing."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    two.call(one)

    def are_up() -> bool:
        ways = [(one, NodeId(2)), (two, NodeId(1))]
        return all(each.transport.send_frame(node, END) for each, node in ways)

    await one.recorder.wait_for(are_up)

    assert one.transport.send_frame(NodeId(2), encode_messages([beat(1, 2, 1)]))
    await two.recorder.wait_for(lambda: two.transport.violations == 1)
    recorders = [one.recorder, two.recorder]
    await one.recorder.wait_for(lambda: all(len(each.of_clients) == 2 for each in recorders))
    for each in recorders:
        each.frames.clear()
    await one.recorder.wait_for(are_up)
    await one.recorder.wait_for(lambda: all(each.frames for each in recorders))

    assert [len(each.of_clients) for each in recorders] == [2, 2]


async def test_a_silent_peer_is_asked_whether_it_is_there(make_peer: MakePeer) -> None:
    """Law: clients' connections use TCP keep-alive, because little is sent on them and a peer may lose power."""
    one = await make_peer(1)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    connection = await dial(caller, NodeId(1), one.address, "clients")

    assert connection._transport is not None
    asked = connection._transport.get_extra_info("socket")
    assert asked.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert asked.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
    connection.close()


@pytest.mark.parametrize("purpose", ["raft", "log", "clients"])
async def test_a_connection_takes_what_it_is_for_and_nothing_else(
    make_peer: MakePeer, purpose: Purpose
) -> None:
    """Law: a frame that does not belong on a connection's purpose ends it."""
    one = await make_peer(1)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    connection = await dial(caller, NodeId(1), one.address, purpose)

    connection.send(END if purpose == "raft" else encode_messages([beat(2, 1, 1)]))

    async with asyncio.timeout(PATIENCE_S):
        await connection.closed
    assert (one.recorder.messages, one.recorder.frames) == ([], [])
    assert one.transport.violations == 1


async def test_a_lost_peer_is_reported_and_found_again(make_peer: MakePeer) -> None:
    """Law: while a peer is away, messages are dropped and raft is told; then the link returns."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await two.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))

    await two.transport.close()
    await one.recorder.wait_for(lambda: "unreachable 2" in one.recorder.events)
    one.recorder.events.clear()
    one.transport.send([beat(1, 2, 1)])
    assert one.recorder.events == ["unreachable 2"]

    again = await make_peer(2, two.address.port)
    await again.recorder.wait_for(lambda: "greeted 1" in again.recorder.events)
    assert again.recorder.events == ["greeted 1"]


async def test_a_replica_that_has_lost_its_log_says_so(make_peer: MakePeer) -> None:
    """Law: the leader learns that a caller has lost its log before anything is exchanged.

    It must not count what that replica acknowledged earlier.
    """
    one, two = await make_peer(1), await make_peer(2, recovering=True)
    two.call(one)
    await one.recorder.wait_for(lambda: len(one.recorder.events) == 2)
    assert one.recorder.events == ["2 forgot", "greeted 2"]

    caller = await make_peer(3)
    caller.call(two)
    await caller.recorder.wait_for(lambda: caller.transport.is_connected(NodeId(2)))
    assert caller.recorder.events == ["2 forgot"]


@pytest.mark.parametrize(
    ("identity", "target", "reason"),
    [
        (Identity("C", "other", NodeId(2), Address("h", 1), KEY), 1, "it belongs to group other"),
        (Identity("D", "g", NodeId(2), Address("h", 1), KEY), 1, "of cluster D"),
        (Identity("C", "g", NodeId(2), Address("h", 1), KEY), 3, "it wants to reach node 3"),
        (
            Identity("C", "g", NodeId(1), Address("h", 1), KEY),
            1,
            "give each replica its own node_id",
        ),
    ],
)
async def test_a_wrong_peer_is_refused_with_the_reason(
    make_peer: MakePeer, identity: Identity, target: int, reason: str
) -> None:
    """Law: a caller with a wrong cluster, group or node is refused with the reason, so that no foreign log is fed."""
    one = await make_peer(1)

    with pytest.raises(Refused, match=reason):
        await dial(identity, NodeId(target), one.address, "raft")

    assert one.recorder.events == []


async def test_what_is_no_replica_is_disconnected(make_peer: MakePeer) -> None:
    """Law: a client of another protocol is disconnected and disturbs nobody."""
    one = await make_peer(1)
    reader, writer = await asyncio.open_connection(one.address.host, one.address.port)

    writer.write(b"GET / HTTP/1.1\r\n\r\n")

    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    assert one.recorder.events == []


async def test_a_stranger_who_says_nothing_is_disconnected_with_a_line(
    make_peer: MakePeer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law: a caller that does not greet is disconnected; the log names it and the close is counted."""
    monkeypatch.setattr(pendinghandshakes, "GREETING_TIMEOUT_S", 0.05)
    caplog.set_level(logging.INFO)
    one = await make_peer(1)
    reader, writer = await asyncio.open_connection(one.address.host, one.address.port)
    port = writer.get_extra_info("sockname")[1]

    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""

    writer.close()
    assert f"127.0.0.1:{port}: closed: it did not greet" in caplog.text
    assert one.transport.closes == 1


async def test_who_calls_twice_loses_the_first_connection_with_a_line(
    make_peer: MakePeer, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: if a peer calls again, its former connection is closed, with a log line."""
    caplog.set_level(logging.INFO)
    one = await make_peer(1)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    former = await dial(caller, NodeId(1), one.address, "raft")

    again = await dial(caller, NodeId(1), one.address, "raft")

    async with asyncio.timeout(PATIENCE_S):
        await former.closed
    again.close()
    assert "node 2 has called again" in caplog.text
    assert one.transport.closes == 1


async def test_who_speaks_in_the_name_of_another_is_disconnected(make_peer: MakePeer) -> None:
    """Law: a message whose sender is not the peer that greeted on the connection ends that connection."""
    one, two = await make_peer(1), await make_peer(2)
    two.call(one)
    await one.recorder.wait_for(lambda: two.transport.is_connected(NodeId(1)))

    two.transport.send([beat(2, 1, 1), beat(3, 1, 2)])
    await one.recorder.wait_for(lambda: one.transport.violations == 1)
    await one.recorder.wait_for(lambda: "lost 2" in one.recorder.events)

    assert one.recorder.messages == []


async def test_a_broken_rule_costs_the_connection_and_nothing_else(make_peer: MakePeer) -> None:
    """Law: a message that breaks raft's rules costs the peer its connection; it may call again."""
    one, two = await make_peer(1), await make_peer(2)
    one.recorder.violated = "two leaders"
    two.call(one)
    await one.recorder.wait_for(lambda: two.transport.is_connected(NodeId(1)))

    two.transport.send([beat(2, 1, 1)])
    await one.recorder.wait_for(lambda: one.transport.violations == 1)
    one.recorder.violated = ""
    await one.recorder.wait_for(lambda: one.recorder.events.count("greeted 2") == 2)
    # The caller's link is up when it has got the answer to its greeting.
    await one.recorder.wait_for(lambda: two.transport.is_connected(NodeId(1)))
    two.transport.send([beat(2, 1, 2)])
    await one.recorder.wait_for(lambda: bool(one.recorder.messages))

    assert one.recorder.events[:2] == ["greeted 2", "lost 2"]
    assert one.recorder.messages == [beat(2, 1, 2)]


@pytest.mark.parametrize(
    "frame",
    [
        encode_frame(FrameKind.WELCOME, [False, bytes(32)]),
        encode_frame(FrameKind.SNAPSHOT_DONE, None),
        encode_frame(FrameKind.RAFT, [[9, 2, 1, 1, None]]),
        encode_frame(FrameKind.RAFT, [[11, 2, True, 1]]),
    ],
)
async def test_what_follows_no_greeting_is_disconnected(
    make_peer: MakePeer, frame: list[bytes]
) -> None:
    """Law: a frame that may not follow the greeting ends the connection: another purpose, an unreceived snapshot,
    a wrong type.
    """
    one = await make_peer(1)
    caller = Identity("C", "g", NodeId(2), Address("127.0.0.1", 1), KEY)
    connection = await dial(caller, NodeId(1), one.address, "raft")

    connection.send(frame)
    await one.recorder.wait_for(lambda: one.transport.violations == 1)

    assert (one.recorder.messages, one.recorder.frames) == ([], [])


async def test_who_has_not_greeted_sends_no_large_frame(make_peer: MakePeer) -> None:
    """Law: before the greeting only small frames are read, so that a stranger cannot make this process hold 64 MiB."""
    one = await make_peer(1)
    reader, writer = await asyncio.open_connection(one.address.host, one.address.port)

    writer.write((1 << 20).to_bytes(4, "big") + bytes(8) + b"\x01")

    async with asyncio.timeout(PATIENCE_S):
        assert await reader.read() == b""
    writer.close()
    assert one.transport.violations == 1


async def test_a_port_in_use_is_named(make_peer: MakePeer) -> None:
    """Law: a port in use is reported with its number and how to find the process that has it."""
    one = await make_peer(1)
    other = Peer(2, one.address.port)

    with pytest.raises(PortInUseError, match=f"port {one.address.port} of 127.0.0.1 is in use"):
        await other.listen()
    await other.transport.close()


async def test_a_member_that_left_is_not_called_any_more(make_peer: MakePeer) -> None:
    """Law: links follow the membership; a member that left is not called."""
    one, two = await make_peer(1), await make_peer(2)
    one.call(two)
    await two.recorder.wait_for(lambda: one.transport.is_connected(NodeId(2)))

    one.call()

    await two.recorder.wait_for(lambda: "lost 1" in two.recorder.events)
    assert not one.transport.is_connected(NodeId(2))
