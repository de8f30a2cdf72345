"""
Messages between the replicas of a group, as one process receives and sends them.

The rules: raft messages go to and from the loop. Frames of clients that a peer has forwarded go to the two ends of
forwarding (``forwarder.py``). The address of a peer is stored as soon as the peer names it. While a snapshot replaces
the store, there is no loop to receive messages, so they are dropped.
"""

import logging
from collections.abc import Sequence
from typing import Final

from orderlymq_broker.replication.groupclock import GroupClock
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.replication.snapshots import SnapshotReceiver, SnapshotSender
from orderlymq_broker.replication.transport.addresses import AddressBook
from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frameheaders import Purpose
from orderlymq_broker.replication.transport.frames import Frame, FrameKind
from orderlymq_broker.replication.transport.server import Transport
from orderlymq_broker.server.forwarder import Inbox, Outbox
from orderlymq_broker.settings import Address, BrokerSettings
from orderlymq_broker.store.kv import Batch
from orderlymq_raft import InstallSnapshot, Message
from orderlymq_raft.types import NodeId

_log = logging.getLogger(__name__)

# The same limit as for the leader that sent the state (orderlymq_raft/node.py); a slow disk opens a large one within it.
INSTALL_MAX_S: Final = 60.0
# Within this time the leader hears from a replica that has installed a state, and keeps the entries that it lacks.
HEARD_S: Final = 5.0
# Peers report every second which state they receive; one that was silent for this long may have ended.
SAID_S: Final = 3.0


