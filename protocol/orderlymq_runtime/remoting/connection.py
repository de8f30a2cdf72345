"""
One remoting connection: it turns bytes into commands for a handler, and commands into bytes, within limits.

`server` uses it for accepted and `client` for opened connections. Rules:
- commands are handed over one by one in their order, as long as the peer takes the answers and the time slice lasts
  (``turns``); what is left waits, mostly as bytes, and nothing more is read from the peer until it is handed over;
- the end that opened the connection reads while it writes: if both waited for the other to read, nothing would move;
- everything sent in one loop iteration leaves in one write; there is no task per request;
- for each peer at most one frame limit is kept for reading and `write_hard_max` for writing; for all peers
  that do not read, at most `unsent_max` together (``unsent``);
- an error ends this connection only; every close that this end decides is counted by its kind and leaves one log line;
- an orderly close delivers what was sent before it.
"""

import asyncio
import errno
import logging
import socket
import struct
import sys
from collections.abc import Callable
from typing import Final, Protocol, cast

from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    HEADER_SIZE_MAX,
    FrameDecoder,
    FrameError,
    encode_parts,
)
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connectiontable import ConnectionTable
from orderlymq_runtime.remoting.failures import failure_reply, unsendable_reply
from orderlymq_runtime.remoting.unsent import SLICE_SIZE, write_slices
from orderlymq_runtime.sockets.addresses import plain_host
from orderlymq_runtime.sockets.socketoptions import set_option
from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)

# Bytes in one read from a peer that has to wait for its turn anyway; each peer keeps its own bytes.
BUSY_READ_SIZE: Final = 16 * 1024
# Commands that are decoded together. A small command takes ten times its bytes once it is decoded.
DECODED_COUNT_MAX: Final = 32
# Frames up to this size are joined into one buffer before writing, which is cheaper than a long vector.
JOIN_SIZE_MAX: Final = 64 * 1024
# asyncio's own `writelines` of 3.12.0 to 3.12.8, 3.13.0 and 3.13.1 never pauses the writer (CVE-2024-12254).
_JOINS_ALL: Final = (
    0x30C0000 <= sys.hexversion < 0x30C0900 or 0x30D0000 <= sys.hexversion < 0x30D0200
)
# Memory of a TLS connection under uvloop in addition to its socket; 26 KiB were measured.
TLS_CONNECTION_BYTES: Final = 32 << 10
LINGER_RESET: Final = struct.pack("ii", 1, 0)
_LINGER_OFF: Final = struct.pack("ii", 0, 0)


class FrameHandler(Protocol):
    """Handler of a server's connections; all calls are synchronous and must not block."""

    def connection_made(self, conn: "Connection", /) -> None:
        """Take note of a new connection."""

    def received(self, conn: "Connection", command: RemotingCommand, /) -> None:
        """Handle a command; an exception that leaves this method is answered with code 1."""

    def connection_lost(self, conn: "Connection", /) -> None:
        """Forget the connection; called once for each `connection_made`."""


