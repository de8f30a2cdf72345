"""
TCP between the replicas of one group.

Each replica keeps one outgoing connection to every peer and writes everything for that peer to
it; what the peer says comes in on the peer's own. The rule: a connection counts only after both
ends have greeted each other and agree on cluster, group, node ids and version, so that a wrong
address never feeds a foreign log, and each knows whether the other has lost its own. Nothing here
is queued for a peer that is away: raft sends again, and a backlog would only delay what is new.
Snapshots come on connections of their own (``snapshots.py``), so that a heartbeat never waits
behind a file.
"""

import asyncio
import contextlib
import errno
import logging
import socket
import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from orderlymq_broker.replication.connection import FrameConnection
from orderlymq_broker.replication.frameheaders import Hello
from orderlymq_broker.replication.frames import (
    GREETING_SIZE_MAX,
    WIRE_VERSION,
    Frame,
    FrameCorrupt,
    FrameKind,
    decode_header,
    decode_messages,
    encode_frame,
    encode_messages,
)
from orderlymq_broker.settings import Address
from orderlymq_raft.messages import Append, Message
from orderlymq_raft.types import NodeId
from orderlymq_runtime.closelog import CloseLog
from orderlymq_runtime.dial import connect
from orderlymq_runtime.server import PortInUseError
from orderlymq_runtime.supervisor import Supervisor
from orderlymq_runtime.tls import PeerTls, SniffingListener

_log = logging.getLogger(__name__)

# A peer on a LAN that restarts is found again within its first heartbeats; one that stays away
# costs one attempt a second.
RECONNECT_FIRST_S: Final = 0.02
RECONNECT_MAX_S: Final = 1.0
# TCP, TLS and the greeting take a round trip each: 2.4 s where a round trip takes 800 ms.
CONNECT_TIMEOUT_S: Final = 4.0
GREETING_TIMEOUT_S: Final = 4.0

# 64 appends of 1 MiB may be in flight; more than that waiting in one socket is a peer that does
# not read, and what it lacks is sent again when it does.
BACKLOG_MAX: Final = 64 << 20

# What is said on a connection for raft messages beside them.
_FORWARDING: Final = frozenset(
    {
        FrameKind.FORWARD,
        FrameKind.FORWARDED_SEND,
        FrameKind.FORWARDED_CLOSE,
        FrameKind.ORIGIN_CLOSED,
    }
)


@dataclass(frozen=True, slots=True)
class Identity:
    """Who this replica is to its peers; *address* is where they reach it."""

    cluster: str
    group: str
    node: NodeId
    address: Address


class Receiver(Protocol):
    """Takes what arrives; all calls come from the event loop and return immediately."""

    def messages_received(self, messages: list[Message]) -> None:
        """Handle raft messages of one peer, in the order they were sent; raises ProtocolViolation."""

    def frame_received(self, node: NodeId, frame: Frame) -> None:
        """Handle a frame about forwarded client connections."""

    def peer_unreachable(self, node: NodeId) -> None:
        """Note that messages to *node* were dropped."""

    def peer_greeted(self, node: NodeId, address: Address) -> None:
        """Note that *node*, maybe unknown so far, is called at *address*."""

    def peer_wiped(self, node: NodeId) -> None:
        """Note that *node* lacks what it once had; called before anything is sent to it or read."""

    def peer_lost(self, node: NodeId) -> None:
        """Note that the connection on which *node* spoke to us is gone."""

    def snapshot_caller(self, node: NodeId, connection: FrameConnection) -> None:
        """Take over a connection on which *node* offers a snapshot."""


class Refused(Exception):  # noqa: N818 - named for what the caller must know
    """The peer does not want this connection; the text is the peer's reason."""


