"""A link that calls one peer until it answers."""

import asyncio

from orderlymq_broker.replication.transport.frameheaders import Purpose
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import CONNECT_TIMEOUT_S, PeerLink
from orderlymq_broker.settings import Address
from orderlymq_raft.types import NodeId
from orderlymq_runtime.process.supervisor import Supervisor


class Nobody:
    """Hears nothing."""

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None: ...

    def peer_wiped(self, node: NodeId) -> None: ...


async def test_a_call_into_a_hole_is_given_up_when_the_peer_calls() -> None:
    """Law: both ways stand soon after one does: what clients ask meanwhile is answered before Java's 3 s are over."""
    calls: asyncio.Queue[asyncio.StreamWriter] = asyncio.Queue()

    async def swallow(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        calls.put_nowait(writer)

    hole = await asyncio.start_server(swallow, "127.0.0.1", 0)
    address = Address(*hole.sockets[0].getsockname())
    identity = Identity("C", "g", NodeId(1), Address("127.0.0.1", 1), bytes(32))
    link = PeerLink(
        identity, NodeId(2), address, "clients", Nobody(), lambda: False, None, Supervisor()
    )
    first = await calls.get()

    link.retry_now()
    async with asyncio.timeout(CONNECT_TIMEOUT_S - 0.5):
        second = await calls.get()

    link.cancel()
    await link.finished()
    for writer in (first, second):
        writer.close()
    hole.close()