class Connection(asyncio.BufferedProtocol):
    """One TCP connection that speaks the remoting protocol.

    Life cycle: open -> closing (nothing more is sent or handed to the handler) -> lost.

    Attributes:
        id: unique within its server or client.
        sent_bytes: bytes sent since it was made, whether the peer has taken them or not.
        heard_at: when bytes last came, by the loop's clock; before the first, when it was made.
        taken_at: when the kernel last had room again for what waited here; before that, when it was made.
        peer: host and port of the other end.
        local: host and port of this end, None before it is connected.
        listener: name of the listener that accepted it; empty for the server's own and for calls.
        called: "host:port" by which the opening end names the other one; empty if it was accepted.
        has_spoken: the peer has sent a whole command.

    Args:
        on_room: given if this end opens the connection; called when `has_room` may hold again. Such a connection reads mostly
            answers, at most as many as the opener has asked for, so it reads on while much waits to be written.
    """

    def __init__(
        self,
        handler: FrameHandler,
        table: ConnectionTable,
        *,
        linger_reset: bool = False,
        listener: str = "",
        called: str = "",
        on_room: Callable[[], None] | None = None,
    ) -> None:
        self.id = table.next_id()
        self.listener = listener
        self.called = called
        self.peer: tuple[str, int] = ("", 0)
        self.local: tuple[str, int] | None = None
        self._handler = handler
        self._table = table
        self._traffic = table.traffic
        self._turns = table.turns
        self._linger_reset = linger_reset
        self._on_room = on_room
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(
            table.limits.frame_size_max,
            HEADER_SIZE_MAX if on_room is None else ANSWER_HEADER_SIZE_MAX,
        )
        self._transport: StreamTransport | None = None
        self._is_tls = False
        self._pending: list[bytes] = []
        self._pending_size = 0
        self.sent_bytes = self._flushed_bytes = 0
        self._receiving = False
        self._is_write_paused = False
        self._is_blocked = False  # nothing more is taken from the peer before it has read
        # Decoded but not yet handed over; never empty while the decoder has whole frames left.
        self._held: list[RemotingCommand] = []
        self._broken = ""  # why the stream cannot be read on
        self._waits = False  # for the next turn
        self._reads = True
        self._closing = False
        self._active_at = self.heard_at = self.taken_at = self._loop.time()
        self._half_frame_since: float | None = None
        self._drain_timer: asyncio.TimerHandle | None = None
        self.has_spoken = False
        self._is_client = False
        self._drawn_bytes = 0  # on the budget of the process

    def __repr__(self) -> str:
        return f"<Connection {self.id} {self.peer[0]}:{self.peer[1]} {'closing' if self._closing else 'open'}>"

    # Called by the owner.

    def send(self, command: RemotingCommand) -> None:
        """Send one command; on a closing connection it is dropped.

        Raises:
            FrameError: A request cannot be written. A response that cannot be written is replaced by an answer
                with code 1, because a caller must not wait in vain.
        """
        try:
            parts = encode_parts(command)
        except FrameError as error:
            if not command.is_response:
                raise
            self._traffic.errors["unsendable"] += 1
            _log.error("%r: an answer cannot be sent: %s", self, error)
            parts = encode_parts(unsendable_reply(command, error))
        self.send_bytes(parts)

    def send_bytes(self, parts: list[bytes]) -> None:
        """Send the bytes of one frame, joined with everything else that leaves in this loop iteration."""
        if self._closing:
            return
        if not self._pending and not self._receiving:
            self._loop.call_soon(self._flush)
        self._pending += parts
        for part in parts:
            self._pending_size += len(part)
            self.sent_bytes += len(part)
        self._traffic.frames_out += 1
        if self._pending_size > self._table.limits.write_soft_max:
            # The hard limit is checked now, because one chunk may hold a thousand pulls, each with a large answer.
            self._flush()

    @property
    def write_buffer_size(self) -> int:
        """Bytes that were sent here and that the peer's kernel has not taken yet."""
        transport = self._transport
        return 0 if transport is None else self._pending_size + transport.get_write_buffer_size()

    @property
    def has_room(self) -> bool:
        """Whether little enough data waits that more can be sent; if not, `on_room` is called later."""
        return (
            not self._is_write_paused or self.write_buffer_size <= self._table.limits.write_soft_max
        )

    @property
    def is_backed_up(self) -> bool:
        """Whether data waits here because the kernel has no room for it."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closing or lost, so that sending is useless."""
        return self._closing

    def close(self, *, orderly: bool = True, kind: str = "owner", reason: str = "") -> None:
        """End the connection, with a log line; calling it again is harmless.

        Args:
            orderly: deliver everything sent so far, then hang up; if False, drop it all immediately, which the
                peer sees as a reset if the server asked for that.
            kind: the fixed word under which it is counted, such as ``leader_changed``.
            reason: text of the log line; by default the words of *kind*.
        """
        transport = self._transport
        if transport is not None and not self._closing and not transport.is_closing():
            reason = reason or kind.replace("_", " ")
            self._table.note_close(self, kind, reason, self._table.close_level)
        self._end(orderly=orderly)

    def close_if_overdue(self, now: float) -> None:
        """Close the connection if a time limit has passed at *now* (loop clock, seconds)."""
        limits = self._table.limits
        if self._closing:
            return
        half_since = self._half_frame_since
        if half_since is not None and now - half_since >= limits.half_frame_timeout_s:
            limit = f"{limits.half_frame_timeout_s:g} s"
            self._fail("half_frame", f"the rest of a frame did not arrive within {limit}")
        elif now - self._active_at >= limits.idle_timeout_s:
            # A peer that does not take its answers counts as idle, too, because waiting for it is useless.
            self.close(
                orderly=self.write_buffer_size == 0,
                kind="idle",
                reason=f"no traffic for {limits.idle_timeout_s:g} s",
            )

    def set_user_timeout(self, timeout_ms: int) -> None:
        """Make the kernel give up the peer if it acknowledges nothing for this long."""
        option = getattr(socket, "TCP_USER_TIMEOUT", None)  # Linux only; elsewhere idle time serves
        if option is not None and self._transport is not None:
            set_option(self._transport, socket.IPPROTO_TCP, option, timeout_ms)

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter the table, set the socket's options, and notify the handler."""
        self._transport = cast("StreamTransport", transport)
        if peer := transport.get_extra_info("peername"):
            self.peer = (plain_host(str(peer[0])), int(peer[1]))
        if name := transport.get_extra_info("sockname"):
            self.local = (plain_host(str(name[0])), int(name[1]))
        set_option(transport, socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_option(transport, socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if self._linger_reset:
            # If this process dies, the kernel resets its connections, so clients notice immediately.
            set_option(transport, socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        self._is_tls = transport.get_extra_info("sslcontext") is not None
        soft_max = self._table.limits.write_soft_max
        self._transport.set_write_buffer_limits(high=SLICE_SIZE if self._is_tls else soft_max)
        self._table.add(self)
        if self._is_tls:
            self._draw(TLS_CONNECTION_BYTES, "tls_connection")
        self._guard(lambda: self._handler.connection_made(self))
        if not peer:
            # The peer reset it before it was accepted. What the peer had sent could still be read, but its address is not known.
            self._traffic.errors["reset"] += 1
            self._end(orderly=False)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the next chunk."""
        view = self._table.read_view
        return view[:BUSY_READ_SIZE] if self._turns.has_waiters else view

    def buffer_updated(self, nbytes: int) -> None:
        """Cut the chunk into commands and hand them over, or keep it until that is possible."""
        if self._closing:
            return
        self._traffic.bytes_in += nbytes
        self._active_at = self.heard_at = now = self._loop.time()
        chunk = self._table.read_view[:nbytes]
        if not self._held and not self._is_blocked and self._turns.may_begin(now):
            self._serve(chunk)
        else:
            self._decode(chunk, 0)
            if self._held or self._broken or self._decoder.has_frame:
                self._wait()
            self._settle(begins=False)

    def resume(self) -> None:
        """Hand over the commands that are left, in a turn that has begun."""
        self._waits = False
        if not self._closing and not self._is_blocked:
            self._serve(b"")

    def eof_received(self) -> None:
        """Serve on for a while, because TLS reads its peer's good-bye with the last requests and then closes; the rest is dropped."""
        until = self._turns.goodbye_until(self._loop.time())
        while (self._held or self._decoder.has_frame) and self._loop.time() < until:
            if self._is_blocked or self._closing:
                return
            self._serve(b"")

    def give_up(self, reason: str) -> None:
        """Close, and drop the unfinished frame, because the budget of unfinished input (``inputbudget``) is full."""
        self._drawn_bytes = 0
        self._fail("input_budget", reason)
        self._decoder = FrameDecoder()
        self._held = []

    def take_back(self, reason: str) -> None:
        """Close, and drop what the peer has not taken, because the limit of unsent answers (``unsent``) is reached."""
        self._table.note_close(self, "output_budget", reason, logging.WARNING)
        self._end(orderly=False)

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read, unless this end opened the connection."""
        self._is_write_paused = True
        if self._on_room is not None:
            return
        self._is_blocked = True
        self._half_frame_since = None  # the rest may have come: this end does not read
        self._traffic.errors["write_paused"] += 1
        self._set_reading(False)

    def resume_writing(self) -> None:
        """Go on, because the peer has caught up."""
        self._is_write_paused = self._is_blocked = False
        self.taken_at = self._loop.time()
        self._flush()
        if self._closing or self._is_write_paused:
            return
        if self._on_room is not None:
            self._on_room()
        elif self._turns.may_begin(self._loop.time()):
            self._serve(b"")
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave the table and notify the handler."""
        self._closing = True
        self._pending, self._pending_size = [], 0
        self._held.clear()
        self._draw(0)
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        if isinstance(exc, OSError) and exc.errno == errno.ETIMEDOUT:
            reason = (
                "the peer does not acknowledge any data"  # our own limit, see `set_user_timeout`
            )
            self._table.note_close(self, "unacknowledged", reason, logging.INFO)
        elif exc is not None:
            self._traffic.errors["reset"] += 1
        self._table.discard(self)
        self._guard(lambda: self._handler.connection_lost(self))

    def _settle(self, *, begins: bool) -> None:
        """Draw on the budget for the kept input, of which a frame *begins* with this chunk; then read on or pause."""
        held, kept = self._held, self._decoder.buffered_bytes
        reads = not (held or self._waits or self._is_blocked)
        if not reads or not kept:
            self._half_frame_since = None
        elif begins or self._half_frame_since is None:
            self._half_frame_since = self._loop.time()
        if held:
            kept += sum(command.memory_bytes() for command in held)
        if kept or self._drawn_bytes:
            self._draw_for(kept, "waiting" if held else "half_frame", begins=begins)
        if reads is not self._reads:
            self._set_reading(reads)

    def _set_reading(self, reads: bool) -> None:
        transport = self._transport
        if transport is None or self._closing or transport.is_closing():
            return
        self._reads = reads
        if reads:
            transport.resume_reading()
        else:
            transport.pause_reading()

    def _wait(self) -> None:
        if not (self._waits or self._is_blocked or self._closing):
            self._waits = True
            self._turns.wait(self)

    def _draw_for(self, kept: int, use: str, *, begins: bool) -> None:
        if self._closing:
            return
        if not self._is_client and self.has_spoken:
            judge = self._table.is_client
            self._is_client = judge is None or judge(self)
        if begins:
            self._draw(0)  # the frame before is complete, so its age no longer counts
        base = TLS_CONNECTION_BYTES if self._is_tls and not self._is_client else 0
        self._draw(base + kept, use if kept else "tls_connection")

    def _draw(self, size: int, use: str = "") -> None:
        budget = self._table.budget
        if budget is None or size == self._drawn_bytes:
            return
        self._drawn_bytes = size
        if size:
            budget.hold(self, size, use, is_client=self._is_client)
        else:
            budget.release(self)

    def _serve(self, data: bytes | memoryview) -> None:
        """Hand over the held commands and then *data*, one by one; hold the commands for which the turn or the peer has no room."""
        turns, received = self._turns, self._handler.received
        commands = first = self._held or self._decode(data, DECODED_COUNT_MAX)
        self._held = []
        is_over = False
        self._receiving = True
        try:
            while commands and not self._held:
                self.has_spoken = True
                for place, command in enumerate(commands):
                    if is_over or self._is_blocked or self._closing:
                        self._held = commands[place:]
                        break
                    try:
                        received(self, command)
                    except Exception as error:
                        self._answer_failure(command, error)
                    is_over = turns.is_over(self._loop.time())
                else:
                    left = self._decoder.buffered_bytes
                    commands = self._decode(b"", DECODED_COUNT_MAX) if left else []
        finally:
            self._receiving = False
            self._flush()
        if self._held:
            self._wait()
        if self._decoder.buffered_bytes or self._drawn_bytes or self._waits or not self._reads:
            self._settle(begins=bool(first))
        else:
            self._half_frame_since = None
        if self._broken and not self._held:
            self._fail("frame", self._broken)

    def _decode(self, data: bytes | memoryview, count_max: int) -> list[RemotingCommand]:
        try:
            commands = self._decoder.receive_data(data, count_max)
        except FrameError as error:
            commands, self._broken = error.commands, str(error)
        self._traffic.frames_in += len(commands)
        return commands

    def _flush(self) -> None:
        pending, transport = self._pending, self._transport
        if not pending or transport is None or self._closing:
            return
        size, new = self._pending_size, self.sent_bytes - self._flushed_bytes
        self._flushed_bytes = self.sent_bytes
        waiting = transport.get_write_buffer_size()
        if waiting + size > self._table.limits.write_hard_max:
            reason = f"the peer does not read: {waiting + size} bytes are waiting"
            self._table.note_close(self, "slow_reader", reason, logging.WARNING)
            self._end(orderly=False)
            return
        if not waiting:
            self._active_at = self._loop.time()
        self._traffic.bytes_out += new
        if not (self._is_tls and self._is_write_paused):
            self._pending = []
            if size <= JOIN_SIZE_MAX or (_JOINS_ALL and not self._is_tls):
                transport.write(b"".join(pending))
            elif self._is_tls:
                self._pending = write_slices(transport, pending, lambda: self._is_write_paused)
            else:
                transport.writelines(pending)
            self._pending_size = sum(map(len, self._pending)) if self._pending else 0
        unsent = self._table.unsent
        unsent.written += new
        if unsent.written > unsent.look_at:
            unsent.look()

    def _end(self, *, orderly: bool = True) -> None:
        transport = self._transport
        if transport is None:
            return
        if not orderly:
            self._closing = True
            self._transport = None  # it still reports dropped bytes until the loop comes to it
            transport.abort()
            return
        if self._closing:
            return
        self._flush()
        if self._closing or transport.is_closing():  # the flush may have hit the hard limit
            return
        self._closing = True
        if self._linger_reset:
            set_option(transport, socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_OFF)
        # Only this direction is shut. If both were closed while the peer still writes, the kernel would send
        # a reset, which destroys answers that the peer has not read. What the peer writes is dropped.
        if not self._is_tls:
            try:
                transport.write_eof()
            except OSError:  # the peer has reset it and the loop has not read that yet
                transport.abort()
                return
            transport.resume_reading()
        else:
            # TLS has no half-closed state; its close delivers what was sent and says good-bye.
            transport.writelines(self._pending)
            self._pending, self._pending_size = [], 0
            transport.close()
        self._drain_timer = self._loop.call_later(self._table.limits.close_drain_s, transport.abort)

    def _answer_failure(self, command: RemotingCommand, error: Exception) -> None:
        self._traffic.errors["handler"] += 1
        _log.error("%r: the handler failed", self, exc_info=error)
        if not (command.is_response or command.is_oneway):
            self.send(failure_reply(command, error))

    def _guard(self, call: Callable[[], None]) -> None:
        try:
            call()
        except Exception:
            self._traffic.errors["handler"] += 1
            _log.exception("%r: the handler failed", self)

    def _fail(self, kind: str, reason: str) -> None:
        if self._closing:
            return
        self._table.note_close(self, kind, reason, logging.WARNING)
        self._end()
