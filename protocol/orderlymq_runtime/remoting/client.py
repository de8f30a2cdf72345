"""
The remoting client: calls to any number of addresses, with one shared connection per address.

Rules: callers of one address share one connection and one attempt to open it. Every call ends
with its answer, or with an error that says whether the request may have been executed. When a connection is
lost, all its calls fail immediately, and the next call opens another. A connection on which calls expire and nothing arrives
counts as lost, too. Requests leave in the order of the calls; while much data waits to be written, the next requests wait here,
within their time-outs. Requests that the server sends over the connection go to `on_request`. The connection itself is in
`connection`.
"""

import asyncio
import logging
import ssl
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.codec import encode_parts
from orderlymq_protocol.frame.command import FLAG_ONEWAY, FLAG_RESPONSE, RemotingCommand, request
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits, ConnectionTable
from orderlymq_runtime.remoting.failures import failure_reply
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.sockets.addresses import split_address
from orderlymq_runtime.sockets.dial import connect

_log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0  # RocketMQ's connectTimeoutMillis
# A peer that vanished without a reset (power, network) is given up when it has acknowledged nothing for
# this long; otherwise the kernel would resend for a quarter of an hour.
_USER_TIMEOUT_MS: Final = 10_000
# A proxy or sidecar that has lost its other side acknowledges everything, so the kernel notices nothing. RocketMQ's
# clients close a connection at the first missing answer. Here a server may be late, for example because its disk stands
# still, if it answers anything. After this long without an answer, it is sent a ping.
SILENCE_MAX_S: Final = 3.0
# How long a server has to answer the ping. Data that arrived while this process stood still is read in that time, too.
_PONG_MAX_S: Final = 1.0
_OPAQUE_MASK: Final = 0x7FFFFFFF

RequestHandler = Callable[[RemotingCommand, Connection], RemotingCommand | None]


class RemotingError(Exception):
    """A call has no answer.

    Attributes:
        address: the address that was called, "host:port".
        maybe_sent: the peer may have executed the request; False means it surely has not.
    """

    def __init__(self, message: str, *, address: str, maybe_sent: bool) -> None:
        super().__init__(message)
        self.address = address
        self.maybe_sent = maybe_sent


class ConnectFailed(RemotingError):  # noqa: N818 - named by what happened, as the interfaces say
    """No connection could be opened; nothing was sent, and another address may be tried immediately."""


class ConnectionLost(RemotingError):  # noqa: N818 - the same
    """The connection ended before the answer came."""


class RequestTimeout(RemotingError):  # noqa: N818 - the same
    """The answer did not come in time."""


