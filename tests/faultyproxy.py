"""
A proxy between two ends of TCP that acknowledges everything and does with the bytes what a test wants.

Kernels notice a cable that is cut, for nobody acknowledges what they send. They notice nothing of a proxy, a load
balancer or a sidecar that has lost its other side: each end has a healthy connection with it.
"""

import asyncio
import socket
import struct
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

HOST: Final = "127.0.0.1"
_PIECE: Final = 1 << 16
_RESET: Final = struct.pack("ii", 1, 0)

Way = Literal["up", "down"]
UP: Final = "up"  # to whom is called
DOWN: Final = "down"
WAYS: Final[tuple[Way, Way]] = (UP, DOWN)


class FaultyProxy:
    """One proxy to one address; its faults are changed at any time.

    Attributes:
        target: where new connections lead.
        piece: bytes that are passed on at a time.
        delays_s: how much later what is read arrives, by direction.
        cuts: after so many further bytes of a direction, the connection that carries them is reset at both ends.
        swallows: what comes is read and goes nowhere.
        passed: bytes that were passed on, by direction.
        accepted: how many connections were made.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.port = 0
        self.piece = _PIECE
        self.delays_s: dict[Way, float] = {}
        self.cuts: dict[Way, int] = {}
        self.swallows = False
        self.passed: Counter[Way] = Counter()
        self.accepted = 0
        self._held_when_new: tuple[Way, ...] = ()
        self._relays: set[_Relay] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def open(self) -> int:
        """Return how many connections there are."""
        return len(self._relays)

    def hold(self, *ways: Way, new: bool = False) -> None:
        """Pass on nothing more in these directions, on the connections that exist, and with *new* on those to come."""
        for relay in self._relays:
            for way in ways:
                relay.gates[way].clear()
        if new:
            self._held_when_new = ways

    def heal(self) -> None:
        """Pass everything on again, what was held first."""
        self._held_when_new = ()
        self.swallows = False
        self.piece = _PIECE
        self.delays_s.clear()
        self.cuts.clear()
        for relay in self._relays:
            for gate in relay.gates.values():
                gate.set()

    def reset(self) -> None:
        """Reset every connection at both ends."""
        for task in self._tasks:
            task.cancel()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.accepted += 1
        self._tasks.add(task)
        # Cancelled by `reset` alone; the loop would report what a callback of a server raises.
        with suppress(asyncio.CancelledError, OSError):
            await self._relay(reader, writer)
        self._tasks.discard(task)
        await _abort(writer)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind, ahead = await asyncio.open_connection(*await self._target(reader, writer))
        relay = _Relay(self, writer, ahead)
        for way in self._held_when_new:
            relay.gates[way].clear()
        self._relays.add(relay)
        try:
            await relay.run(reader, behind)
        finally:
            self._relays.discard(relay)
            await _abort(ahead)

    async def _target(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int]:
        """Return where a new connection leads."""
        return self.target

    async def _close(self) -> None:
        self.reset()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class SocksProxy(FaultyProxy):
    """A proxy whose clients say by SOCKS 5 where each connection leads; *target* is not used."""

    def __init__(self) -> None:
        super().__init__(("", 0))

    async def _target(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> tuple[str, int]:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(b"\5\0")
        _, _, _, kind = await reader.readexactly(4)
        # An IPv4 address, or a name behind its length.
        size = 4 if kind == 1 else (await reader.readexactly(1))[0]
        said = await reader.readexactly(size)
        port = int.from_bytes(await reader.readexactly(2), "big")
        writer.write(b"\5\0\0\1" + bytes(6))

        return (socket.inet_ntoa(said) if kind == 1 else said.decode()), port


class _Relay:
    """One connection through the proxy."""

    def __init__(
        self, proxy: FaultyProxy, near: asyncio.StreamWriter, far: asyncio.StreamWriter
    ) -> None:
        self.gates: dict[Way, asyncio.Event] = {way: asyncio.Event() for way in WAYS}
        for gate in self.gates.values():
            gate.set()
        self._proxy = proxy
        self._near, self._far = near, far

    async def run(self, front: asyncio.StreamReader, behind: asyncio.StreamReader) -> None:
        """Pass on in both directions until one end hangs up, which the other learns as a reset."""
        ways = [
            asyncio.create_task(self._pass_on(UP, front, self._far)),
            asyncio.create_task(self._pass_on(DOWN, behind, self._near)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(
        self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        proxy = self._proxy
        with suppress(OSError):
            while data := await reader.read(proxy.piece):
                if proxy.swallows:
                    continue
                await asyncio.sleep(proxy.delays_s.get(way, 0))
                await self.gates[way].wait()
                left = proxy.cuts.get(way)
                if left is not None and left <= len(data):
                    del proxy.cuts[way]
                    writer.write(data[:left])
                    await writer.drain()
                    return
                if left is not None:
                    proxy.cuts[way] = left - len(data)
                writer.write(data)
                await writer.drain()
                proxy.passed[way] += len(data)


async def _abort(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    with suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
    with suppress(OSError):
        await writer.wait_closed()


@asynccontextmanager
async def faulty_proxy(target: tuple[str, int]) -> AsyncIterator[FaultyProxy]:
    """Listen on a port that the kernel chooses."""
    async with listening(FaultyProxy(target)) as proxy:
        yield proxy


@asynccontextmanager
async def listening(proxy: FaultyProxy) -> AsyncIterator[FaultyProxy]:
    """Let a proxy listen on a port that the kernel chooses."""
    server = await asyncio.start_server(proxy._accept, HOST, 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy
    finally:
        server.close()
        await proxy._close()
