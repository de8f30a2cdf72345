"""
TCP between the replicas of one raft group: the called side, which admits only replicas.

Each replica keeps three outgoing connections to every peer (``links.py``): one for raft, one for the entries
of its log and one for forwarded client requests. So no heartbeat waits behind a message. The peer's messages
arrive on the peer's own connections. The rule: a connection counts only after both ends have proven that they
belong to the cluster (``handshake.py``) and agree on group, node ids and version. Before that nothing in a
greeting is acted on or kept, and the number of unproven callers is limited (``pendinghandshakes.py``).
Snapshots use separate connections (``snapshots.py``), so that a heartbeat never waits behind a file.
"""

import asyncio
import errno
import logging
import secrets
import ssl
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frameheaders import (
    NONCE_SIZE,
    PROCESS_SIZE,
    CallerProof,
    Challenge,
    Clock,
    Hello,
    Purpose,
    Welcome,
)
from orderlymq_broker.replication.transport.frames import (
    GREETING_SIZE_MAX,
    WIRE_VERSION,
    Frame,
    FrameCorrupt,
    FrameKind,
    decode_header,
    decode_messages,
    encode_frame,
)
from orderlymq_broker.replication.transport.handshake import (
    Identity,
    is_proof,
    new_nonce,
    proof,
    shown,
)
from orderlymq_broker.replication.transport.links import PeerLink
from orderlymq_broker.replication.transport.pendinghandshakes import (
    GREETING_TIMEOUT_S,
    UNPROVEN_MAX,
    UnprovenConnections,
)
from orderlymq_broker.settings import Address
from orderlymq_raft.messages import Append, Message, TimeoutNow
from orderlymq_raft.replication import PROBE_BYTES_MAX, size_of
from orderlymq_raft.types import NodeId
from orderlymq_runtime.process.supervisor import Supervisor
from orderlymq_runtime.remoting.closelog import CloseLog
from orderlymq_runtime.remoting.server import PortInUseError
from orderlymq_runtime.security.tls import PeerTls, SniffingListener
from orderlymq_runtime.sockets.listener import EVERY_ADDRESS, listening_socket

_log = logging.getLogger(__name__)

# Connections that the kernel queues for this process. If strangers fill the queue, a member calls again.
_BACKLOG: Final = 512
# The frames that may follow the greeting on a permanent connection.
_KINDS: Final[Mapping[Purpose, frozenset[FrameKind]]] = {
    "raft": frozenset({FrameKind.RAFT, FrameKind.CLOCK}),
    "log": frozenset({FrameKind.RAFT, FrameKind.CLOCK}),
    "clients": frozenset(
        {
            FrameKind.FORWARD,
            FrameKind.FORWARDED_SEND,
            FrameKind.FORWARDED_CLOSE,
            FrameKind.ORIGIN_CLOSED,
            FrameKind.CLOCK,
        }
    ),
}
# Messages that are sent on the log connection, in their order: empty appends ask about the entries before them,
# and the target of a transfer must have the entries. A former process of a peer that lost its log may have sent
# such messages, too; they still count.
_OF_THE_LOG: Final = (Append, TimeoutNow)
_Link: TypeAlias = tuple[NodeId, Purpose]
# A proxy or sidecar between replicas acknowledges everything even while it has lost its other side, so the kernel
# does not notice the loss.
SILENT_TICKS_MAX: Final = 3
# The network between the replicas may allow no further connection. Then the log is sent on the raft connection.
LOG_DOWN_TICKS_MAX: Final = 5


