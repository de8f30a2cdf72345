"""A link that calls one peer until it answers."""

import asyncio

from orderlymq_broker.replication.transport.frameheaders import Purpose
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import CONNECT_TIMEOUT_S, PeerLink
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.settings import Address
from orderlymq_raft.types import NodeId
from orderlymq_runtime.process.supervisor import Supervisor
from tests.broker.replication.transport.peers import KEY, MakePeer, Peer, Recorder
from tests.ports import free_ports


class Nobody:
    """A receiver that ignores everything."""

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None: ...

    def peer_wiped(self, node: NodeId) -> None: ...

    def peer_reached(self, node: NodeId) -> None: ...


async def test_a_call_into_a_hole_is_given_up_when_the_peer_calls() -> None:
    """Law: an unanswered call is given up when the peer calls itself, so that both directions are up within Java's 3 s."""
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


async def test_no_failure_ends_a_link_for_good() -> None:
    """Law: after any failure of a call the link calls again, and the failure is counted."""
    supervisor = Supervisor()
    failures = 3

    def is_recovering() -> bool:
        if supervisor.failures["peer link"] < failures:
            raise LookupError("what is asked while dialling does not exist yet")
        return False

    other, recorder = Peer(2, free_ports(1)[0]), Recorder()
    await other.listen()
    identity = Identity("C", "g", NodeId(1), Address("127.0.0.1", 1), KEY)
    transport = Transport(identity, recorder, is_recovering, supervisor=supervisor)
    transport.set_peers({NodeId(2): other.address})

    await recorder.wait_for(lambda: transport.is_connected(NodeId(2)))

    assert supervisor.failures == {"peer link": failures}
    await transport.close()
    await other.transport.close()


async def test_who_is_called_elsewhere_may_have_lost_what_was_sent(make_peer: MakePeer) -> None:
    """Law: if a replica is called at a new address, raft learns that messages to the former one may be lost."""
    one, before, after = await make_peer(1), await make_peer(2), await make_peer(2)
    one.call(before)
    await one.recorder.wait_for(lambda: all(link.is_up for link in one.transport._links.values()))
    assert one.recorder.events == []

    one.call(after)

    assert "unreachable 2" in one.recorder.events