async def dial(
    identity: Identity,
    target: NodeId,
    address: Address,
    purpose: Literal["raft", "snapshot"],
    *,
    is_recovering: bool = False,
    tls: ssl.SSLContext | None = None,
) -> FrameConnection:
    """Connect to a peer and greet it.

    Raises:
        OSError: nobody listens, or no answer in time; ssl.SSLError is one.
        Refused: somebody listens who belongs to another cluster, group or version.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Frame] = loop.create_future()

    def on_frame(_: FrameConnection, frame: Frame) -> None:
        if not answer.done():
            answer.set_result(frame)

    def on_closed(_: FrameConnection) -> None:
        if not answer.done():
            answer.set_exception(ConnectionResetError("closed instead of greeting"))

    hello = Hello(
        WIRE_VERSION,
        identity.cluster,
        identity.group,
        identity.node,
        target,
        purpose,
        identity.address.host,
        identity.address.port,
        is_recovering,
    )
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        connection = await connect(
            lambda: FrameConnection(on_frame, on_closed), address.host, address.port, tls
        )
        try:
            connection.send(encode_frame(FrameKind.HELLO, hello))
            frame = await answer
        except BaseException:
            connection.abort()
            raise
    if frame.kind is not FrameKind.WELCOME:
        connection.abort()
        reason = frame.header[1:].decode(errors="replace")
        raise Refused(reason if frame.kind is FrameKind.REFUSED else "no greeting was answered")
    connection.peer_is_recovering = decode_header(frame, object) is True
    return connection


class Transport:
    """All connections of one replica with its peers.

    Life cycle: `listen`, then `send` and the calls of *receiver*, then `close`. `set_peers` may be
    called at any time; links to those who left are closed.

    Attributes:
        violations: connections that were closed because of what a peer said on them.
        closes: connections that were closed without that: refused, silent, or followed by another one.
    """

    def __init__(
        self,
        identity: Identity,
        receiver: Receiver,
        is_recovering: Callable[[], bool] = lambda: False,
        tls: PeerTls | None = None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self.violations = 0
        self.closes = 0
        self._close_log = CloseLog(_log)
        self._identity = identity
        self._supervisor = supervisor or Supervisor()
        self._tls = tls
        self._is_recovering = is_recovering
        self._receiver = receiver
        self._links: dict[NodeId, PeerLink] = {}
        self._incoming: dict[NodeId, FrameConnection] = {}
        self._accepted: set[FrameConnection] = set()
        self._server: asyncio.Server | SniffingListener | None = None

    async def listen(self, address: Address) -> None:
        """Accept peers at *address*.

        Raises:
            PortInUseError: another process listens there.
            OSError: it cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            if self._tls is None:
                self._server = await loop.create_server(
                    self._accept, address.host, address.port, reuse_address=True
                )
            else:
                sock = socket.create_server((address.host, address.port), reuse_port=False)
                sock.setblocking(False)
                self._server = SniffingListener(sock, self._tls.server, self._accept, self._refused)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise PortInUseError.of(address.host, address.port) from error

    def set_peers(self, peers: Mapping[NodeId, Address]) -> None:
        """Keep links to exactly *peers*, this replica left out."""
        for node in [node for node in self._links if node not in peers]:
            self._links.pop(node).cancel()
        for node, address in peers.items():
            if node == self._identity.node:
                continue
            link = self._links.get(node)
            if link is not None and link.address == address:
                continue
            if link is not None:
                link.cancel()
            self._links[node] = PeerLink(
                self._identity,
                node,
                address,
                self._receiver,
                self._is_recovering,
                self._tls,
                self._supervisor,
            )

    def context_for(self, node: NodeId) -> ssl.SSLContext | None:
        """Return what *node* is called with, None for plain: the way its link goes."""
        link = self._links.get(node)
        return None if link is None else link.context()

    def is_connected(self, node: NodeId) -> bool:
        """Tell whether the link to *node* is up."""
        link = self._links.get(node)
        return link is not None and link.is_up

    def send(self, messages: Sequence[Message]) -> None:
        """Send raft messages, each to its target; those that cannot go are dropped."""
        by_target: dict[NodeId, list[Message]] = {}
        for message in messages:
            by_target.setdefault(message.target, []).append(message)
        for target, batch in by_target.items():
            link = self._links.get(target)
            if link is not None:
                link.send_messages(batch)

    def send_frame(self, node: NodeId, pieces: Sequence[bytes]) -> bool:
        """Send a frame about a forwarded connection; return whether the link is up."""
        link = self._links.get(node)
        return link is not None and link.send_pieces(pieces)

    async def close(self) -> None:
        """Stop listening and close every connection."""
        if self._server is not None:
            self._server.close()
        links = list(self._links.values())
        self._links.clear()
        for link in links:
            link.cancel()
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
        self._accepted.add(connection)
        loop = asyncio.get_running_loop()
        loop.call_later(GREETING_TIMEOUT_S, self._give_up_on_silence, connection)

    def _give_up_on_silence(self, connection: FrameConnection) -> None:
        if connection.is_open and connection.on_frame == self._greet:
            reason = f"it did not greet within {GREETING_TIMEOUT_S:g} s"
            self._close(connection, "silent", reason)

    def _close(self, connection: FrameConnection, kind: str, reason: str) -> None:
        self.closes += 1
        self._close_log.note(_name(connection), kind, reason)
        connection.abort()

    def _refused(self, reason: str) -> None:
        self._close_log.note("a replica that called", "tls", reason, logging.WARNING)

    def _accepted_closed(self, connection: FrameConnection) -> None:
        self._accepted.discard(connection)

    def _greet(self, connection: FrameConnection, frame: Frame) -> None:
        if frame.kind is not FrameKind.HELLO:
            raise FrameCorrupt(f"the first frame is {frame.kind.name}, not a greeting")
        hello = decode_header(frame, Hello)
        reason = self._objection(hello)
        if reason is not None:
            self.closes += 1
            self._close_log.note(_name(connection), "refused", reason, logging.ERROR)
            connection.send(encode_frame(FrameKind.REFUSED, reason))
            connection.close()
            return
        connection.send(encode_frame(FrameKind.WELCOME, self._is_recovering()))
        connection.take_large_frames()
        node = NodeId(hello.sender)
        if hello.purpose == "snapshot":
            self._receiver.snapshot_caller(node, connection)
            return
        self._welcome(node, hello, connection)

    def _welcome(self, node: NodeId, hello: Hello, connection: FrameConnection) -> None:
        former = self._incoming.get(node)
        self._incoming[node] = connection

        def on_frame(_: FrameConnection, frame: Frame) -> None:
            if frame.kind is FrameKind.RAFT:
                messages = decode_messages(frame)
                if any(message.sender != node for message in messages):
                    raise FrameCorrupt(f"node {node} speaks in the name of another one")
                self._receiver.messages_received(messages)
            elif frame.kind in _FORWARDING:
                self._receiver.frame_received(node, frame)
            else:
                raise FrameCorrupt(f"{frame.kind.name} is none of what follows a greeting")

        def on_closed(closed: FrameConnection) -> None:
            self._accepted_closed(closed)
            if self._incoming.get(node) is closed:
                del self._incoming[node]
                self._receiver.peer_lost(node)

        connection.on_frame = on_frame
        connection.on_closed = on_closed
        if former is not None:
            # The peer restarted or redialled faster than the kernel noticed the loss.
            self._close(former, "replaced", f"node {node} has called again")
            self._receiver.peer_lost(node)
        if hello.is_recovering:
            self._receiver.peer_wiped(node)
        self._receiver.peer_greeted(node, Address(hello.host, hello.port))
        link = self._links.get(node)
        if link is not None:
            link.retry_now()

    def _objection(self, hello: Hello) -> str | None:
        mine = self._identity
        if hello.version != WIRE_VERSION:
            return (
                f"it speaks version {hello.version} of the replication protocol, this is version "
                f"{WIRE_VERSION}; run the same release on all replicas"
            )
        if (hello.cluster, hello.group) != (mine.cluster, mine.group):
            return (
                f"it belongs to group {hello.group} of cluster {hello.cluster}, this is group "
                f"{mine.group} of cluster {mine.cluster}; correct 'peers' in its settings"
            )
        if hello.target != mine.node:
            return (
                f"it looks for node {hello.target} of group {mine.group}, this is node "
                f"{mine.node}; correct 'peers' in its settings"
            )
        if hello.sender == mine.node:
            return f"it also calls itself node {mine.node}; give each replica a node_id of its own"
        return None


