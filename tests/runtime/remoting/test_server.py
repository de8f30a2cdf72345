"""The remoting server over real sockets: trouble with one peer affects only that peer."""

import asyncio
import logging
import resource
import signal
import socket
import struct
import subprocess
import sys

import pytest

from orderlymq_protocol.frame.codec import encode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.remoting.connectiontable import ConnectionLimits
from orderlymq_runtime.remoting.server import PortInUseError, RemotingServer
from tests.runtime.peers import PATIENCE_S, Recorder, bare_peer, echo, ignore, listening
from tests.waiting import turns


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x80\x00\x00\x00\x00\x00\x00\x00",
        struct.pack(">II", 2**31 - 1, 10),
        struct.pack(">II", 6, 2) + b"no",
        struct.pack(">II", 6, 2 | 9 << 24) + b"{}",
        struct.pack(">II", 0, 0),
    ],
    ids=["http", "negative", "2 GiB", "not JSON", "serialize type", "empty"],
)
async def test_garbage_closes_its_connection_and_no_other(
    garbage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Law: bytes that are not the protocol end their connection, with one log line, and no other one."""
    server = RemotingServer(Recorder(echo))
    async with listening(server) as port, bare_peer(port) as good, bare_peer(port) as bad:
        await good.send(RemotingCommand(1, opaque=1))
        await good.receive()
        with caplog.at_level(logging.WARNING):
            bad.writer.write(garbage)
            rest = await bad.until_closed()

        await good.send(RemotingCommand(2, opaque=2, body=b"still here"))
        answer = await good.receive()

    assert rest == b""
    assert (answer.opaque, answer.body) == (2, b"still here")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert server.traffic.errors["frame"] == 1


async def test_what_a_peer_sent_that_was_gone_before_it_was_accepted_is_not_served() -> None:
    """Law: requests of a peer that was gone before it was accepted are not served, because it has no address."""
    served: list[tuple[str, int]] = []
    handler = Recorder(lambda conn, command: served.append(conn.peer))
    async with listening(RemotingServer(handler)) as port:
        with socket.create_connection(("127.0.0.1", port)) as gone:
            gone.sendall(encode(RemotingCommand(34, opaque=1)))
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await handler.until(lambda: bool(handler.lost))

    assert ("", 0) not in served


async def test_silent_and_half_finished_connections_are_swept() -> None:
    """Law: a connection with half a frame is closed after 30 s, a silent one after 120 s; an active one stays."""
    handler = Recorder(echo)
    server = RemotingServer(handler)
    async with listening(server) as port, bare_peer(port) as half, bare_peer(port) as idle:
        # One whole frame first: its answer proves that the half one was read, too.
        frame = encode(RemotingCommand(10, body=bytes(100)))
        half.writer.write(frame + frame[:50])
        await half.receive()
        await idle.send(RemotingCommand(1))
        await idle.receive()
        now = asyncio.get_running_loop().time()

        server.sweep(now + 31)
        assert await half.until_closed() == b""
        await idle.send(RemotingCommand(1))
        await idle.receive()
        server.sweep(now + 121)
        assert await idle.until_closed() == b""

    assert server.traffic.errors == {"half_frame": 1, "idle": 1}


async def test_a_peer_that_never_reads_costs_bounded_memory() -> None:
    """Law: a peer that never reads costs bounded memory: nothing more is read from it, and in the end it is closed."""
    limits = ConnectionLimits(write_soft_max=1 << 20, write_hard_max=32 << 20, close_drain_s=0.1)
    sizes: list[int] = []

    def serve(conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, body=bytes(256 * 1024)))
        sizes.append(conn.write_buffer_size)

    handler = Recorder(serve)
    server = RemotingServer(handler, limits=limits)
    async with listening(server) as port, bare_peer(port) as greedy, bare_peer(port) as good:
        # Without drain: what the server does not read stays here and in the kernel.
        greedy.writer.write(encode(RemotingCommand(11)) * 20_000)
        greedy.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both directions
        await handler.until(lambda: bool(sizes) and sizes[-1] > limits.write_soft_max)

        handler.serve = echo
        await good.send(RemotingCommand(5, opaque=5))
        assert (await good.receive()).opaque == 5
        server.sweep(asyncio.get_running_loop().time() + 121)
        await handler.until(lambda: len(handler.lost) == 2)

    # At most one slice of answers above the limit, never all of them.
    assert max(sizes) <= limits.write_soft_max + 33 * 256 * 1024
    assert len(sizes) < 1_000


async def test_a_peer_to_which_too_much_is_sent_is_closed() -> None:
    """Law: a connection that exceeds the hard write limit ends, whichever side sends."""
    handler = Recorder(ignore)
    server = RemotingServer(handler, limits=ConnectionLimits(write_hard_max=8 << 20))
    async with listening(server) as port, bare_peer(port) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both directions
        await handler.until(lambda: len(handler.made) == 1)
        (conn,) = server.connections
        for opaque in range(100):
            conn.send(RemotingCommand(40, opaque=opaque, body=bytes(1 << 20)))
            assert conn.write_buffer_size <= 8 << 20
            await asyncio.sleep(0)
        await handler.until(lambda: len(handler.lost) == 1)

    assert server.traffic.errors["slow_reader"] == 1


async def test_a_slow_reader_below_the_hard_limit_gets_everything() -> None:
    """Law: a slow reader below the hard limit gets every answer."""
    limits = ConnectionLimits(write_soft_max=256 * 1024)

    def serve(conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, body=bytes(200_000)))

    server = RemotingServer(Recorder(serve), limits=limits)
    async with listening(server) as port, bare_peer(port) as peer:
        for opaque in range(100):
            await peer.send(RemotingCommand(11, opaque=opaque))
        answers = [(await peer.receive()).opaque for _ in range(100)]

    assert answers == list(range(100))


async def test_an_orderly_close_delivers_pending_answers_although_the_peer_goes_on_sending() -> (
    None
):
    """Law: an orderly close delivers all pending answers, even with linger reset and while the peer sends on."""
    body = bytes(3_000_000)

    def serve(conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, body=body))
        conn.close()

    server = RemotingServer(Recorder(serve), linger_reset=True)
    async with listening(server) as port, bare_peer(port) as peer:
        await peer.send(RemotingCommand(1, opaque=1))
        peer.writer.write(encode(RemotingCommand(2)) * 2_000)
        answer = await peer.receive()
        rest = await peer.until_closed()

    assert (answer.opaque, answer.body) == (1, body)
    assert rest == b""


async def test_closing_the_server_delivers_what_was_answered() -> None:
    """Law: closing the server first delivers what was answered on every connection."""
    handler = Recorder(ignore)
    server = RemotingServer(handler, linger_reset=True)
    async with listening(server) as port, bare_peer(port) as one, bare_peer(port) as two:
        await one.send(RemotingCommand(1, opaque=1))
        await two.send(RemotingCommand(1, opaque=2))
        await handler.until(lambda: len(handler.commands) == 2)
        for conn in server.connections:
            conn.send(RemotingCommand(11, opaque=9).reply(0, body=bytes(500_000)))
        closing = asyncio.create_task(server.close())
        answers = [await one.receive(), await two.receive()]
        one.writer.close()
        two.writer.close()
        await closing

    assert [len(answer.body) for answer in answers] == [500_000, 500_000]


async def test_who_calls_while_the_server_closes_cannot_hold_the_close_up() -> None:
    """Law: a connection that is accepted in the same iteration as the close ends like the others."""
    handler = Recorder(echo)
    server = RemotingServer(handler, limits=ConnectionLimits(close_drain_s=0.05))
    async with listening(server) as port, bare_peer(port):
        await handler.until(lambda: len(handler.made) == 1)
        with socket.create_connection(("127.0.0.1", port)):
            await turns(2)  # asyncio has accepted it, but the server does not know it yet.
            async with asyncio.timeout(PATIENCE_S):
                await server.close()

    assert len(handler.made) == 2
    assert handler.lost == handler.made


async def test_a_peer_that_does_not_hang_up_cannot_hold_a_close_up() -> None:
    """Law: a peer that does not hang up delays an orderly close at most for the drain time."""
    handler = Recorder(echo)
    server = RemotingServer(handler, limits=ConnectionLimits(close_drain_s=0.05))
    async with listening(server) as port, bare_peer(port):
        await handler.until(lambda: len(handler.made) == 1)
        async with asyncio.timeout(PATIENCE_S):
            await server.close()


async def test_what_the_kernel_has_taken_is_delivered_after_the_drain_time_is_over() -> None:
    """Law: what the kernel has taken is still delivered after the drain time; an orderly close never ends in a reset."""
    handler = Recorder(echo)
    server = RemotingServer(handler, linger_reset=True, limits=ConnectionLimits(close_drain_s=0.05))
    async with listening(server) as port, bare_peer(port) as peer:
        peer.writer.transport.pause_reading()  # type: ignore[attr-defined]  # a transport of both directions
        await peer.send(RemotingCommand(1, opaque=1, body=bytes(1_000_000)))
        await handler.until(lambda: len(handler.commands) == 1)
        await server.close()
        peer.writer.transport.resume_reading()  # type: ignore[attr-defined]  # the same
        answer = await peer.receive()

        assert (answer.opaque, len(answer.body)) == (1, 1_000_000)
        assert await peer.reader.read() == b""


async def test_closing_the_listeners_keeps_the_connections() -> None:
    """Law: closing the listeners keeps the connections; a demoted leader still answers what it has."""
    server = RemotingServer(Recorder(echo))
    async with listening(server) as port, bare_peer(port) as peer:
        await peer.send(RemotingCommand(1))
        await peer.receive()
        await server.close_listeners()

        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        await peer.send(RemotingCommand(2, opaque=2))
        assert (await peer.receive()).opaque == 2
        # The successor can have the port immediately.
        successor = RemotingServer(Recorder(echo))
        assert await successor.listen("127.0.0.1", port) == ("127.0.0.1", port)
        await successor.close()


async def test_a_port_in_use_is_named_with_what_to_do() -> None:
    """Law: a port in use is named, with what to do."""
    server, second = RemotingServer(Recorder()), RemotingServer(Recorder())
    async with listening(server) as port:
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use: stop"):
            await second.listen("127.0.0.1", port)


async def test_connections_over_the_limit_are_closed_immediately() -> None:
    """Law: connections above the limit are closed immediately, and existing ones stay."""
    server = RemotingServer(Recorder(echo), connections_max=1)
    async with listening(server) as port, bare_peer(port) as first:
        await first.send(RemotingCommand(1))
        await first.receive()
        async with bare_peer(port) as second:
            assert await second.until_closed() == b""
        await first.send(RemotingCommand(2, opaque=2))
        assert (await first.receive()).opaque == 2

    assert server.traffic.errors["too_many_connections"] == 1


@pytest.mark.parametrize("said", [[], [RemotingCommand(1)]], ids=["silent", "not served"])
async def test_the_oldest_that_was_never_served_gives_way(said: list[RemotingCommand]) -> None:
    """Law: if unserved connections hold all places, the oldest of them is closed for a new one; served ones stay."""
    handler = Recorder(echo)
    served: set[Connection] = set()
    server = RemotingServer(handler, connections_max=3, is_client=served.__contains__)
    async with (
        listening(server) as port,
        bare_peer(port) as client,
        bare_peer(port) as first,
        bare_peer(port) as second,
    ):
        await client.send(RemotingCommand(1))
        await client.receive()
        served.add(handler.made[0])
        for stranger in (first, second):
            for command in said:
                await stranger.send(command)
                await stranger.receive()
        async with bare_peer(port) as third:
            assert await first.until_closed() == b""
            for peer in (third, client, second):
                await peer.send(RemotingCommand(2, opaque=2))
                assert (await peer.receive()).opaque == 2
            assert len(server.connections) == 3

    assert (
        server.traffic.errors["crowded_out"],
        server.traffic.errors["too_many_connections"],
    ) == (1, 0)


async def test_thousands_of_idle_connections_do_no_harm() -> None:
    """Law: 2,000 idle connections disturb nothing; `trouble/test_crowds.py` tests 10,000 with a broker."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    count = 2_000  # Two descriptors each, in this one process.
    handler = Recorder(echo)
    server = RemotingServer(handler, limits=ConnectionLimits(close_drain_s=0.1))
    sockets: list[socket.socket] = []
    try:
        async with listening(server) as port:
            for number in range(count):
                sock = socket.create_connection(("127.0.0.1", port))
                sockets.append(sock)
                if number % 1_000 == 999:
                    await handler.until(lambda: len(handler.made) == len(sockets))
            await handler.until(lambda: len(handler.made) == count)
            async with bare_peer(port) as peer:
                await peer.send(RemotingCommand(1, opaque=1))
                assert (await peer.receive()).opaque == 1
            now = asyncio.get_running_loop().time()
            server.sweep(now + 60)
            assert server.traffic.connections >= count
            for sock in sockets:
                sock.close()
            await handler.until(lambda: len(handler.lost) == count + 1)
    finally:
        for sock in sockets:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


CRASHING_SERVER = """
import asyncio, sys
from orderlymq_runtime.remoting.server import RemotingServer
from tests.runtime.peers import Recorder, echo

async def main():
    server = RemotingServer(Recorder(echo), linger_reset=sys.argv[1] == "reset")
    print((await server.listen("127.0.0.1", 0))[1], flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize(("mode", "expected"), [("reset", ConnectionResetError), ("fin", b"")])
def test_a_killed_server_resets_its_connections(
    mode: str, expected: bytes | type[Exception]
) -> None:
    """Law: with linger reset a killed server resets its connections, which fails calls immediately;
    without it they end normally.
    """
    process = subprocess.Popen(
        [sys.executable, "-c", CRASHING_SERVER, mode], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
            sock.sendall(encode(RemotingCommand(1)))
            assert sock.recv(1 << 16)
            process.send_signal(signal.SIGKILL)
            try:
                found: bytes | type[Exception] = sock.recv(1)
            except ConnectionResetError as error:
                found = type(error)

    assert found == expected