class Receiver(Protocol):
    """Handles everything that arrives; all calls come from the event loop and return immediately."""

    def messages_received(self, messages: list[Message]) -> None:
        """Handle raft messages of one peer, in the order in which they were sent; raises ProtocolViolation."""

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        """Handle a frame about forwarded client connections."""

    def clock_received(self, node: NodeId, wall_ms: int) -> None:
        """Note the time of day that a peer has just sent."""

    def stickiness_received(self, node: NodeId, sticks_ms: int) -> None:
        """Note for how long *node* sticks to a leader, 0 if it does not say; called before any message of its process."""

    def snapshot_shown(self, node: NodeId, index: int) -> None:
        """Note the last entry of the state that *node* receives or installs, 0 for none."""

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None:
        """Note that frames for *node* with *purpose* were dropped."""

    def peer_greeted(self, node: NodeId, address: Address) -> None:
        """Note that *node*, which may be unknown so far, is reached at *address*."""

    def peer_wiped(self, node: NodeId) -> None:
        """Note that *node* has lost its log; called before anything is sent to it or read from it."""

    def peer_reached(self, node: NodeId) -> None:
        """Note that raft messages reach *node* from now on; messages sent in this call come first."""

    def peer_lost(self, node: NodeId, purpose: Purpose) -> None:
        """Note that the connection from *node* for *purpose*, "raft" or "clients", is lost."""

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        """Take over a connection on which *node* offers a snapshot."""


