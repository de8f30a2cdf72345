"""
The remoting server: listening sockets and the connections that they accept.

Rule: a server only accepts, limits and closes; its handler decides what a command means. A single
connection is in `connection`.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Self, cast

from orderlymq_runtime.process.openfiles import connections_allowed
from orderlymq_runtime.remoting.closelog import CloseLog
from orderlymq_runtime.remoting.connection import LINGER_RESET, Connection, FrameHandler
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits, ConnectionTable
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.remoting.turns import Turns
from orderlymq_runtime.security.tls import ServerTls, SniffingListener
from orderlymq_runtime.sockets.inputbudget import InputBudget
from orderlymq_runtime.sockets.listener import EVERY_ADDRESS, listening_socket
from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)

# After a fail-over, every client of a broker group connects again within milliseconds.
BACKLOG: Final = 4096
# Each connection takes a file descriptor and about 5 KB of memory; the limit is lower if fewer files may be open.
CONNECTIONS_MAX: Final = 50_000
COMPLAINT_PERIOD_S: Final = 5.0


class PortInUseError(OSError):
    """Another process listens on the address; `errno` is EADDRINUSE."""

    @classmethod
    def of(cls, host: str, port: int) -> Self:
        """Return the error for one address; its text says what to do."""
        return cls(
            errno.EADDRINUSE,
            f"port {port} of {host} is in use: stop the process that listens there "
            f"(ss -ltnp 'sport = :{port}' shows it) or choose another port",
        )


def listening_failed(error: OSError, host: str, port: int) -> OSError:
    """Return the error to raise instead of *error*, which may name neither host nor port."""
    if error.errno == errno.EADDRINUSE:
        return PortInUseError.of(host, port)
    return OSError(error.errno, f"cannot listen on {host}:{port}: {error.strerror or error}")


class Outside(NamedTuple):
    """A further listener, whose clients reach the server by addresses of another network.

    Attributes:
        name: the mark of its connections.
        tls: the TLS that it serves; None for plain connections.
    """

    name: str
    tls: ServerTls | None = None


class RemotingServer:
    """Accepts connections on one or several addresses and hands their commands to *handler*.

    Args:
        handler: receives every connection and every command.
        linger_reset: reset accepted connections instead of closing them when the process dies.
        connections_max: most open connections; fewer if too few open files would be left for the rest of the process.
            For one more, the oldest connection that was never served is closed, then the oldest TLS handshake. If all
            were served, the new one is closed immediately.
        limits: limits of each connection.
        traffic: counters to add to.
        tls: serve TLS, too, or only TLS; without it a server is plain.
        budget: the budget for unfinished input, shared by the servers of a process.
        is_client: returns whether a connection that has sent a whole request was served; by default it was.
    """

    def __init__(
        self,
        handler: FrameHandler,
        *,
        linger_reset: bool = False,
        connections_max: int = CONNECTIONS_MAX,
        limits: ConnectionLimits | None = None,
        traffic: Traffic | None = None,
        tls: ServerTls | None = None,
        budget: InputBudget | None = None,
        is_client: Callable[[Connection], bool] | None = None,
    ) -> None:
        self.traffic = Traffic() if traffic is None else traffic
        self._budget = budget
        self._arriving = 0
        self._tls = tls if tls is not None and tls.mode != "disabled" else None
        self._handler = handler
        self._linger_reset = linger_reset
        self._connections_max = connections_max
        limits = limits or ConnectionLimits()
        self._table = ConnectionTable(limits, self.traffic, budget=budget, is_client=is_client)
        self._listeners: list[asyncio.Server | SniffingListener] = []
        self._complain_at = 0.0
        self._close_log = CloseLog(_log, lambda: asyncio.get_running_loop().time())

    async def listen(
        self, host: str, port: int, *, outside: Outside | None = None
    ) -> tuple[str, int]:
        """Listen on one more address and return it, with the real port if port 0 was given.

        With *outside* it is the address of a further listener, whose TLS replaces the server's own.

        Raises:
            PortInUseError: Another process listens there.
            OSError: The address cannot be bound.
        """
        try:
            listener = await self._make_listener(host, port, outside)
        except OSError as error:
            raise listening_failed(error, host, port) from error
        if self._linger_reset:
            # Accepted sockets inherit the option, so they are never without it.
            for sock in listener.sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._listeners.append(listener)
        bound = listener.sockets[0].getsockname()
        return str(bound[0]), int(bound[1])

    async def _make_listener(
        self, host: str, port: int, outside: Outside | None
    ) -> asyncio.Server | SniffingListener:
        loop = asyncio.get_running_loop()
        name, tls = ("", self._tls) if outside is None else (outside.name, outside.tls)
        if tls is None and host != EVERY_ADDRESS:
            return await loop.create_server(
                partial(self._accept, name),
                host,
                port,
                reuse_address=True,
                backlog=BACKLOG,
            )
        sock = await listening_socket(host, port, backlog=BACKLOG)
        if tls is None:
            return await loop.create_server(partial(self._accept, name), sock=sock, backlog=BACKLOG)
        return SniffingListener(
            sock,
            tls,
            partial(self._make_connection, name),
            self._refuse,
            budget=self._budget,
            may_accept=self._may_accept,
        )

    def _refuse(self, reason: str) -> None:
        self.traffic.errors["tls"] += 1
        self._close_log.note("a caller", "tls", reason)

    @property
    def connections(self) -> list[Connection]:
        """The open connections, oldest first."""
        return self._table.connections()

    @property
    def turns(self) -> Turns:
        """How long requests are handed over before the loop serves everything else."""
        return self._table.turns

    def sweep(self, now: float) -> None:
        """Close connections that are overdue at *now* (loop clock); the table also does this by itself."""
        self._table.sweep(now)

    async def close_listeners(self) -> None:
        """Stop listening immediately; open connections stay."""
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    async def close(self) -> None:
        """Stop listening, deliver what was sent, close every connection, and wait until all are gone.

        It takes at most the limits' *close_drain_s*; after that the rest is cut off.
        """
        # A connection that asyncio accepts in one loop iteration has a transport in the next, and is in the table in the one after that.
        # If its listener is closed before it has a transport, nobody closes its socket, so accepting ends first.
        for sock in [each for listener in self._listeners for each in listener.sockets]:
            asyncio.get_running_loop().remove_reader(sock.fileno())
        try:
            await asyncio.sleep(0)
        finally:
            await self.close_listeners()
        await asyncio.sleep(0)
        for conn in self._table.connections():
            conn.close(kind="shutdown", reason="this server is stopping")
        await self._table.emptied.wait()

    def _accept(self, listener: str) -> asyncio.BaseProtocol:
        if not self._may_accept():
            return _Refusal()
        # It enters the table later in this loop iteration, in which many connections may be accepted.
        self._arriving += 1
        asyncio.get_running_loop().call_soon(self._arrived)
        return self._make_connection(listener)

    def _arrived(self) -> None:
        self._arriving -= 1

    def _make_connection(self, listener: str) -> Connection:
        return Connection(
            self._handler, self._table, linger_reset=self._linger_reset, listener=listener
        )

    def _may_accept(self) -> bool:
        # Asked for each connection, because it costs a microsecond and the limit can be changed from outside.
        if self._accepted < min(self._connections_max, connections_allowed()):
            return True
        if self._crowd_out():
            return True
        crowded = max(self._sniffing, key=lambda each: each.greetings, default=None)
        if crowded is not None and crowded.crowd_out():
            return True
        self.traffic.errors["too_many_connections"] += 1
        self._complain()
        return False

    def _crowd_out(self) -> bool:
        """Close the oldest connection that was never served, to make room for a new one; return False if there is none."""
        unserved, judge = self._table.unserved, self._table.is_client
        while unserved:
            conn = unserved.pop(next(iter(unserved)))
            is_served = conn.has_spoken and (judge is None or judge(conn))
            if not (conn.is_closing or is_served):
                reason = "it is the oldest connection that was never served, and there are new ones"
                conn.close(orderly=False, kind="crowded_out", reason=reason)
                return True
        return False

    @property
    def _accepted(self) -> int:
        greetings = sum(each.greetings for each in self._sniffing)
        return len(self._table) + self._arriving + greetings

    @property
    def _sniffing(self) -> list[SniffingListener]:
        return [each for each in self._listeners if isinstance(each, SniffingListener)]

    def _complain(self) -> None:
        """Log that connections are refused, but only once in a while, because a flood of them must not fill a log."""
        now = asyncio.get_running_loop().time()
        if now >= self._complain_at:
            self._complain_at = now + COMPLAINT_PERIOD_S
            _log.warning("new connections are refused: %d are open", self._accepted)


class _Refusal(asyncio.Protocol):
    """A connection over the limit; it is closed as soon as it is made."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast("StreamTransport", transport).abort()
