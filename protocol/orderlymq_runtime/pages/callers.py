"""The connections of an HTTP server: how many may be open, that the oldest goes when one more comes, and that none keeps the loop."""

import asyncio
import logging
from collections.abc import Callable
from typing import cast

from aiohttp import web
from aiohttp.typedefs import Handler

from orderlymq_runtime.sockets.inputbudget import InputBudget
from orderlymq_runtime.sockets.streamtransport import StreamTransport

_log = logging.getLogger(__name__)


class Callers:
    """The open connections of one server, oldest first; give `accept` to who listens.

    Args:
        make: returns aiohttp's protocol of a connection.
        connections_max: how many may be open.
        connection_bytes: what each may keep, drawn on *budget* where there is one.
    """

    def __init__(
        self,
        make: Callable[[], asyncio.Protocol],
        connections_max: int,
        *,
        connection_bytes: int = 0,
        budget: InputBudget | None = None,
    ) -> None:
        self._make = make
        self._connections_max = connections_max
        self._connection_bytes = connection_bytes
        self._budget = budget
        self._open: dict[_Caller, None] = {}

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of the next connection."""
        return _Caller(self._make(), self)

    def enter(self, caller: "_Caller") -> None:
        """Take a connection in; the oldest goes when there are too many."""
        self._open[caller] = None
        if self._budget is not None:
            self._budget.hold(caller, self._connection_bytes, "http")
        if len(self._open) > self._connections_max:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.give_up("the oldest HTTP connection: too many call")

    def leave(self, caller: "_Caller") -> None:
        """Give back what a connection held."""
        self._open.pop(caller, None)
        if self._budget is not None:
            self._budget.release(caller)


@web.middleware
async def let_loop_turn(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the loop turn before each request of a connection, as aiohttp does not from Python 3.12 on."""
    await asyncio.sleep(0)
    return await handler(request)


def note_refusal(reason: str) -> None:
    """Log why a connection is not served."""
    # Port scanners and plain probes come often; one that matters shows as not ready.
    _log.debug("HTTP: %s", reason)


class _Caller(asyncio.Protocol):
    """One connection, counted around what aiohttp does with it."""

    def __init__(self, inner: asyncio.Protocol, callers: Callers) -> None:
        self._inner = inner
        self._callers = callers
        self._transport: StreamTransport | None = None

    def give_up(self, reason: str) -> None:
        """Close it for the sake of others."""
        note_refusal(reason)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Enter it."""
        self._transport = cast("StreamTransport", transport)
        self._inner.connection_made(transport)
        self._callers.enter(self)

    def data_received(self, data: bytes) -> None:
        """Let aiohttp read."""
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Let aiohttp decide."""
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        """Let aiohttp wait."""
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Let aiohttp go on."""
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take it out."""
        self._callers.leave(self)
        self._inner.connection_lost(exc)
