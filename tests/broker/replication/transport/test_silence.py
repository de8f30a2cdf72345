"""Connections whose other side a proxy has lost: nobody but the replicas notices it."""

import asyncio

import pytest

from orderlymq_broker.settings import Address
from orderlymq_raft import Heartbeat, HeartbeatResponse, Message
from tests.broker.replication.transport.peers import PATIENCE_S, MakePeer, Peer, beat
from tests.faultyproxy import UP, faulty_proxy


@pytest.mark.parametrize("caller", [1, 2])
async def test_connections_that_a_proxy_keeps_without_their_other_side_are_made_again(
    make_peer: MakePeer, caller: int
) -> None:
    """Law: a leader whose questions are not answered comes through to its peer again, whichever connection is dead."""
    peers = {node: await make_peer(node) for node in (1, 2)}
    one, two = peers.values()
    one.transport.silence_max_s = two.transport.silence_max_s = 0.2
    target = peers[3 - caller]

    async with faulty_proxy((target.address.host, target.address.port)) as proxy:
        detour = Address("127.0.0.1", proxy.port)
        for peer, other in ((one, two), (two, one)):
            address = detour if other is target else other.address
            peer.transport.set_peers({other.identity.node: address})

        async def until_answered(context: int) -> None:
            async with asyncio.timeout(PATIENCE_S):
                while not any(each.context == context for each in answers(one)):
                    one.transport.send([beat(1, 2, context)])
                    asked, two.recorder.messages = two.recorder.messages, []
                    two.transport.send([answer(each) for each in asked])
                    await asyncio.sleep(0.01)

        await until_answered(1)
        proxy.hold(UP)
        await until_answered(2)


def answer(asked: Message) -> HeartbeatResponse:
    assert isinstance(asked, Heartbeat)
    return HeartbeatResponse(asked.target, asked.sender, asked.term, asked.context)


def answers(peer: Peer) -> list[HeartbeatResponse]:
    return [each for each in peer.recorder.messages if isinstance(each, HeartbeatResponse)]
