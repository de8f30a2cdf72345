"""
The open connections of one server or client: their numbers, the limits of each, and the clock that ends silent ones.

They share the buffer for reading, the turns, and the limit of bytes that all peers together have not taken. These are here,
so that one busy or silent peer costs the others little. `connection` handles a single connection.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orderlymq_protocol.frame.codec import FRAME_SIZE_MAX
from orderlymq_runtime.remoting.closelog import CloseLog
from orderlymq_runtime.remoting.traffic import Traffic
from orderlymq_runtime.remoting.turns import Turns
from orderlymq_runtime.remoting.unsent import BROKER_BYTES_MAX, Unsent
from orderlymq_runtime.sockets.inputbudget import InputBudget

if TYPE_CHECKING:
    from orderlymq_runtime.remoting.connection import Connection

_log = logging.getLogger(__name__)

# One read takes at most this much: several maximal pull replies, and small enough to stay in cache.
READ_BUFFER_SIZE: Final = 256 * 1024


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of one connection.

    Attributes:
        idle_timeout_s: a connection that is neither read nor written for this long is closed, as RocketMQ's servers do.
        half_frame_timeout_s: the rest of a frame must come within this time after its beginning.
        write_soft_max: bytes waiting to be written above which nothing more is read from the peer; with TLS `SLICE_SIZE`. A client's
            requests wait elsewhere instead.
        write_hard_max: bytes waiting to be written above which the connection is closed; holds a few of the largest frames.
        unsent_max: bytes waiting to be written for all connections of a table.
        close_drain_s: how long an orderly close waits for the peer to take the rest and hang up.
    """

    frame_size_max: int = FRAME_SIZE_MAX
    idle_timeout_s: float = 120.0
    half_frame_timeout_s: float = 30.0
    write_soft_max: int = 1 << 20
    write_hard_max: int = 64 << 20
    unsent_max: int = BROKER_BYTES_MAX
    close_drain_s: float = 2.0


class ConnectionTable:
    """The open connections of one server or client, and the clock that ends silent ones.

    Args:
        close_level: the log level of a close that the owner asks for.
        budget: the budget for unfinished input; None if all peers are trusted.
        is_client: returns whether a connection that has sent a whole command was served; by default it was.
    """

    def __init__(
        self,
        limits: ConnectionLimits,
        traffic: Traffic,
        *,
        close_level: int = logging.INFO,
        budget: InputBudget | None = None,
        is_client: "Callable[[Connection], bool] | None" = None,
    ) -> None:
        self.limits = limits
        self.budget = budget
        self.is_client = is_client
        self.traffic = traffic
        self.close_level = close_level
        # Shared by all connections, because a chunk is consumed before the loop reads the next one.
        self.read_view = memoryview(bytearray(READ_BUFFER_SIZE))
        self.turns = Turns()
        self.unsent = Unsent(limits.unsent_max, self.connections)
        self.emptied = asyncio.Event()
        self.emptied.set()
        self._connections: dict[int, Connection] = {}
        self.unserved: dict[int, Connection] = {}  # not known to be served, the oldest first
        self._last_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._close_log = CloseLog(_log, lambda: asyncio.get_running_loop().time())

    def __len__(self) -> int:
        return len(self._connections)

    def connections(self) -> list["Connection"]:
        """Return the open connections, oldest first."""
        return list(self._connections.values())

    def next_id(self) -> int:
        """Return a number that no other connection of this table has."""
        self._last_id += 1
        return self._last_id

    def add(self, conn: "Connection") -> None:
        """Enter a new connection."""
        self._connections[conn.id] = self.unserved[conn.id] = conn
        self.traffic.connections += 1
        self.traffic.accepted += 1
        self.emptied.clear()
        if self._timer is None:
            self._schedule()

    def discard(self, conn: "Connection") -> None:
        """Remove a lost connection."""
        if self._connections.pop(conn.id, None) is None:
            return
        self.unserved.pop(conn.id, None)
        self.traffic.connections -= 1
        if not self._connections:
            self.emptied.set()
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def note_close(self, conn: "Connection", kind: str, reason: str, level: int) -> None:
        """Count a close that this end decides, and log it unless too many of its kind were logged just now."""
        self.traffic.errors[kind] += 1
        self._close_log.note(conn, kind, reason, level)

    def sweep(self, now: float) -> None:
        """Close the connections that have been silent, or have kept half a frame, for too long at *now*.

        Args:
            now: time of the loop's clock, seconds.
        """
        for conn in self.connections():
            conn.close_if_overdue(now)

    def _schedule(self) -> None:
        # A limit is kept to within a fifth of itself, and to within five seconds.
        shortest = min(self.limits.idle_timeout_s, self.limits.half_frame_timeout_s)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(min(5.0, shortest / 5), self._on_timer, loop)

    def _on_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self.sweep(loop.time())
        if self._connections:
            self._schedule()
