"""
The calling side of the connections between replicas: one call with its handshake, and a link that redials.

The rule: a caller sends nothing but the handshake before the peer has proven that it belongs to the cluster
(``handshake.py``). Nothing is queued for a peer that is away: raft sends again, and a backlog would only
delay new messages. The called side is ``server.py``.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frameheaders import (
    CallerProof,
    Challenge,
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
    encode_frame,
    encode_messages,
)
from orderlymq_broker.replication.transport.handshake import (
    Identity,
    is_proof,
    new_nonce,
    proof,
    shown,
)
from orderlymq_broker.settings import Address
from orderlymq_raft.messages import Append, Message
from orderlymq_raft.types import NodeId
from orderlymq_runtime.process.supervisor import Supervisor
from orderlymq_runtime.process.waits import wait_for
from orderlymq_runtime.security.tls import PeerTls
from orderlymq_runtime.sockets.dial import connect

_log = logging.getLogger(__name__)

# A peer on a LAN that restarts is reached again within its first heartbeats. One that stays away costs one
# attempt a second.
RECONNECT_FIRST_S: Final = 0.02
RECONNECT_MAX_S: Final = 1.0
# TCP and TLS take one round trip each, the handshake two: 3.2 s if a round trip takes 800 ms.
CONNECT_TIMEOUT_S: Final = 5.0
# A peer that has called meanwhile listens and is near: 1.6 s if a round trip takes 400 ms. Clients of the links
# wait 3 s.
ANSWER_S: Final = 1.6

# 16 MiB of entries may be in flight, and one entry more. If several times as much waits in one socket, the peer
# does not read; what it misses is sent again when it does.
BACKLOG_MAX: Final = 64 << 20
# A tenth of a second of a 1 Gbit/s network, and room for the largest answers of other clients.
SLOW_BACKLOG: Final = 16 << 20


class Refused(Exception):  # noqa: N818 - named for what the caller must know
    """No connection with this peer is possible at present; the text gives the reason."""


class LinkOwner(Protocol):
    """Gets the events of a link; `transport.Receiver` is one."""

    def peer_unreachable(self, node: NodeId, purpose: Purpose) -> None:
        """Note that frames for *node* with *purpose* were dropped."""

    def peer_wiped(self, node: NodeId) -> None:
        """Note that *node* has lost its log; called before anything is sent to it."""

    def peer_reached(self, node: NodeId) -> None:
        """Note that raft messages reach *node* from now on; messages sent in this call come first."""


async def dial(
    identity: Identity,
    target: NodeId,
    address: Address,
    purpose: Purpose,
    *,
    is_recovering: bool = False,
    tls: ssl.SSLContext | None = None,
) -> FrameConnection:
    """Connect to a peer, prove this replica's identity and check the peer's.

    Raises:
        OSError: nobody listens, or no answer came in time; includes ssl.SSLError.
        Refused: the peer belongs to another cluster, group or version, or proves nothing.
    """
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
        new_nonce(),
    )
    answers = _Answers()
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        connection = await connect(answers.connection, address.host, address.port, tls)
        try:
            reason = identity.certificate_objection(target, connection.certificate_names())
            if reason is not None:
                raise Refused(reason)
            welcome = await _shake_hands(identity, hello, connection, answers)
        except FrameCorrupt as error:
            connection.abort()
            raise Refused(str(error)) from error
        except BaseException:
            connection.abort()
            raise
    connection.peer_is_recovering = welcome.is_recovering
    connection.peer_process = welcome.process
    connection.take_large_frames()
    return connection


async def _shake_hands(
    identity: Identity, hello: Hello, connection: FrameConnection, answers: "_Answers"
) -> Welcome:
    connection.send(encode_frame(FrameKind.HELLO, hello))
    nonce = decode_header(await answers.next(FrameKind.CHALLENGE), Challenge).nonce
    own = proof(identity.key, "caller", hello, nonce, is_recovering=False)
    answers.expect()
    connection.send(encode_frame(FrameKind.PROOF, CallerProof(own)))
    welcome = decode_header(await answers.next(FrameKind.WELCOME), Welcome)
    expected = proof(identity.key, "called", hello, nonce, is_recovering=welcome.is_recovering)
    if not is_proof(welcome.proof, expected):
        raise Refused("it does not know the secret of this cluster")
    return welcome


class _Answers:
    """The frames that arrive during a handshake, one for each that was sent."""

    def __init__(self) -> None:
        self.expect()

    def connection(self) -> FrameConnection:
        """Return the asyncio protocol of a call."""
        return FrameConnection(self._arrived, self._lost, size_max=GREETING_SIZE_MAX)

    def expect(self) -> None:
        """Expect one more answer; call this before sending the frame that it answers."""
        self._answer: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()

    async def next(self, kind: FrameKind) -> Frame:
        """Return the next frame.

        Raises:
            Refused: the peer refuses and gives a reason.
            FrameCorrupt: another kind of frame arrived.
            OSError: the connection is lost.
        """
        frame = await self._answer
        if frame.kind is FrameKind.REFUSED:
            raise Refused(shown(decode_header(frame, str)))
        if frame.kind is not kind:
            raise FrameCorrupt(f"{frame.kind.name} arrived, but {kind.name} was expected")
        return frame

    def _arrived(self, _: FrameConnection, frame: Frame) -> None:
        if self._answer.done():
            raise FrameCorrupt(f"{frame.kind.name} arrived, but no frame was expected")
        self._answer.set_result(frame)

    def _lost(self, _: FrameConnection) -> None:
        if not self._answer.done():
            self._answer.set_exception(ConnectionResetError("closed without a greeting"))


class PeerLink:
    """The outgoing connection to one peer for one purpose, redialled whenever it is lost.

    The link for the log depends on the link for raft: it is dialled once that is up, must reach the same
    process, and ends with it. So a process receives entries only after it has said on the raft link whether
    it lost its log.

    Attributes:
        on_lost: called when the connection is lost, except by `renew` and `cancel`.
        on_up: is set while the link is up and the peer accepts another one for the log.
        unheard_ticks: ticks, since the link was made or last heard, in which the peer was silent or said that
            it does not hear the link.
        down_ticks: ticks since the link was last up, or since the link that it depends on came up.
    """

    def __init__(
        self,
        identity: Identity,
        node: NodeId,
        address: Address,
        purpose: Purpose,
        owner: LinkOwner,
        is_recovering: Callable[[], bool],
        tls: PeerTls | None,
        supervisor: Supervisor,
    ) -> None:
        self.address = address
        self.on_lost: Callable[[NodeId], None] | None = None
        self.on_up = asyncio.Event()
        self._behind: PeerLink | None = None
        self._log: PeerLink | None = None
        self.unheard_ticks = 0
        self.down_ticks = 0
        self._tls = tls
        self._plain = False
        self._identity = identity
        self._node = node
        self._purpose: Purpose = purpose
        self._owner = owner
        self._is_recovering = is_recovering
        self._connection: FrameConnection | None = None
        self._wake = asyncio.Event()
        self._task = supervisor.keep(
            "peer link", self._run, name=f"link to node {node} for {purpose}"
        )

    def stand_behind(self, link: "PeerLink") -> None:
        """Be up only while *link*, the raft link to the same peer, is; call this in the turn in which this link is made."""
        self._behind = link
        link._log = self

    @property
    def is_up(self) -> bool:
        """Return whether messages can be sent to the peer."""
        return self._connection is not None and self._connection.is_open

    @property
    def process(self) -> bytes:
        """Return the number of the connected process; empty if not connected, or if the peer has an earlier version."""
        return self._connection.peer_process if self._connection is not None else b""

    @property
    def is_slow(self) -> bool:
        """Return whether many sent bytes wait for the peer to read."""
        return self.backlog_bytes > SLOW_BACKLOG

    @property
    def backlog_bytes(self) -> int:
        """Return how many bytes wait for the peer to read."""
        return 0 if self._connection is None else self._connection.backlog_bytes

    def context(self) -> ssl.SSLContext | None:
        """Return the TLS context for calls to the peer, None for plain connections."""
        return None if self._tls is None or self._plain else self._tls.context()

    def send_messages(self, messages: list[Message]) -> None:
        """Send raft messages, or drop them and report that."""
        connection = self._connection
        if connection is None or not connection.is_open:
            self._owner.peer_unreachable(self._node, self._purpose)
            return
        if connection.backlog_bytes > BACKLOG_MAX:
            # Small messages are still sent: without heartbeats a slow follower would start an election.
            kept: list[Message] = [each for each in messages if not isinstance(each, Append)]
            if len(kept) < len(messages):
                self._owner.peer_unreachable(self._node, self._purpose)
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
        """Dial soon, because the peer has just called, so it listens."""
        self._wake.set()

    def renew(self) -> None:
        """Redial even if the link seems to be up, because the peer has restarted."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.abort()

    def cancel(self) -> None:
        """Stop dialling and close the connection."""
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
            if self._behind is not None:
                await self._behind.on_up.wait()
            try:
                connection = await self._dial()
            except Refused as refused:
                delay_s = RECONNECT_MAX_S
                if str(refused) != complaint:
                    complaint = str(refused)
                    _log.error(
                        "no connection with node %d at %s: %s", self._node, self.address, refused
                    )
            except OSError as error:
                delay_s = min(2 * delay_s, RECONNECT_MAX_S)
                if isinstance(error, ssl.SSLError) and str(error) != complaint:
                    complaint = str(error)
                    _log.error("TLS with node %d at %s fails: %s", self._node, self.address, error)
                self._try_other_way(error)
            else:
                complaint = ""
                held_s = await self._hold(connection)
                # A connection that is closed immediately is a kind of refusal, so do not hurry.
                short = held_s < RECONNECT_MAX_S
                delay_s = min(2 * delay_s, RECONNECT_MAX_S) if short else RECONNECT_FIRST_S
            self._wake.clear()
            await wait_for(self._wake, delay_s)

    async def _dial(self) -> FrameConnection:
        """Call the peer, and call again if the peer calls meanwhile but does not answer.

        A network cut may have lost the first call. Raises as `dial`.
        """
        while True:
            self._wake.clear()
            calling = asyncio.create_task(
                dial(
                    self._identity,
                    self._node,
                    self.address,
                    self._purpose,
                    is_recovering=self._is_recovering(),
                    tls=self.context(),
                )
            )
            woken = asyncio.create_task(self._wake.wait())
            try:
                await asyncio.wait({calling, woken}, return_when=asyncio.FIRST_COMPLETED)
                await asyncio.wait({calling}, timeout=ANSWER_S)
                if calling.done():
                    return calling.result()
            except asyncio.CancelledError:
                calling.add_done_callback(_hang_up)
                raise
            finally:
                calling.cancel()
                woken.cancel()

    def _try_other_way(self, error: OSError) -> None:
        """Switch between TLS and plain for the next call if both are permitted, because the peer may know only one."""
        if self._tls is None or self._tls.is_enforced:
            return
        answered = isinstance(error, ssl.SSLError | ConnectionResetError | TimeoutError)
        self._plain = answered and not self._plain

    async def _hold(self, connection: FrameConnection) -> float:
        """Use *connection* until it is closed; return for how many seconds."""
        seconds = asyncio.get_running_loop().time
        began = seconds()
        if self._behind is not None and connection.peer_process != self._behind.process:
            _log.info("node %d has restarted: the link for raft is made first", self._node)
            connection.abort()
            self._behind.renew()
            return 0.0
        _log.info("connected with node %d at %s for %s", self._node, self.address, self._purpose)
        if connection.peer_is_recovering and self._purpose == "raft":
            self._owner.peer_wiped(self._node)
        self._connection = connection
        self.unheard_ticks = 0
        if self._log is not None:
            self._log.down_ticks = 0
        if self._purpose == "raft":
            self._owner.peer_reached(self._node)
        if connection.peer_process:
            self.on_up.set()
        try:
            await asyncio.shield(connection.closed)
        finally:
            was_renewed = self._connection is not connection
            self._connection = None
            connection.close()
            self.on_up.clear()
            if self._log is not None:
                self._log.renew()
        _log.info("lost node %d at %s for %s", self._node, self.address, self._purpose)
        self._owner.peer_unreachable(self._node, self._purpose)
        if self.on_lost is not None and not was_renewed:
            self.on_lost(self._node)
        return seconds() - began


def _hang_up(calling: "asyncio.Task[FrameConnection]") -> None:
    """Close the connection of a call that is no longer needed."""
    if not calling.cancelled() and calling.exception() is None:
        calling.result().abort()
