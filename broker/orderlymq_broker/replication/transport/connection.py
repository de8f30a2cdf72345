"""
One TCP connection between replicas: turns bytes into frames for its owner, and frames into bytes.

It does not interpret frames. ``server.py`` greets and routes raft messages; ``snapshots.py`` sends files.
"""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Final, cast

from orderlymq_broker.replication.transport.frames import (
    FRAME_SIZE_MAX,
    Frame,
    FrameCorrupt,
    FrameReader,
)
from orderlymq_raft.types import ProtocolViolation
from orderlymq_runtime.sockets.socketoptions import set_option
from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)

# A machine that lost power answers nothing: without this the kernel would wait for minutes.
TCP_USER_TIMEOUT_MS: Final = 3_000
# The user time-out counts only while something is unacknowledged. On an idle connection the kernel probes each
# second.
_TCP_OPTIONS: Final = {
    "TCP_NODELAY": 1,
    "TCP_USER_TIMEOUT": TCP_USER_TIMEOUT_MS,
    "TCP_KEEPIDLE": 1,
    "TCP_KEEPINTVL": 1,
    "TCP_KEEPCNT": 3,
}


class FrameConnection(asyncio.Protocol):
    """One TCP connection that carries frames, accepted or made.

    Life cycle: connected, *on_frame* for each frame, *on_closed* once. After a frame that cannot be read, or
    that breaks a rule, *on_violation* is called and the connection is closed.

    Attributes:
        silent_ticks: how many ticks the owner has counted since bytes last arrived.
    """

    def __init__(
        self,
        on_frame: "Callable[[FrameConnection, Frame], None]",
        on_closed: "Callable[[FrameConnection], None]",
        on_opened: "Callable[[FrameConnection], None] | None" = None,
        on_violation: "Callable[[FrameConnection, Exception], None] | None" = None,
        size_max: int = FRAME_SIZE_MAX,
    ) -> None:
        self.on_frame = on_frame
        self.on_closed = on_closed
        self._on_opened = on_opened
        self._on_violation = on_violation or _warn
        self._reader = FrameReader(size_max)
        self._transport: StreamTransport | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self.closed = asyncio.get_running_loop().create_future()
        self.peer: tuple[str, int] = ("?", 0)
        self.peer_is_recovering = False
        self.peer_process = b""
        self.silent_ticks = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Prepare the socket."""
        self._transport = cast("StreamTransport", transport)
        peer = transport.get_extra_info("peername")
        if peer:
            self.peer = (str(peer[0]), int(peer[1]))
        set_option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _TCP_OPTIONS.items():
            if hasattr(socket, name):
                set_option(transport, socket.IPPROTO_TCP, getattr(socket, name), value)
        if self._on_opened is not None:
            self._on_opened(self)

    def data_received(self, data: bytes) -> None:
        """Split the stream into frames."""
        self.silent_ticks = 0
        try:
            for frame in self._reader.receive_data(data):
                if not self.is_open:
                    return
                self.on_frame(self, frame)
        except (FrameCorrupt, ProtocolViolation) as error:
            self.violated(error)

    def violated(self, error: Exception) -> None:
        """Close the connection, because the peer has sent something that no replica sends."""
        self._on_violation(self, error)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Notify the owner once."""
        self._transport = None
        self._writable.set()
        if not self.closed.done():
            self.closed.set_result(None)
        self.on_closed(self)

    def pause_writing(self) -> None:
        """Note that the peer reads slower than we write; only snapshots need this."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Note that the peer has caught up."""
        self._writable.set()

    def wait_for_disk(self, seconds: float) -> None:
        """Allow the peer to read nothing for *seconds*, because a receiver of files waits for its disk."""
        if self._transport is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            limit_ms = int(seconds * 1000)
            set_option(self._transport, socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)

    @property
    def is_open(self) -> bool:
        """Return whether bytes can still be written."""
        return self._transport is not None and not self._transport.is_closing()

    def certificate_names(self) -> list[str] | None:
        """Return the URIs in the certificate of the peer; None for a connection without TLS."""
        if self._transport is None or self._transport.get_extra_info("sslcontext") is None:
            return None
        certificate = self._transport.get_extra_info("peercert") or {}
        names = certificate.get("subjectAltName", ())
        return [str(name) for kind, name in names if kind == "URI"]

    def take_large_frames(self) -> None:
        """Accept frames of any size from now on, because the peer has proven its identity."""
        self._reader.size_max = FRAME_SIZE_MAX

    @property
    def backlog_bytes(self) -> int:
        """Return how many bytes wait for the peer to read."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def send(self, pieces: Sequence[bytes]) -> None:
        """Write the pieces of frames; does nothing if the connection is closed."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.writelines(pieces)

    async def drained(self) -> None:
        """Wait until the peer has read enough for more to be written."""
        await self._writable.wait()

    def close(self) -> None:
        """Close after all written bytes are sent."""
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close immediately."""
        if self._transport is not None:
            self._transport.abort()

    def pause_reading(self) -> None:
        """Make the peer wait; for a receiver that writes to disk."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue after `pause_reading`."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


def _warn(connection: FrameConnection, error: Exception) -> None:
    _log.warning("closing the connection with %s:%d: %s", *connection.peer, error)
