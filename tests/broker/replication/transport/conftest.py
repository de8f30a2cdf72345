"""Peers for a test, closed when it ends."""

from collections.abc import AsyncIterator

import pytest

from orderlymq_runtime.security.tls import PeerTls
from tests.broker.replication.transport.peers import MakePeer, Peer
from tests.ports import free_ports
from tests.waiting import turns


@pytest.fixture
async def make_peer() -> AsyncIterator[MakePeer]:
    made: list[Peer] = []

    async def make(
        node: int,
        port: int | None = None,
        *,
        recovering: bool = False,
        tls: PeerTls | None = None,
        sticks_ms: int = 0,
    ) -> Peer:
        port = port or free_ports(1)[0]
        peer = Peer(node, port, recovering=recovering, tls=tls, sticks_ms=sticks_ms)
        await peer.listen()
        made.append(peer)
        return peer

    yield make
    # asyncio's server does not close connections that it accepts in the turn in which it is closed.
    for peer in made:
        peer.transport.set_peers({})
    await turns()
    for peer in made:
        await peer.transport.close()
