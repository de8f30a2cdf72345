"""Two ends of connections between replicas: transports over real sockets, and a record of what arrives."""

import asyncio
from collections.abc import Awaitable, Callable

from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frameheaders import Purpose
from orderlymq_broker.replication.transport.frames import Frame
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.settings import Address
from orderlymq_raft import Append, Heartbeat, Message, ProtocolViolation
from orderlymq_raft.types import Entry, Index, NodeId, Term
from orderlymq_runtime.security.tls import PeerTls

# Longer than a busy machine pauses; a passing test waits milliseconds.
PATIENCE_S = 30.0
KEY = bytes(32)


class Recorder:
    """Records what a transport receives."""

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.frames: list[tuple[int, Frame]] = []
        self.events: list[str] = []
        self.of_clients: list[str] = []
        self.violated = ""
        self.clocks: list[tuple[int, int]] = []
        self.stickiness: list[tuple[int, int]] = []
        self.taken_in: list[tuple[int, int]] = []
        self.messages_before_clock: int | None = None
        self.on_reached: Callable[[NodeId], None] = lambda node: None

    def messages_received(self, messages: list[Message]) -> None:
        if self.violated:
            raise ProtocolViolation(self.violated)
        self.messages += messages

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        self.frames.append((node, frame))

    def clock_received(self, node: NodeId, wall_ms: int) -> None:
        self.clocks.append((node, wall_ms))
        self.messages_before_clock = len(self.messages)

    def stickiness_received(self, node: NodeId, sticks_ms: int) -> None:
        self.stickiness.append((node, sticks_ms))

    def snapshot_shown(self, node: NodeId, index: int) -> None:
        self.taken_in.append((node, index))

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None:
        self._note(f"unreachable {node}", purpose)

    def peer_greeted(self, node: NodeId, address: Address) -> None:
        self._note(f"greeted {node}")

    def peer_wiped(self, node: NodeId) -> None:
        self._note(f"{node} forgot")

    def peer_reached(self, node: NodeId) -> None:
        self.on_reached(node)

    def peer_lost(self, node: NodeId, purpose: Purpose) -> None:
        self._note(f"lost {node}", purpose)

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        self._note(f"snapshot from {node}")

    def _note(self, event: str, purpose: Purpose = "raft") -> None:
        (self.of_clients if purpose == "clients" else self.events).append(event)

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            # Some conditions hold at the sending end, which reports nothing.
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.001)


class Peer:
    def __init__(
        self,
        node: int,
        port: int,
        *,
        recovering: bool = False,
        group: str = "g",
        tls: PeerTls | None = None,
        sticks_ms: int = 0,
    ) -> None:
        self.address = Address("127.0.0.1", port)
        self.identity = Identity("C", group, NodeId(node), self.address, KEY)
        self.recorder = Recorder()
        self.transport = Transport(
            self.identity, self.recorder, lambda: recovering, tls, sticks_ms=sticks_ms
        )

    async def listen(self) -> None:
        await self.transport.listen(self.address)

    def call(self, *others: "Peer") -> None:
        self.transport.set_peers({peer.identity.node: peer.address for peer in others})


MakePeer = Callable[..., Awaitable[Peer]]


def beat(sender: int, target: int, context: int) -> Heartbeat:
    return Heartbeat(NodeId(sender), NodeId(target), Term(1), Index(0), context)


def append(index: int, data: bytes = b"") -> Append:
    """Return an append of node 1 for node 2 behind entry *index*; without *data* it is empty."""
    entries = (Entry(Term(1), Index(index + 1), data),) if data else ()
    return Append(NodeId(1), NodeId(2), Term(1), Index(index), Term(1), Index(0), entries)
