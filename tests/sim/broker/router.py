"""
The client side of one simulated broker process: the real router, forwarding and leadership, on events.

``app.py`` uses sockets; this module uses links. If the plan says so, only the leader binds the broker group's address
(one machine); otherwise every replica listens (Kubernetes). A paused process keeps the address, as the kernel does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from orderlymq_broker.replication.transport.frames import FrameKind, FrameReader
from orderlymq_broker.server.address import LeaderAddress
from orderlymq_broker.server.forwarder import ForwardedClient, Inbox, Outbox
from orderlymq_broker.server.leadership import SETTLE_S, Leadership
from orderlymq_broker.server.router import Admission, ClientConnection, Router
from orderlymq_raft import NotLeader, ProposalRefused
from orderlymq_raft.types import NodeId
from tests.sim.timeline import MS, SECOND

if TYPE_CHECKING:
    from tests.sim.broker.replica import Replica

BIND_RETRY_US: Final = 10 * MS
SETTLE_US: Final = int(SETTLE_S * SECOND)


class GroupAddress:
    """The broker group's address on one machine: at most one process holds it."""

    def __init__(self) -> None:
        self.holder: Replica | None = None


class _Binding:
    """The substitute for `LeaderAddress`, for one life of a process."""

    def __init__(self, address: GroupAddress, replica: "Replica") -> None:
        self._address = address
        self._replica = replica
        self._wanted = False

    def acquire(self) -> None:
        """Bind as soon as the address is free."""
        self._wanted = True
        self._try()

    def release(self) -> None:
        """Stop listening."""
        self._wanted = False
        if self._address.holder is self._replica:
            self._address.holder = None

    def _try(self) -> None:
        if not self._wanted or self._address.holder is self._replica:
            return
        if self._address.holder is None:
            self._address.holder = self._replica
            return
        self._replica.world.coverage["address held by another"] += 1
        self._replica.after(BIND_RETRY_US, "bind", self._try)


class _ObservedLeadership(Leadership):
    """The real class; it reports which clients it disconnects."""

    replica: "Replica"

    def disconnect(self, client: ClientConnection) -> None:
        stranger = self.replica.router.clients.came_to_follower(client)
        name = "client of a follower let go" if stranger else "client passed on let go"
        self.replica.world.coverage[name] += 1
        super().disconnect(client)


class RequestRouter:
    """The handling of clients in one life of a replica."""

    def __init__(self, replica: "Replica", address: GroupAddress | None) -> None:
        self._replica = replica
        self.outbox = Outbox(replica.send_frame, replica.seconds)
        self.clients = Router(self.outbox, always_open=address is None)
        self.clients.service = replica
        self.outbox.router = self.clients
        self.inbox = Inbox(self.clients, replica.send_frame, lambda node: False)
        binding = None if address is None else _Binding(address, replica)
        self.leadership = _ObservedLeadership(
            self.clients,
            self.outbox,
            self.inbox,
            cast("LeaderAddress | None", binding),
            replica.seconds,
            lambda delay_s, call: replica.after(int(delay_s * SECOND), "let go", call),
        )
        self.leadership.replica = replica
        self._had_waiting = False

    def tick(self) -> None:
        """Let the router do what is due; every 100 ms."""
        waiting = self.clients.waiting > 0
        if waiting and not self._had_waiting:
            self._replica.world.coverage["requests waited for a leader"] += 1
        self._had_waiting = waiting
        self.leadership.tick()

    def frame_received(self, node: NodeId, data: bytes, *, leads: bool) -> None:
        """Give a frame about a forwarded client to the inbox or the outbox."""
        coverage = self._replica.world.coverage
        for frame in FrameReader().receive_data(data):
            if frame.kind in {FrameKind.FORWARD, FrameKind.ORIGIN_CLOSED}:
                if frame.kind is FrameKind.FORWARD:
                    coverage["request forwarded"] += 1
                    coverage["forwarded to who leads no more"] += not leads
                self.inbox.frame_received(node, frame, leads=leads)
            else:
                if frame.kind is FrameKind.FORWARDED_SEND:
                    coverage["forwarded request answered"] += 1
                self.outbox.frame_received(node, frame)

    def peer_lost(self, node: NodeId) -> None:
        """Forget the clients that a peer forwarded here, and those that were forwarded to it."""
        self.inbox.node_lost(node)
        self.outbox.leader_lost(node)

    def close_all(self) -> None:
        """Reset all clients: a snapshot replaces the state that they asked about."""
        for client in self.clients.connections():
            client.close(kind="simulated", orderly=False)

    def move(self, settled: Callable[[], bool], transfer: Callable[[], None]) -> None:
        """Do with events what `Leadership.move` does with a task: hold requests, settle, transfer, wait."""
        self.clients.set_admission(Admission.HOLD)
        replica = self._replica
        started = replica.timeline.now

        def settle() -> None:
            if not settled() and replica.timeline.now - started < SETTLE_US:
                replica.after(MS, "settle", settle)
                return
            try:
                transfer()
            except (NotLeader, ProposalRefused):
                finish()
                return
            replica.after(int(replica.move_timeout_s * SECOND), "moved", finish)

        def finish() -> None:
            if self.leadership.serving:
                self.clients.set_admission(Admission.SERVE)

        settle()

    @property
    def local_clients(self) -> list[ClientConnection]:
        """Return the clients that are connected here."""
        return [
            client
            for client in self.clients.connections()
            if not isinstance(client, ForwardedClient)
        ]