def _name(connection: FrameConnection) -> str:
    return "the replica that called from {}:{}".format(*connection.peer)


class PeerLink:
    """The outgoing connection to one peer, made again whenever it is lost."""

    def __init__(
        self,
        identity: Identity,
        node: NodeId,
        address: Address,
        receiver: Receiver,
        is_recovering: Callable[[], bool],
        tls: PeerTls | None,
        supervisor: Supervisor,
    ) -> None:
        self.address = address
        self._tls = tls
        self._plain = False
        self._identity = identity
        self._node = node
        self._receiver = receiver
        self._is_recovering = is_recovering
        self._connection: FrameConnection | None = None
        self._wake = asyncio.Event()
        self._task = supervisor.keep("peer link", self._run, name=f"link to node {node}")

    @property
    def is_up(self) -> bool:
        """Tell whether the peer can be written to."""
        return self._connection is not None and self._connection.is_open

    def context(self) -> ssl.SSLContext | None:
        """Return what the peer is called with, None for plain."""
        return None if self._tls is None or self._plain else self._tls.context()

    def send_messages(self, messages: list[Message]) -> None:
        """Send raft messages, or drop them and say so."""
        connection = self._connection
        if connection is None or not connection.is_open:
            self._receiver.peer_unreachable(self._node)
            return
        if connection.backlog_bytes > BACKLOG_MAX:
            # Small messages still go: without heartbeats a slow follower would start an election.
            kept: list[Message] = [each for each in messages if not isinstance(each, Append)]
            if len(kept) < len(messages):
                self._receiver.peer_unreachable(self._node)
            messages = kept
        if messages:
            connection.send(encode_messages(messages))

    def send_pieces(self, pieces: Sequence[bytes]) -> bool:
        """Send one frame; return whether the link is up."""
        connection = self._connection
        if connection is None or not connection.is_open or connection.backlog_bytes > BACKLOG_MAX:
            return False
        connection.send(pieces)
        return True

    def retry_now(self) -> None:
        """Dial immediately: the peer has just called, so it listens."""
        self._wake.set()

    def cancel(self) -> None:
        """Stop dialling and close."""
        self._task.cancel()
        if self._connection is not None:
            self._connection.close()

    async def finished(self) -> None:
        """Wait until the task of a cancelled link has ended."""
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def _run(self) -> None:
        delay_s = RECONNECT_FIRST_S
        complaint = ""
        while True:
            try:
                connection = await dial(
                    self._identity,
                    self._node,
                    self.address,
                    "raft",
                    is_recovering=self._is_recovering(),
                    tls=self.context(),
                )
            except Refused as refused:
                delay_s = RECONNECT_MAX_S
                if str(refused) != complaint:
                    complaint = str(refused)
                    _log.error("node %d at %s refuses us: %s", self._node, self.address, refused)
            except OSError as error:
                delay_s = min(2 * delay_s, RECONNECT_MAX_S)
                if isinstance(error, ssl.SSLError) and str(error) != complaint:
                    complaint = str(error)
                    _log.error("TLS with node %d at %s fails: %s", self._node, self.address, error)
                self._try_other_way(error)
            else:
                complaint = ""
                held_s = await self._hold(connection)
                # One that is closed at once is refused in another way: no reason to hurry.
                short = held_s < RECONNECT_MAX_S
                delay_s = min(2 * delay_s, RECONNECT_MAX_S) if short else RECONNECT_FIRST_S
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay_s):
                    await self._wake.wait()

    def _try_other_way(self, error: OSError) -> None:
        """Call with or without TLS next: where both are permitted, the peer may know one only."""
        if self._tls is None or self._tls.is_enforced:
            return
        answered = isinstance(error, ssl.SSLError | ConnectionResetError | TimeoutError)
        self._plain = answered and not self._plain

    async def _hold(self, connection: FrameConnection) -> float:
        """Write to *connection* until it is closed; return for how many seconds."""
        seconds = asyncio.get_running_loop().time
        began = seconds()
        _log.info("connected with node %d at %s", self._node, self.address)
        if connection.peer_is_recovering:
            self._receiver.peer_wiped(self._node)
        self._connection = connection
        try:
            await asyncio.shield(connection.closed)
        finally:
            self._connection = None
            connection.close()
        _log.info("lost node %d at %s", self._node, self.address)
        self._receiver.peer_unreachable(self._node)
        return seconds() - began
