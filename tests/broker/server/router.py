"""The client routers of two replicas, joined by an in-memory link, and clients that record what they receive."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from orderlymq_broker.core.effects import Caller
from orderlymq_broker.replication.transport.frames import FrameKind, FrameReader
from orderlymq_broker.server.forwarder import Inbox, Outbox
from orderlymq_broker.server.leadership import Leadership
from orderlymq_broker.server.router import Router
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_raft import Role, RoleChange
from orderlymq_raft.types import NodeId, Term


@dataclass
class Client:
    """A client's connection, as a replica sees it."""

    id: int
    peer: tuple[str, int] = ("192.0.2.7", 40_000)
    local: tuple[str, int] | None = None
    listener: str = ""
    told: list[RemotingCommand] = field(default_factory=list)
    closed: str = ""

    @property
    def is_closing(self) -> bool:
        return bool(self.closed)

    def send(self, command: RemotingCommand) -> None:
        self.told.append(command)

    def close(self, *, orderly: bool = True, kind: str, reason: str = "") -> None:
        self.closed = "orderly" if orderly else "reset"


class RouterOf:
    """The client side of one replica; it answers each request with its own node id as remark.

    Attributes:
        holds: codes that are not answered immediately, as a long poll is not.
        refused: clients that may ask for nothing.
        sent: frames for other replicas, those that a link did not take included.
        executed: opaque numbers of what was handled, in its order.
        on_handle: called before each answer.
    """

    def __init__(self, world: "World", node: int, *, always_open: bool = False) -> None:
        self.world = world
        self.node = NodeId(node)
        self.certain = True
        self.elected = False
        self.asked = self.confirmed = self.sent = 0
        self.holds: set[int] = set()
        self.refused: set[int] = set()
        self.handled: list[tuple[int, Caller]] = []
        self.executed: list[int] = []
        self.on_handle: Callable[[], None] = lambda: None
        self.gone: list[int] = []
        self.outbox = Outbox(self._send, lambda: world.at_s)
        self.clients = Router(self.outbox, always_open=always_open)
        self.clients.service = self
        self.outbox.router = self.clients
        self.inbox = Inbox(self.clients, self._send, lambda node: node in world.slow)
        self.leadership = Leadership(
            self.clients,
            self.outbox,
            self.inbox,
            None,
            lambda: world.at_s,
            lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call),
        )

    # Service

    def handle(self, request: RemotingCommand, caller: Caller) -> None:
        self.handled.append((request.code, caller))
        self.executed.append(request.opaque)
        self.on_handle()
        if request.code not in self.holds and not request.is_oneway:
            self.clients.send(caller.connection, request.reply(remark=f"node {self.node}"))

    def refusal(self, request: RemotingCommand, caller: Caller) -> RemotingCommand | None:
        return request.reply(1, remark="no right") if caller.connection in self.refused else None

    def may_answer(self) -> bool:
        return self.leadership.serving and self.certain

    def request_confirmation(self) -> int:
        self.asked += 1
        return self.asked

    def is_confirmed(self, number: int) -> bool:
        return self.leadership.serving and number <= self.confirmed

    def connection_closed(self, connection: int) -> None:
        self.gone.append(connection)

    # Roles

    def elect(self, term: int) -> None:
        """Lead without serving yet: the first entry of the term is not committed."""
        self.elected = True
        self.leadership.role_changed(RoleChange(Role.LEADER, self.node, Term(term)), leads=True)

    def lead(self, term: int) -> None:
        self.elect(term)
        self.leadership.serving_began()

    def follow(self, leader: int | None, term: int) -> None:
        if self.leadership.serving:
            self.leadership.serving_ended()
        self.elected = False
        known = None if leader is None else NodeId(leader)
        self.leadership.role_changed(RoleChange(Role.FOLLOWER, known, Term(term)), leads=False)

    # The link

    def _send(self, node: NodeId, pieces: list[bytes]) -> bool:
        self.sent += 1
        other = self.world.routers.get(node)
        if other is None or node in self.world.cut:
            return False
        for frame in FrameReader().receive_data(b"".join(pieces)):
            if frame.kind in {FrameKind.FORWARD, FrameKind.ORIGIN_CLOSED}:
                other.inbox.frame_received(self.node, frame, leads=other.elected)
            else:
                other.outbox.frame_received(self.node, frame)
        return True


class World:
    """Replicas 1 and 2, and the time.

    Attributes:
        cut: replicas to which no link takes anything.
        slow: replicas for which much waits to be written.
    """

    def __init__(self, *, always_open: bool = False) -> None:
        self.at_s = 100.0
        self.cut: set[int] = set()
        self.slow: set[int] = set()
        self.routers: dict[int, RouterOf] = {}
        for node in (1, 2):
            self.routers[node] = RouterOf(self, node, always_open=always_open)

    def connect(self, node: int, number: int = 1) -> Client:
        client = Client(number)
        self.routers[node].clients.connection_made(client)
        return client

    def ask(self, node: int, client: Client, *commands: RemotingCommand) -> None:
        for command in commands:
            self.routers[node].clients.received(client, command)

    def pass_time(self, seconds: float) -> None:
        self.at_s += seconds
        for router in self.routers.values():
            router.leadership.tick()


def moved() -> World:
    """Return a world in which leadership has moved from 1 to 2."""
    world = World()
    world.routers[1].lead(1)
    return world


def move(world: World) -> None:
    """Move the leadership from 1 to 2."""
    world.routers[1].follow(None, 2)
    world.routers[2].lead(2)
    world.routers[1].follow(2, 2)


def ask(code: int, opaque: int, **ext: str) -> RemotingCommand:
    """Return a request as a client sends it."""
    return RemotingCommand(code, opaque=opaque, ext=ext)


def told(client: Client) -> list[tuple[int, int, str | None]]:
    """Return opaque, code and remark of all that a client received."""
    return [(each.opaque, each.code, each.remark) for each in client.told]