class Transport:
    """All connections of one replica with its peers.

    Life cycle: `listen`, then `send` and the calls of *receiver*, then `close`. `set_peers` may be called at
    any time; links to removed peers are closed.

    *sticks_ms* is for how long this replica sticks to a leader that it hears; it is sent to peers.

    Attributes:
        violations: connections that were closed because a peer broke the rules.
        closes: connections that were closed for other reasons: refused, silent, or replaced by a newer one.
    """

    def __init__(
        self,
        identity: Identity,
        receiver: Receiver,
        is_recovering: Callable[[], bool] = lambda: False,
        tls: PeerTls | None = None,
        supervisor: Supervisor | None = None,
        sticks_ms: int = 0,
    ) -> None:
        self.violations = 0
        self.closes = 0
        self._close_log = CloseLog(_log)
        self._identity = identity
        self._process = secrets.token_bytes(PROCESS_SIZE)
        self._sticks_ms = sticks_ms
        self._supervisor = supervisor or Supervisor()
        self._tls = tls
        self._is_recovering = is_recovering
        self._receiver = receiver
        self._links: dict[_Link, PeerLink] = {}
        self._incoming: dict[_Link, FrameConnection] = {}
        self._accepted: set[FrameConnection] = set()
        self._unproven = UnprovenConnections(self._close)
        self._server: asyncio.Server | SniffingListener | None = None
        self._is_closed = False

    async def listen(self, address: Address) -> None:
        """Accept peers at *address*.

        Raises:
            PortInUseError: another process listens there.
            OSError: the address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None and address.host != EVERY_ADDRESS:
                self._server = await loop.create_server(
                    self._accept,
                    address.host,
                    address.port,
                    reuse_address=True,
                    backlog=_BACKLOG,
                )
                return
            sock = await listening_socket(address.host, address.port, backlog=_BACKLOG)
            if self._tls is None:
                self._server = await loop.create_server(self._accept, sock=sock, backlog=_BACKLOG)
            else:
                self._server = SniffingListener(
                    sock,
                    self._tls.server,
                    self._accept,
                    self._refused,
                    greetings_max=UNPROVEN_MAX,
                    silence_max_s=GREETING_TIMEOUT_S,
                )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUseError.of(address.host, address.port) from error

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Keep links to exactly *peers*, without this replica itself."""
        wanted = {
            (node, purpose): address
            for node, address in peers.items()
            if node != self._identity.node
            for purpose in _KINDS
        }
        for each in [each for each in self._links if each not in wanted]:
            self._links.pop(each).cancel()
        for (node, purpose), address in wanted.items():
            link = self._links.get((node, purpose))
            if link is not None and link.address == address:
                continue
            if link is not None:
                link.cancel()
                if purpose != "clients":
                    # Messages on their way there are lost, and a cancelled link does not report its end.
                    self._receiver.peer_unreachable(node, purpose)
            link = self._links[node, purpose] = PeerLink(
                self._identity,
                node,
                address,
                purpose,
                self._receiver,
                self._is_recovering,
                self._tls,
                self._supervisor,
            )
            if purpose == "log":
                link.stand_behind(self._links[node, "raft"])
            elif purpose == "clients":
                link.on_lost = self._answers_lost

    def _answers_lost(self, node: NodeId) -> None:
        """Close the connection whose requests are answered on a lost link, because its clients would wait in vain."""
        asking = self._incoming.get((node, "clients"))
        if asking is not None:
            self._close(
                asking, "unanswered", f"the connection with node {node} for answers is lost"
            )

    def context_for(self, node: NodeId) -> ssl.SSLContext | None:
        """Return the TLS context for calls to *node*, None for plain: the same as its link uses."""
        link = self._links.get((node, "raft"))
        return None if link is None else link.context()

    @property
    def strangers(self) -> int:
        """Return how many open connections have callers that have not proven their identity."""
        return len(self._unproven)

    def is_connected(self, node: NodeId) -> bool:
        """Return whether the raft link to *node* is up."""
        link = self._links.get((node, "raft"))
        return link is not None and link.is_up

    def send(self, messages: Sequence[Message]) -> None:
        """Send raft messages, each to its target; messages without a usable link are dropped."""
        purpose: Purpose
        by_way: dict[_Link, list[Message]] = {}
        for message in messages:
            purpose = "log" if isinstance(message, _OF_THE_LOG) else "raft"
            by_way.setdefault((message.target, purpose), []).append(message)
        for (node, purpose), batch in by_way.items():
            link = self._links.get((node, purpose))
            if link is None:
                continue
            if purpose == "raft" or link.is_up:
                link.send_messages(batch)
            elif some := self._without_log(node, batch):
                self._links[node, "raft"].send_messages(some)

    def _without_log(self, node: NodeId, messages: list[Message]) -> list[Message]:
        """Return those log messages that may use the raft connection meanwhile: no more than heartbeats can wait for.

        All of them may if the peer has an earlier version, or if the log connection has been down for
        seconds.
        """
        raft, log = self._links[node, "raft"], self._links[node, "log"]
        if not raft.process or log.down_ticks > LOG_DOWN_TICKS_MAX:
            return messages
        room = 0 if raft.backlog_bytes > PROBE_BYTES_MAX else PROBE_BYTES_MAX
        kept = [
            each
            for each in messages
            if not (isinstance(each, Append) and size_of(each.entries) > room)
        ]
        if len(kept) < len(messages):
            self._receiver.peer_unreachable(node, "log")
        return kept

    def tick(self, wall_ms: int, takes_in: int = 0) -> None:
        """Send peers the time of day and the state in transfer, and redial links that a peer does not hear; call it each second.

        Ticks are counted, not seconds: a process that was paused first reads what has arrived meanwhile.
        """
        for way, link in self._links.items():
            link.down_ticks = 0 if link.is_up else link.down_ticks + 1
            incoming = self._incoming.get(way)
            if incoming is not None:
                incoming.silent_ticks += 1
            if not self._show_clock(way, wall_ms, takes_in) or incoming is None:
                continue  # a peer without an incoming connection cannot say what it hears
            # While bytes arrive, the peer's report about the link may wait behind others, so nothing is known.
            link.unheard_ticks += incoming.silent_ticks > 1
            if link.unheard_ticks > SILENT_TICKS_MAX:
                _log.warning(
                    "node %d receives nothing over the link for %s, which is made again", *way
                )
                link.renew()

    def show_clock(self, node: NodeId, wall_ms: int, takes_in: int = 0) -> None:
        """Send one peer the time of day and the state in transfer."""
        self._show_clock((node, "raft"), wall_ms, takes_in)

    def _show_clock(self, way: _Link, wall_ms: int, takes_in: int) -> bool:
        incoming = self._incoming.get(way)
        hears = incoming is not None and incoming.silent_ticks <= SILENT_TICKS_MAX
        clock = Clock(wall_ms, hears, self._sticks_ms, takes_in)
        return self._links[way].send_pieces(encode_frame(FrameKind.CLOCK, clock))

    def send_frame(self, node: NodeId, pieces: Sequence[bytes]) -> bool:
        """Send a frame about a forwarded connection; False unless both links are up, because answers come on the peer's link."""
        way = node, "clients"
        return way in self._incoming and way in self._links and self._links[way].send_pieces(pieces)

    def is_slow(self, node: NodeId) -> bool:
        """Return whether many bytes about forwarded connections wait for *node* to read."""
        link = self._links.get((node, "clients"))
        return link is not None and link.is_slow

    async def close(self) -> None:
        """Stop listening and close every connection."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.cancel()
        self._unproven.close()
        for connection in list(self._accepted):
            connection.abort()
        await asyncio.gather(*(link.finished() for link in links))
        if self._server is not None and not isinstance(self._server, SniffingListener):
            await self._server.wait_closed()

    def _accept(self) -> FrameConnection:
        return FrameConnection(
            self._greet,
            self._accepted_closed,
            self._accepted_opened,
            self._violated,
            GREETING_SIZE_MAX,
        )

    def _violated(self, connection: FrameConnection, error: Exception) -> None:
        self.violations += 1
        self._close_log.note(_name(connection), "violation", str(error), logging.WARNING)

    def _accepted_opened(self, connection: FrameConnection) -> None:
        if self._is_closed:
            connection.abort()  # it was accepted one turn before `close`
            return
        self._accepted.add(connection)
        self._unproven.add(connection)

    def _close(self, connection: FrameConnection, kind: str, reason: str) -> None:
        self.closes += 1
        self._close_log.note(_name(connection), kind, reason)
        connection.abort()

    def _refused(self, reason: str) -> None:
        self.closes += 1
        self._close_log.note("a replica that called", "tls", reason, logging.WARNING)

    def _accepted_closed(self, connection: FrameConnection) -> None:
        self._accepted.discard(connection)
        self._unproven.discard(connection)

    def _greet(self, connection: FrameConnection, frame: Frame) -> None:
        if frame.kind is not FrameKind.HELLO:
            raise FrameCorrupt(f"the first frame is {frame.kind.name}, not a greeting")
        hello = decode_header(frame, Hello)
        reason = self._objection(hello) or self._identity.certificate_objection(
            NodeId(hello.sender), connection.certificate_names()
        )
        if reason is not None:
            self._refuse(connection, reason)
            return
        nonce = new_nonce()

        def on_frame(_: FrameConnection, answer: Frame) -> None:
            self._check_proof(connection, answer, hello, nonce)

        connection.on_frame = on_frame
        connection.send(encode_frame(FrameKind.CHALLENGE, Challenge(nonce)))

    def _refuse(self, connection: FrameConnection, reason: str) -> None:
        self.closes += 1
        self._close_log.note(_name(connection), "refused", reason, logging.ERROR)
        connection.send(encode_frame(FrameKind.REFUSED, reason))
        connection.close()

    def _check_proof(
        self, connection: FrameConnection, frame: Frame, hello: Hello, nonce: bytes
    ) -> None:
        """Act on a greeting once its sender has proven that it belongs to this cluster."""
        if frame.kind is not FrameKind.PROOF:
            raise FrameCorrupt(f"{frame.kind.name} arrived, but a proof of identity was expected")
        given = decode_header(frame, CallerProof).proof
        key = self._identity.key
        if not is_proof(given, proof(key, "caller", hello, nonce, is_recovering=False)):
            self._refuse(
                connection,
                f"it says it is node {hello.sender}, but does not know the secret of this "
                "cluster; give all replicas the same cluster_secret_file",
            )
            return
        is_recovering = self._is_recovering()
        own = proof(key, "called", hello, nonce, is_recovering=is_recovering)
        connection.send(encode_frame(FrameKind.WELCOME, Welcome(is_recovering, own, self._process)))
        self._unproven.discard(connection)
        connection.take_large_frames()
        node = NodeId(hello.sender)
        if hello.purpose == "snapshot":
            self._receiver.snapshot_caller(node, connection)
            return
        self._welcome(node, hello, connection)

    def _welcome(self, node: NodeId, hello: Hello, connection: FrameConnection) -> None:
        purpose = hello.purpose
        former = self._incoming.get((node, purpose))
        self._incoming[node, purpose] = connection

        def on_frame(_: FrameConnection, frame: Frame) -> None:
            self._receive(node, purpose, frame)

        def on_closed(closed: FrameConnection) -> None:
            self._accepted_closed(closed)
            if self._incoming.get((node, purpose)) is closed:
                del self._incoming[node, purpose]
                self._lost(node, purpose)

        connection.on_frame = on_frame
        connection.on_closed = on_closed
        if former is not None:
            # The peer restarted or redialled before the kernel noticed the loss.
            self._close(former, "replaced", f"node {node} has called again")
            self._lost(node, purpose)
        if purpose == "raft":
            if hello.is_recovering:
                self._receiver.peer_wiped(node)
            self._receiver.peer_greeted(node, Address(hello.host, hello.port))
        link = self._links.get((node, purpose))
        if link is not None and former is not None and purpose == "clients":
            # Our link may be dead since the peer lost power.
            link.renew()
        elif link is not None:
            link.retry_now()

    def _lost(self, node: NodeId, purpose: Purpose) -> None:
        if purpose != "log":
            self._receiver.peer_lost(node, purpose)
        elif (node, "raft") not in self._incoming:
            # Appends that still waited here counted as signs of life after the raft connection had ended.
            self._receiver.peer_lost(node, "raft")

    def _receive(self, node: NodeId, purpose: Purpose, frame: Frame) -> None:
        if frame.kind not in _KINDS[purpose]:
            raise FrameCorrupt(
                f"a frame of kind {frame.kind.name} is not allowed on a connection for {purpose}"
            )
        if frame.kind is FrameKind.RAFT:
            messages = decode_messages(frame)
            if purpose == "log" and not all(isinstance(each, _OF_THE_LOG) for each in messages):
                raise FrameCorrupt(
                    "a raft message that does not belong on the connection for the log"
                )
            if any(message.sender != node for message in messages):
                raise FrameCorrupt(f"node {node} sends a message in the name of another node")
            self._receiver.messages_received(messages)
        elif frame.kind is FrameKind.CLOCK:
            clock = decode_header(frame, Clock)
            link = self._links.get((node, purpose))
            if link is not None:
                link.unheard_ticks = 0 if clock.hears else link.unheard_ticks + 1
            if purpose != "log":  # on that connection the clock waits behind entries
                self._receiver.clock_received(node, clock.wall_ms)
            if purpose == "raft":
                self._receiver.stickiness_received(node, clock.sticks_ms)
                self._receiver.snapshot_shown(node, clock.takes_in)
        else:
            self._receiver.frame_received(node, frame)

    def _objection(self, hello: Hello) -> str | None:
        mine = self._identity
        if hello.version != WIRE_VERSION:
            return (
                f"it speaks version {hello.version} of the replication protocol, this is version "
                f"{WIRE_VERSION}; run the same release on all replicas"
            )
        if (hello.cluster, hello.group) != (mine.cluster, mine.group):
            return (
                f"it belongs to group {shown(hello.group)} of cluster {shown(hello.cluster)}, this is "
                f"group {mine.group} of cluster {mine.cluster}; correct 'peers' in its settings"
            )
        if hello.target != mine.node:
            return (
                f"it wants to reach node {hello.target} of group {mine.group}, but this is node "
                f"{mine.node}; correct 'peers' in its settings"
            )
        if hello.sender == mine.node:
            return f"it says that it is node {mine.node}, too; give each replica its own node_id"
        if len(hello.nonce) != NONCE_SIZE:
            return f"its nonce has {len(hello.nonce)} bytes, not {NONCE_SIZE}; it is not a replica"
        return None


def _name(connection: FrameConnection) -> str:
    return "the replica that connected from {}:{}".format(*connection.peer)
