"""
Limits of an HTTP server's connections: how many, how much memory each may hold, how long one may occupy the event loop.

Rules: if there is one connection too many, the oldest is closed. aiohttp gets the headers of the next request only after it has
answered the one before. Otherwise it would parse 32 requests ahead, whose headers any stranger can fill. Headers that are too
long, or take too long, end their connection. What a connection keeps is drawn on the budget.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final, cast

from aiohttp import StreamReader, web
from aiohttp.http import HttpProcessingError
from aiohttp.typedefs import Handler

from orderlymq_runtime.sockets.inputbudget import InputBudget
from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)

_MALFORMED: Final = (HttpProcessingError, web.RequestPayloadError)
# aiohttp would log a traceback for each malformed request, and strangers can send any number of them.
_http_log = _log.getChild("http")
_http_log.addFilter(
    lambda record: not record.exc_info or not isinstance(record.exc_info[1], _MALFORMED)
)

# The headers of one request. A browser sends 20 headers with 2 KiB, and proxies add some; nginx passes on 32 KiB by default.
HEAD_BYTES_MAX: Final = 64 << 10
_HEADERS_MAX: Final = 64
_HEADER_BYTES_MAX: Final = 8190
_READ_BYTES: Final = 16 << 10
#: How long headers may take to arrive; browsers send them in one packet.
HEAD_S: Final = 10.0
# Memory of aiohttp and of a form or an answer under way.
_BASE_BYTES: Final = 32 << 10
# aiohttp keeps a header as bytes and as text, whose characters take four bytes each if one of them is beyond the BMP.
_BYTES_FOR_EACH: Final = 5
_END_OF_HEAD: Final = b"\r\n\r\n"


def runner(application: web.Application, **more: Any) -> web.AppRunner:
    """Return a runner whose parser inflates nothing and has the limits that `Callers` relies on; *more* goes to aiohttp."""
    return web.AppRunner(
        application,
        access_log=None,
        logger=_http_log,
        auto_decompress=False,
        max_headers=_HEADERS_MAX,
        max_field_size=_HEADER_BYTES_MAX,
        read_bufsize=_READ_BYTES,
        **more,
    )


class Callers:
    """The open connections of one server, oldest first; a listener gets `accept`.

    Args:
        make: returns aiohttp's protocol of a connection.
        connections_max: how many may be open.
        budget: the budget on which their memory is drawn.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        connections_max: int,
        budget: InputBudget,
    ) -> None:
        self._make = make
        self._connections_max = connections_max
        self._budget = budget
        self._open: dict[_Caller, None] = {}

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of the next connection."""
        return _Caller(self._make(), self)

    def enter(self, caller: "_Caller") -> None:
        """Add a connection; if there are too many, close the oldest."""
        self._open[caller] = None
        self.draw(caller, 0)
        if len(self._open) > self._connections_max:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.give_up("the oldest HTTP connection, closed because there are too many")

    def leave(self, caller: "_Caller") -> None:
        """Give back what a connection held."""
        self._open.pop(caller, None)
        self._budget.release(caller)

    def draw(self, caller: "_Caller", size: int) -> None:
        """Record what a connection keeps in addition to what each one takes."""
        self._budget.hold(caller, _BASE_BYTES + size, "http")


@web.middleware
async def let_loop_turn(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the loop turn before each request of a connection, because aiohttp does not do so from Python 3.12 on."""
    await asyncio.sleep(0)
    caller = None if request.transport is None else request.transport.get_protocol()
    if not isinstance(caller, _Caller):
        return await handler(request)
    caller.begin(request)
    try:
        return await handler(request)
    finally:
        caller.end()


def note_refusal(reason: str) -> None:
    """Log why a connection is not served."""
    # Port scanners and plain probes come often; a probe that matters shows as not ready.
    _log.debug("HTTP: %s", reason)


class _Caller(asyncio.Protocol):
    """One connection, which passes its bytes to aiohttp one request after the other."""

    def __init__(self, inner: asyncio.Protocol, callers: Callers) -> None:
        self._inner = inner
        self._callers = callers
        self._transport: StreamTransport | None = None
        # Bytes that came and that aiohttp does not have yet.
        self._rest = b""
        self._is_paused = False
        # The header bytes that came of the next request, the last of them, and the size of the headers of the present request.
        self._head_bytes = 0
        self._tail = b""
        self._served_bytes = 0
        self._deadline: asyncio.TimerHandle | None = None
        # True from the end of a request's headers until the request is answered.
        self._is_busy = False
        # What is still to come of its body: the size, or, if none was given, the body, which knows when it is complete.
        self._body_left = 0
        self._body: StreamReader | None = None

    def give_up(self, reason: str) -> None:
        """Close it to make room for others."""
        note_refusal(reason)
        if self._transport is not None:
            self._transport.abort()

    def begin(self, request: web.BaseRequest) -> None:
        """Let a request be answered, and let its body come."""
        self._stop_clock()
        self._served_bytes, self._head_bytes = self._head_bytes, 0
        size = request.content_length
        self._body_left, self._body = (size, None) if size is not None else (0, request.content)
        self._feed()

    def end(self) -> None:
        """Let the next request come, after the body of this one."""
        self._served_bytes = 0
        self._is_busy = False
        self._feed()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("StreamTransport", transport)
        self._inner.connection_made(transport)
        self._callers.enter(self)

    def data_received(self, data: bytes) -> None:
        self._rest += data
        self._feed()

    def _feed(self) -> None:
        transport = self._transport
        assert transport is not None, "a connection exists before anything is read"
        if transport.is_closing():
            return
        if self._is_paused:
            # Resumed before aiohttp reads, because aiohttp may pause reading by itself.
            self._is_paused = False
            transport.resume_reading()
        while self._rest and not transport.is_closing():
            if self._body_left:
                size = min(self._body_left, len(self._rest))
                self._body_left -= size
            elif self._body is not None and not self._body.is_eof():
                size = _READ_BYTES
            elif self._is_busy:
                break
            else:
                size = self._head_part()
            part, self._rest = self._rest[:size], self._rest[size:]
            self._inner.data_received(part)
        if transport.is_closing():
            return
        self._callers.draw(
            self, _BYTES_FOR_EACH * (self._served_bytes + self._head_bytes) + len(self._rest)
        )
        if self._rest and not transport.is_closing():
            # If nothing waits, reading goes on, to notice when the caller leaves.
            self._is_paused = True
            transport.pause_reading()

    def _head_part(self) -> int:
        """Return how much of the rest belongs to the headers of the next request."""
        if self._deadline is None:
            self._deadline = asyncio.get_running_loop().call_later(
                HEAD_S, self.give_up, f"the headers did not arrive within {HEAD_S:g} s"
            )
        found = (self._tail + self._rest).find(_END_OF_HEAD)
        self._is_busy = found >= 0
        size = len(self._rest)
        if self._is_busy:
            size = found + len(_END_OF_HEAD) - len(self._tail)
        self._tail = b"" if self._is_busy else (self._tail + self._rest)[1 - len(_END_OF_HEAD) :]
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            self.give_up(f"the headers have more than {HEAD_BYTES_MAX} bytes")
        return size

    def _stop_clock(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self._callers.leave(self)
        # Called after the task that the last data has woken, because aiohttp's raises if it finds the connection gone before it begins.
        asyncio.get_running_loop().call_soon(self._inner.connection_lost, exc)
