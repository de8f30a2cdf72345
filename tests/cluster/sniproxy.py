"""A gateway that chooses its target by the server name in a client's TLS greeting, as TLSRoute of the Gateway API does."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

HOST: Final = "127.0.0.1"
_GREETING_MAX: Final = 1 << 14
_PIECE: Final = 1 << 16


@dataclass
class Gateway:
    """A gateway that forwards all bytes unchanged.

    Attributes:
        routes: the target address of each host name.
        seen: the names that clients have asked for; None for a greeting without one.
    """

    routes: Mapping[str, tuple[str, int]]
    port: int = 0
    seen: set[str | None] = field(default_factory=set)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, asyncio.IncompleteReadError):
            greeting = bytearray()
            while (name := server_name(bytes(greeting))) == "" and len(greeting) < _GREETING_MAX:
                piece = await reader.read(_PIECE)
                if not piece:
                    return
                greeting += piece
            self.seen.add(name)
            if name not in self.routes:
                return
            behind, ahead = await asyncio.open_connection(*self.routes[name or ""])
            with closing(ahead):
                ahead.write(greeting)
                ways = [
                    asyncio.create_task(_pass_on(reader, ahead)),
                    asyncio.create_task(_pass_on(behind, writer)),
                ]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
                    await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()


def server_name(greeting: bytes) -> str | None:
    """Return the server name of a TLS greeting, None if it has none, and "" while the greeting is incomplete."""
    found: list[str | None] = []

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> int:
        found.append(name)
        return ssl.ALERT_DESCRIPTION_INTERNAL_ERROR  # not a handshake

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming = ssl.MemoryBIO()
    incoming.write(greeting)
    with suppress(ssl.SSLError):
        context.wrap_bio(incoming, ssl.MemoryBIO(), server_side=True).do_handshake()
    return found[0] if found else ""


@asynccontextmanager
async def gateway(routes: Mapping[str, tuple[str, int]]) -> AsyncIterator[Gateway]:
    """Run a gateway with *routes*."""
    made = Gateway(routes)
    server = await asyncio.start_server(made._accept, HOST, 0)
    made.port = server.sockets[0].getsockname()[1]
    async with server:
        yield made


def resolve(monkeypatch: pytest.MonkeyPatch, domain: str) -> None:
    """Resolve all names of *domain* to the gateway, as a DNS entry would."""
    look_up = socket.getaddrinfo

    def answer(host: Any, *words: Any, **more: Any) -> Any:
        named = isinstance(host, str) and host.endswith(f".{domain}")
        return look_up(HOST if named else host, *words, **more)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
