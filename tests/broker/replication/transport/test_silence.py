"""Connections whose other side a proxy has lost, which only the replicas can notice."""

import asyncio

import pytest

from orderlymq_broker.replication.transport.frameheaders import ForwardedConnection, Purpose
from orderlymq_broker.replication.transport.frames import FrameKind, encode_frame
from orderlymq_broker.replication.transport.server import SILENT_TICKS_MAX
from orderlymq_broker.settings import Address
from orderlymq_raft.types import NodeId
from tests.broker.replication.transport.peers import PATIENCE_S, MakePeer, Peer, append, beat
from tests.faultyproxy import DOWN, UP, FaultyProxy, faulty_proxy


def arrives(sender: Peer, receiver: Peer, purpose: Purpose, number: int) -> bool:
    """Send something; return whether it, or an earlier message with this number, has arrived."""
    if purpose == "raft":
        sender.transport.send([beat(1, 2, number)])
        return any(getattr(each, "context", 0) == number for each in receiver.recorder.messages)
    if purpose == "log":
        if sender.transport._links[NodeId(2), purpose].is_up:
            sender.transport.send([append(number)])
        return append(number) in receiver.recorder.messages
    pieces = encode_frame(FrameKind.ORIGIN_CLOSED, ForwardedConnection(number))
    sender.transport.send_frame(NodeId(2), pieces)
    wanted = b"".join(pieces)
    return any(wanted.endswith(frame.header) for _, frame in receiver.recorder.frames)


async def until_arrived(one: Peer, two: Peer, purpose: Purpose, number: int) -> None:
    """Let both peers tick until a message of *one* reaches *two*."""
    async with asyncio.timeout(PATIENCE_S):
        while not arrives(one, two, purpose, number):
            for peer in (one, two):
                peer.transport.tick(0)
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("purpose", ["raft", "log", "clients"])
async def test_a_link_that_a_proxy_keeps_without_its_other_side_is_made_again(
    make_peer: MakePeer, purpose: Purpose
) -> None:
    """Law: a silent link is made again although neither end was closed, also if both directions are silent."""
    one, two = await make_peer(1), await make_peer(2)
    to_two, to_one = (faulty_proxy((each.address.host, each.address.port)) for each in (two, one))
    async with to_two as up, to_one as down:
        one.transport.set_peers({NodeId(2): _at(up)})
        two.transport.set_peers({NodeId(1): _at(down)})
        await until_arrived(one, two, purpose, 1)
        up.hold(UP)
        await until_arrived(one, two, purpose, 2)
        up.hold(UP, DOWN)
        down.hold(UP, DOWN)
        await until_arrived(one, two, purpose, 3)


async def test_links_that_are_heard_stay(make_peer: MakePeer) -> None:
    """Law: links that are heard stay; a peer that never calls costs no link."""
    one, two, three = await make_peer(1), await make_peer(2), await make_peer(3)
    one.call(two, three)
    two.call(one)
    for purpose in ("raft", "log", "clients"):
        await until_arrived(one, two, purpose, 1)
    await one.recorder.wait_for(lambda: one.transport.is_connected(NodeId(3)))
    one.recorder.events.clear()
    for _ in range(3 * SILENT_TICKS_MAX):
        for peer in (one, two, three):
            peer.transport.tick(0)
        await asyncio.sleep(0.01)

    assert one.recorder.events == two.recorder.of_clients == []


@pytest.mark.parametrize("purpose", ["log", "clients"])
async def test_link_stays_while_the_peers_word_about_it_waits_behind_its_bytes(
    make_peer: MakePeer, purpose: Purpose
) -> None:
    """Law: a slow link with much data does not make the peer give up the link of the other direction."""
    one, two = await make_peer(1), await make_peer(2)
    async with faulty_proxy((two.address.host, two.address.port)) as slow:
        one.transport.set_peers({NodeId(2): _at(slow)})
        two.call(one)
        for each in ("raft", "log", "clients"):
            await until_arrived(one, two, each, 1)
        two.recorder.events.clear()
        two.recorder.of_clients.clear()
        slow.piece, slow.delays_s[UP] = 1 << 15, 0.002
        fill(one, purpose, 12)
        shown = len(two.recorder.clocks)
        for _ in range(3 * SILENT_TICKS_MAX):
            for peer in (one, two):
                peer.transport.tick(0)
            await asyncio.sleep(0.05)

        assert two.recorder.events == two.recorder.of_clients == []
        del slow.delays_s[UP]
        await two.recorder.wait_for(lambda: len(two.recorder.clocks) > shown + SILENT_TICKS_MAX)


def fill(sender: Peer, purpose: Purpose, count: int) -> None:
    """Send so many MiB to node 2."""
    data = bytes(1 << 20)
    for _ in range(count):
        if purpose == "log":
            sender.transport.send([append(0, data)])
        else:
            header = ForwardedConnection(1)
            sender.transport.send_frame(
                NodeId(2), encode_frame(FrameKind.FORWARDED_SEND, header, [data])
            )


def _at(proxy: FaultyProxy) -> Address:
    return Address("127.0.0.1", proxy.port)