class RemotingClient:
    """Makes calls over shared connections.

    Args:
        on_request: receives the requests of servers. Its result is sent back unless the request was oneway; None
            leaves the answer to a later `Connection.send`. Without it, REQUEST_CODE_NOT_SUPPORTED is answered.
        tls: returns the context of the next connection, None for a plain one; without it, all are plain.
    """

    def __init__(
        self,
        on_request: RequestHandler | None = None,
        *,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        silence_max_s: float = SILENCE_MAX_S,
        on_connection_lost: Callable[[str], None] | None = None,
        tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self._tls = tls
        self.traffic = Traffic()
        self._on_request = on_request
        self._on_connection_lost = on_connection_lost
        self._connect_timeout_s = connect_timeout_s
        self._silence_max_s = silence_max_s
        self._table = ConnectionTable(ConnectionLimits(), self.traffic, close_level=logging.DEBUG)
        self._links: dict[str, _Link] = {}
        self._opaque = 0
        self._closed = False

    @property
    def is_encrypted(self) -> bool:
        """Whether the next connection speaks TLS."""
        return self._tls is not None and self._tls() is not None

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called; then it makes no more calls."""
        return self._closed

    @property
    def is_idle(self) -> bool:
        """Whether it has no connection and is not opening one."""
        return not self._links

    async def invoke(
        self, address: str, command: RemotingCommand, timeout_s: float
    ) -> RemotingCommand:
        """Send a request to *address* ("host:port") and return its response, with any code.

        The opaque is chosen here; *command* itself is not changed.

        Raises:
            ConnectFailed: No connection within the connect time-out.
            ConnectionLost: The connection ended before the response came.
            RequestTimeout: No response within *timeout_s* seconds, including the time to connect.
            FrameError: The command cannot be written.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        link = self._links.get(address)
        if link is None or not link.is_usable:
            link = await self._connect(address, timeout_s)

        opaque = self.next_opaque(link)
        link.send(command, opaque)
        return await self._outcome(link, opaque, deadline, timeout_s)

    async def send_oneway(self, address: str, command: RemotingCommand) -> None:
        """Send a request that gets no answer; return when it is on its way, not when it has arrived.

        Raises:
            ConnectFailed: No connection within the connect time-out.
            ConnectionLost: The connection ended before there was room for the request.
            RequestTimeout: No connection, or no room, within the connect time-out.
            FrameError: The command cannot be written.
        """
        timeout_s = self._connect_timeout_s
        deadline = asyncio.get_running_loop().time() + timeout_s
        link = self._links.get(address)
        if link is None or not link.is_usable:
            link = await self._connect(address, timeout_s)
        opaque = self.next_opaque(link)
        if not link.send(command, opaque, oneway=True):
            await self._outcome(link, opaque, deadline, timeout_s)

    def connection(self, address: str) -> Connection | None:
        """Return the open connection to *address*, if there is one."""
        link = self._links.get(address)
        return None if link is None or not link.is_usable else link.connection

    async def close(self) -> None:
        """Close all connections; calls that still wait fail with `ConnectionLost`."""
        self._closed = True
        await end_tasks(link.attempt for link in self._links.values() if link.attempt is not None)
        for link in self._links.values():
            link.fail_all("the client was closed")
        for conn in self._table.connections():
            conn.close(kind="shutdown")
        await self._table.emptied.wait()
        self._links.clear()

    async def _connect(self, address: str, timeout_s: float) -> "_Link":
        """Return a usable link; callers of one address share the attempt."""
        if self._closed:
            raise ConnectFailed("the client is closed", address=address, maybe_sent=False)
        link = self._links.get(address)
        if link is None or link.is_over:
            link = _Link(address, self)
            self._links[address] = link
        if link.attempt is None:
            link.attempt = asyncio.create_task(self._open(link), name=f"connect {address}")
        try:
            async with asyncio.timeout(timeout_s):
                # Shielded, because a caller that gives up must not end the attempt for the others.
                failure = await asyncio.shield(link.attempt)
        except TimeoutError:
            raise RequestTimeout(
                f"no connection to {address} within {timeout_s:g} s",
                address=address,
                maybe_sent=False,
            ) from None
        except asyncio.CancelledError:
            # Either this caller was cancelled, or `close` has cancelled the attempt.
            task = asyncio.current_task()
            if not link.attempt.cancelled() or (task is not None and task.cancelling()):
                raise
            failure = "the client was closed"
        if failure is not None:
            self.traffic.errors["connect"] += 1
            raise ConnectFailed(
                f"cannot connect to {address}: {failure}", address=address, maybe_sent=False
            )
        if not link.is_usable:
            raise ConnectionLost(
                f"{address} closed the connection immediately", address=address, maybe_sent=False
            )
        return link

    async def _open(self, link: "_Link") -> str | None:
        """Open the connection of *link*; return why it failed, if it did.

        The reason is returned, not raised, because nobody may be left to await the attempt.
        """
        failure: str | None = None
        try:
            host, port = split_address(link.address)
            async with asyncio.timeout(self._connect_timeout_s):
                context = None if self._tls is None else self._tls()
                await connect(link.make_connection, host, port, context)
        except ssl.SSLCertVerificationError as error:
            # Expired, from another authority, or for another name: the person who renews certificates must know which.
            failure = f"TLS: certificate verify failed: {error.verify_message}"
        except ssl.SSLError as error:
            failure = f"TLS: {error.reason or error}"
        except TimeoutError:
            failure = f"no answer within {self._connect_timeout_s:g} s"
        except (ConnectionResetError, BrokenPipeError, EOFError) as error:
            failure = str(error) or "the connection was lost"
            if self._tls is not None:
                failure += " in the TLS handshake; does it serve plain connections only?"
        except (OSError, ValueError) as error:
            failure = str(error) or type(error).__name__
        if failure is not None and self._links.get(link.address) is link:
            del self._links[link.address]
        return failure

    async def _outcome(
        self, link: "_Link", opaque: int, deadline: float, timeout_s: float
    ) -> RemotingCommand:
        """Return the answer to a request; for a oneway request, return the request itself once it is on its way."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[RemotingCommand] = loop.create_future()
        link.waiting[opaque] = outcome
        timer = loop.call_at(deadline, self._expire, link, opaque, timeout_s, loop.time())
        try:
            return await outcome
        finally:
            timer.cancel()
            link.waiting.pop(opaque, None)
            link.queued.pop(opaque, None)

    def next_opaque(self, link: "_Link") -> int:
        """Return the number of the next request on *link*; it wraps within positive int32 and skips numbers that still wait for an answer."""
        opaque = (self._opaque + 1) & _OPAQUE_MASK
        while opaque in link.waiting:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._opaque = opaque
        return opaque

    def _expire(self, link: "_Link", opaque: int, timeout_s: float, asked_at: float) -> None:
        answer = link.waiting.pop(opaque, None)
        if answer is not None and not answer.done():
            is_queued = link.queued.pop(opaque, None) is not None
            link.note_silence(asked_at, self._silence_max_s)
            self.traffic.errors["timeout"] += 1
            what = "did not read the previous requests" if is_queued else "did not answer"
            answer.set_exception(
                RequestTimeout(
                    f"{link.address} {what} within {timeout_s:g} s",
                    address=link.address,
                    maybe_sent=not is_queued,
                )
            )

    def _serve(self, conn: Connection, command: RemotingCommand) -> None:
        reply: RemotingCommand | None
        if self._on_request is None:
            reply = command.reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                remark=f" request type {command.code} not supported",
            )
        else:
            try:
                reply = self._on_request(command, conn)
            except Exception as error:
                self.traffic.errors["handler"] += 1
                _log.exception("the handler of request %d failed", command.code)
                reply = failure_reply(command, error)
        if reply is not None and not command.is_oneway:
            conn.send(reply)

    def _lost(self, link: "_Link") -> None:
        if self._links.get(link.address) is link:
            del self._links[link.address]
        if self._on_connection_lost is not None:
            self._on_connection_lost(link.address)


class _Link:
    """The connection to one address and the calls that wait on it; it is used once and never reopened.

    Attributes:
        waiting: the outcomes of the calls, by opaque.
        queued: requests for which the connection has no room yet, in their order, by opaque. The command after the bytes is what
            a oneway caller gets back. Each request belongs to a call in `waiting`, which bounds their number.
    """

    __slots__ = (
        "_client",
        "_ping",
        "_pinged_since",
        "_silent_since",
        "address",
        "attempt",
        "connection",
        "queued",
        "waiting",
    )

    def __init__(self, address: str, client: RemotingClient) -> None:
        self.address = address
        self.attempt: asyncio.Task[str | None] | None = None
        self.connection: Connection | None = None
        self.waiting: dict[int, asyncio.Future[RemotingCommand]] = {}
        self.queued: OrderedDict[int, tuple[list[bytes], RemotingCommand | None]] = OrderedDict()
        self._client = client
        # When the peer had received the first call that has expired since the peer was last heard; void once the peer is heard again.
        self._silent_since = 0.0
        # The silence for which the peer was sent a ping, and the opaque of the ping.
        self._pinged_since: float | None = None
        self._ping: int | None = None

    @property
    def is_usable(self) -> bool:
        return self.connection is not None and not self.connection.is_closing

    @property
    def is_over(self) -> bool:
        return self.connection is not None and self.connection.is_closing

    def make_connection(self) -> Connection:
        return Connection(self, self._client._table, called=self.address, on_room=self._send_queued)

    def send(self, command: RemotingCommand, opaque: int, *, oneway: bool = False) -> bool:
        """Send a copy of *command* under *opaque*, because the caller's object may be in use elsewhere.

        Returns:
            Whether it is on its way. If not, it is queued until there is room, as long as a caller waits for its outcome.
        """
        if self.connection is None:
            raise AssertionError("only a usable link is handed out")
        parts = encode_parts(
            RemotingCommand(
                command.code,
                opaque,
                command.flag | FLAG_ONEWAY if oneway else command.flag,
                command.ext,
                command.body,
                command.remark,
                command.language,
                command.version,
                command.serialize_type,
            )
        )
        if self.queued or not self.connection.has_room:
            self.queued[opaque] = parts, command if oneway else None
            return False
        self.connection.send_bytes(parts)
        return True

    def _send_queued(self) -> None:
        """Send queued requests as long as there is room."""
        conn = self.connection
        while self.queued and conn is not None and conn.has_room:
            opaque, (parts, oneway) = self.queued.popitem(last=False)
            conn.send_bytes(parts)
            sent = self.waiting.get(opaque)  # a peer may answer a request that it has not received
            if oneway is not None and sent is not None and not sent.done():
                sent.set_result(oneway)

    def note_silence(self, asked_at: float, silence_max_s: float) -> None:
        """Note that a call made at *asked_at* has expired. If nothing came for too long, send a ping, and give up without an answer.

        A peer owes no answer to requests that still wait here; if it takes nothing more, the kernel's own limit applies.
        """
        conn = self.connection
        if conn is None or conn.is_backed_up or conn.heard_at > asked_at:
            return
        if conn.heard_at > self._silent_since:
            self._silent_since = max(asked_at, conn.taken_at)
        since = self._silent_since
        loop = asyncio.get_running_loop()
        if loop.time() - since >= silence_max_s and since != self._pinged_since:
            self._pinged_since = since
            # Any answer will do: RocketMQ's servers do not know the code, and say so.
            self._ping = self._client.next_opaque(self)
            self.send(request(RequestCode.ORDERLYMQ_PING), self._ping)
            loop.call_later(_PONG_MAX_S, self._give_up, conn, since)

    def _give_up(self, conn: Connection, silent_since: float) -> None:
        if conn.heard_at <= silent_since:
            conn.close(orderly=False, kind="silent", reason="calls expire and no answers arrive")

    def fail_all(self, reason: str) -> None:
        waiting, self.waiting = self.waiting, {}
        for opaque, answer in waiting.items():
            if not answer.done():
                answer.set_exception(
                    ConnectionLost(
                        f"{self.address}: {reason}",
                        address=self.address,
                        maybe_sent=opaque not in self.queued,
                    )
                )
        self.queued.clear()

    # FrameHandler.

    def connection_made(self, conn: Connection) -> None:
        self.connection = conn
        conn.set_user_timeout(_USER_TIMEOUT_MS)

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        if not command.flag & FLAG_RESPONSE:
            self._client._serve(conn, command)
            return
        answer = self.waiting.pop(command.opaque, None)
        if answer is not None:
            if not answer.done():
                answer.set_result(command)
        elif command.opaque != self._ping:
            self._client.traffic.errors["late_response"] += 1

    def connection_lost(self, conn: Connection) -> None:
        self.fail_all("the connection was lost")
        self._client._lost(self)
