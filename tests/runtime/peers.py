"""Peers for tests of the remoting client and server: a recording handler, and a bare socket as client."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from orderlymq_protocol.frame.codec import FrameDecoder, encode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.server import RemotingServer

# For things that happen by themselves within milliseconds; only a failure waits so long.
PATIENCE_S = 10.0

Serve = Callable[[Connection, RemotingCommand], None]


def echo(conn: Connection, command: RemotingCommand) -> None:
    conn.send(command.reply(0, {"echo": str(command.code)}, command.body))


def ignore(conn: Connection, command: RemotingCommand) -> None:
    """Never answer."""


class Recorder:
    """A handler that hands each request to *serve* and remembers what happened."""

    def __init__(self, serve: Serve = echo) -> None:
        self.serve = serve
        self.commands: list[RemotingCommand] = []
        self.made: list[Connection] = []
        self.lost: list[Connection] = []
        self.changed = asyncio.Condition()
        self._notices: set[asyncio.Task[None]] = set()

    def connection_made(self, conn: Connection) -> None:
        self.made.append(conn)
        self._notify()

    def received(self, conn: Connection, command: RemotingCommand) -> None:
        self.commands.append(command)
        self.serve(conn, command)
        self._notify()

    def connection_lost(self, conn: Connection) -> None:
        self.lost.append(conn)
        self._notify()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S), self.changed:
            await self.changed.wait_for(holds)

    def _notify(self) -> None:
        async def notify() -> None:
            async with self.changed:
                self.changed.notify_all()

        task = asyncio.get_running_loop().create_task(notify())
        self._notices.add(task)
        task.add_done_callback(self._notices.discard)


class BarePeer:
    """A client that is only a socket: it can send anything and refuse to read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._decoder = FrameDecoder()
        self._commands: list[RemotingCommand] = []

    async def send(self, *commands: RemotingCommand) -> None:
        self.writer.write(b"".join(map(encode, commands)))
        await self.writer.drain()

    async def receive(self) -> RemotingCommand:
        async with asyncio.timeout(PATIENCE_S):
            while not self._commands:
                data = await self.reader.read(1 << 20)
                if not data:
                    raise EOFError
                self._commands += self._decoder.receive_data(data)
        return self._commands.pop(0)

    async def until_closed(self) -> bytes:
        """Read everything up to the end of the stream."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read()
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def bare_peer(port: int) -> AsyncIterator[BarePeer]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield BarePeer(reader, writer)
    finally:
        writer.transport.abort()


@asynccontextmanager
async def listening(server: RemotingServer) -> AsyncIterator[int]:
    """Listen on a free port; at the end nothing may be open."""
    _, port = await server.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        async with asyncio.timeout(PATIENCE_S):
            await server.close()
        assert server.connections == []
        assert server.traffic.connections == 0


@asynccontextmanager
async def pair(
    serve: Serve, client: RemotingClient | None = None
) -> AsyncIterator[tuple[RemotingClient, str, Recorder, RemotingServer]]:
    """A client, and a server with its address; at the end neither may have anything open."""
    client = RemotingClient() if client is None else client
    handler = Recorder(serve)
    server = RemotingServer(handler)
    async with listening(server) as port:
        yield client, f"127.0.0.1:{port}", handler, server
        await client.close()
    assert client.traffic.connections == 0