class Peers:
    """The other replicas, for the transport (Receiver) and for the loop (Outbound).

    Life cycle: made, `connect`, then `watch` for each instance.

    Attributes:
        book: the addresses of the replicas.
        is_swapping: whether a snapshot replaces the store of the instance.
    """

    def __init__(
        self, settings: BrokerSettings, clock: GroupClock, inbox: Inbox, outbox: Outbox
    ) -> None:
        self.is_swapping = False
        self._clock = clock
        self._settings = settings
        self._node_id = NodeId(settings.node_id)
        self.book = AddressBook(settings.peers, {})
        self._inbox = inbox
        self._outbox = outbox
        # The last index of the state that each other replica receives, and until when later entries are kept.
        self._taken_in: dict[NodeId, tuple[int, float]] = {}
        # Until when each is expected to be receiving it.
        self._busy_until: dict[NodeId, float] = {}

    def connect(self, transport: Transport, receiver: SnapshotReceiver) -> None:
        """Send with *transport*, and let *receiver* receive snapshots."""
        self._transport = transport
        self._receiver = receiver

    def watch(self, instance: Instance, sender: SnapshotSender) -> None:
        """Work for *instance* from now on, and connect to its members."""
        self._instance = instance
        self._sender = sender
        self._receiver.takes_in = 0
        learned = self.book.learned
        self.book = AddressBook.load(instance.store, self._settings.peers)
        for node, address in learned.items():
            # A peer whose link is up does not send its address again.
            self.book.learn(node, address)
        self.call()

    def call(self) -> None:
        """Keep links to all replicas that must be answered."""
        node = self._instance.node
        memberships = node.memberships
        membership = memberships[-1]
        self._transport.set_peers(self.book.reachable(memberships, self._node_id, node.leader))
        self._clock.keep(membership.members - {self._node_id}, membership.voters)

    def tick(self) -> None:
        """Maintain the links with the peers and send them this machine's time of day; called every second.

        This is needed because no event tells that the leader has changed, or that an entry which changed the
        membership is lost.
        """
        self.call()
        self._transport.tick(self._clock.own_ms(), self._receiver.takes_in)

    def learn(self, node: NodeId, address: Address) -> bool:
        """Store the address of *node*; return whether it is new."""
        if not self.book.learn(node, address):
            return False
        if not self.is_swapping:
            batch = Batch()
            self.book.put(batch)
            self._instance.store.stage(batch)
        return True

    # -- what the transport brings (Receiver) ----------------------------------------------------

    def messages_received(self, messages: list[Message]) -> None:
        """Pass raft messages to the loop; raises ProtocolViolation."""
        if not self.is_swapping:
            self._instance.loop.receive(messages)

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        """Pass frames of forwarded clients to the inbox or the outbox."""
        if frame.kind in {FrameKind.FORWARD, FrameKind.ORIGIN_CLOSED}:
            leads = not self.is_swapping and self._instance.node.is_leader
            self._inbox.frame_received(node, frame, leads=leads)
        elif frame.kind in {FrameKind.FORWARDED_SEND, FrameKind.FORWARDED_CLOSE}:
            self._outbox.frame_received(node, frame)

    def clock_received(self, node: NodeId, wall_ms: int) -> None:
        """Compare a peer's time of day with this machine's."""
        self._clock.shown(node, wall_ms)

    def stickiness_received(self, node: NodeId, sticks_ms: int) -> None:
        """Note for how long a peer sticks to its leader, so that the lease may count on it."""
        if not self.is_swapping:
            self._instance.loop.note_stickiness(node, sticks_ms)

    def snapshot_shown(self, node: NodeId, index: int) -> None:
        """Keep the log after a state that *node* receives, because the next leader must have it."""
        now = self._clock.seconds()
        self._busy_until[node] = now + SAID_S if index else now
        if index:
            self._taken_in[node] = index, now + INSTALL_MAX_S
        elif node in self._taken_in:
            former, until = self._taken_in[node]
            self._taken_in[node] = former, min(until, now + HEARD_S)

    @property
    def index_needed(self) -> int | None:
        """The lowest last index of a state that is being sent or received, or None; later entries must be kept."""
        members, now = self._instance.node.memberships[-1].members, self._clock.seconds()
        needed = [
            index
            for node, (index, until) in self._taken_in.items()
            if node in members and now < until
        ]
        if self._sender.index_needed is not None:
            needed.append(self._sender.index_needed)
        return min(needed, default=None)

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None:
        """Let raft resend dropped messages, or close the clients whose requests were dropped."""
        if purpose == "clients":
            self._outbox.node_lost(node)
        elif not self.is_swapping:
            self._instance.loop.unreachable(node)

    def peer_wiped(self, node: NodeId) -> None:
        """Start over with a peer that has lost its log."""
        if not self.is_swapping:
            self._instance.loop.report_wiped(node)

    def peer_reached(self, node: NodeId) -> None:
        """Send a peer the time of day, and for how long this replica sticks to its leader, before any vote or answer."""
        self._transport.show_clock(node, self._clock.own_ms(), self._receiver.takes_in)

    def peer_greeted(self, node: NodeId, address: Address) -> None:
        """Store the address of a peer."""
        if self.learn(node, address):
            self.call()

    def peer_lost(self, node: NodeId, purpose: Purpose) -> None:
        """Remove the clients that a peer had forwarded, and those that we had forwarded to it."""
        if purpose == "clients":
            self._inbox.node_lost(node)
            self._outbox.node_lost(node)
        elif not self.is_swapping:
            self._instance.loop.peer_lost(node)

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        """Receive a snapshot, or close the connection if it cannot be received now."""
        core = self._instance.node
        # If the disk is slow, a received state waits to be installed; the next one would overwrite it.
        is_installing = self.is_swapping or core.is_restoring
        if is_installing or not core.hears(node):
            reason = "another one is being installed" if is_installing else "it is not a member"
            _log.info("closing a snapshot of node %d: %s", node, reason)
            connection.close()
        else:
            self._receiver.accept(node, connection)

    # -- what the loop sends (Outbound) ----------------------------------------------------------

    def send(self, messages: Sequence[Message]) -> None:
        """Send raft messages."""
        self._transport.send(messages)

    def send_snapshot(self, message: InstallSnapshot) -> None:
        """Send the present state to a replica that needs entries which the log no longer has."""
        address = self.book.get(message.target)
        is_busy = self._clock.seconds() < self._busy_until.get(message.target, 0.0)
        if address is None or is_busy:
            # A transfer begun by a former leader is valid in any term, and another offer would end it. Raft asks again.
            self.snapshot_sent(message.target, ok=False)
        else:
            self._sender.send(message, address)

    def snapshot_sent(self, node: NodeId, ok: bool) -> None:
        """Report to the loop how the transfer of a snapshot to *node* ended."""
        if not self.is_swapping:
            self._instance.loop.snapshot_sent(node, ok=ok)
