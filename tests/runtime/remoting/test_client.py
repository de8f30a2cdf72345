"""The remoting client over real sockets: shared connections, and errors that say whether something may have been sent."""

import asyncio
import gc
import logging
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import (
    ANSWER_HEADER_SIZE_MAX,
    HEADER_SIZE_MAX,
    FrameDecoder,
    FrameError,
)
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import (
    ConnectFailed,
    ConnectionLost,
    RemotingClient,
    RequestTimeout,
)
from orderlymq_runtime.remoting.connection import LINGER_RESET, Connection
from orderlymq_runtime.sockets.addresses import split_address
from tests.runtime.peers import PATIENCE_S, echo, ignore, pair


async def test_concurrent_calls_share_one_connection_and_each_gets_its_own_answer() -> None:
    """Law: one connection per address, opened once; answers may come in any order."""
    held: list[RemotingCommand] = []

    def answer_backwards(conn: Connection, command: RemotingCommand) -> None:
        held.append(command)
        if len(held) == 100:
            for each in reversed(held):
                echo(conn, each)

    async with pair(answer_backwards) as (client, address, handler, _):
        answers = await asyncio.gather(
            *(client.invoke(address, request(n, body=b"%d" % n), PATIENCE_S) for n in range(100))
        )

        assert [answer.ext["echo"] for answer in answers] == [str(n) for n in range(100)]
        assert len(handler.made) == 1


async def test_a_call_does_not_change_the_command_it_sends() -> None:
    """Law: a call does not change the command that it sends, which may be in use elsewhere; each call has its own opaque."""
    command = RemotingCommand(310, opaque=77, ext={"a": "b"}, body=b"x")

    async with pair(echo) as (client, address, handler, _):
        await client.invoke(address, command, PATIENCE_S)
        await client.send_oneway(address, command)
        await client.invoke(address, command, PATIENCE_S)

        first, oneway, second = handler.commands

    assert command == RemotingCommand(310, opaque=77, ext={"a": "b"}, body=b"x")
    assert (first.ext, first.body) == (command.ext, command.body)
    assert len({first.opaque, oneway.opaque, second.opaque}) == 3
    assert [each.is_oneway for each in (first, oneway, second)] == [False, True, False]


@pytest.mark.parametrize(("count", "size"), [(50, 1 << 20), (20, 4 << 20)])
async def test_large_requests_with_large_answers_pass_each_other(count: int, size: int) -> None:
    """Law: large requests and large answers at the same time do not block each other."""
    body = bytes(size)

    async with pair(echo) as (client, address, _, _):
        answers = await asyncio.gather(
            *(client.invoke(address, request(n, body=body), PATIENCE_S) for n in range(count))
        )

        assert [(each.ext["echo"], len(each.body)) for each in answers] == [
            (str(n), size) for n in range(count)
        ]
        assert not client.traffic.errors


async def test_an_answer_with_a_long_header_is_read_and_a_longer_one_is_replaced() -> None:
    """Law: an answer with a long header is read; one that is too long is replaced by an error,
    and the shared connection stays.
    """

    def answer(conn: Connection, command: RemotingCommand) -> None:
        conn.send(command.reply(0, {"ids": "x" * command.code}))

    async with pair(answer) as (client, address, handler, _):
        for size in (HEADER_SIZE_MAX, ANSWER_HEADER_SIZE_MAX - 1_000, ANSWER_HEADER_SIZE_MAX):
            last = await client.invoke(address, request(size), PATIENCE_S)
            assert (len(last.ext.get("ids", "")) == size) is (size < ANSWER_HEADER_SIZE_MAX)
        with pytest.raises(FrameError, match="a header of"):
            await client.invoke(address, request(1, {"x": "x" * HEADER_SIZE_MAX}), PATIENCE_S)

        assert last.code == ResponseCode.SYSTEM_ERROR
        assert len(handler.made) == 1


@asynccontextmanager
async def sleepy_peer() -> AsyncIterator[tuple[str, asyncio.Event, list[RemotingCommand]]]:
    """A peer of one connection that reads only after the event is set, or the block ends; it lists what it reads."""
    wakes, ended = asyncio.Event(), asyncio.Event()
    commands: list[RemotingCommand] = []
    decoder = FrameDecoder()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await wakes.wait()
        with suppress(ConnectionResetError):
            while data := await reader.read(1 << 20):
                commands.extend(decoder.receive_data(data))
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    yield f"{host}:{port}", wakes, commands
    wakes.set()
    async with asyncio.timeout(PATIENCE_S):
        await ended.wait()
    server.close()
    await server.wait_closed()


# More than the kernel buffers for a peer that does not read.
_LARGE = bytes(15 << 20)


async def test_requests_wait_for_room_and_leave_in_the_order_of_the_calls() -> None:
    """Law: requests to a slow peer wait for room, keep their order and are not lost; cancelled ones are not sent."""
    async with sleepy_peer() as (address, wakes, commands):
        client = RemotingClient()
        await client.send_oneway(address, request(1, body=_LARGE))
        calls = [asyncio.create_task(client.send_oneway(address, request(n))) for n in range(2, 9)]
        await asyncio.sleep(0)
        calls[3].cancel()
        is_waiting = not any(call.done() for call in calls)
        await asyncio.sleep(0)
        wakes.set()
        await asyncio.gather(*calls, return_exceptions=True)
        await client.send_oneway(address, request(9))
        await client.close()

    assert is_waiting
    assert [each.code for each in commands] == [1, 2, 3, 4, 6, 7, 8, 9]


async def test_a_oneway_request_waits_for_room_as_long_as_for_a_connection() -> None:
    """Law: a oneway request waits for room no longer than the client's limit for connecting."""
    async with sleepy_peer() as (address, wakes, commands):
        client = RemotingClient(connect_timeout_s=0.5)
        await client.send_oneway(address, request(1, body=_LARGE))
        (late,) = await asyncio.gather(
            client.send_oneway(address, request(2)), return_exceptions=True
        )
        wakes.set()
        async with asyncio.timeout(PATIENCE_S):
            while not commands:  # noqa: ASYNC110 - the peer has no other sign
                await asyncio.sleep(0.01)
        await client.close()

    assert isinstance(late, RequestTimeout)
    assert "within 0.5 s" in str(late)
    assert [each.code for each in commands] == [1]


async def test_a_request_without_room_was_surely_not_sent() -> None:
    """Law: a call that waits for room ends with its timeout or the connection, and says that nothing was sent."""
    async with sleepy_peer() as (address, _, _):
        client = RemotingClient()
        await client.send_oneway(address, request(0))
        sent = asyncio.create_task(client.invoke(address, request(1, body=_LARGE), 60))
        lost = asyncio.create_task(client.invoke(address, request(2), 60))
        late = await asyncio.gather(
            client.invoke(address, request(3), 0.01), return_exceptions=True
        )
        conn = client.connection(address)
        assert conn is not None
        conn.close(orderly=False)
        outcomes = await asyncio.gather(sent, lost, return_exceptions=True)
        await client.close()

    assert [(type(each), getattr(each, "maybe_sent", None)) for each in [*late, *outcomes]] == [
        (RequestTimeout, False),
        (ConnectionLost, True),
        (ConnectionLost, False),
    ]


async def test_opaques_stay_positive_int32_when_the_counter_wraps() -> None:
    """Law: when the counter wraps an opaque is again a positive int32, and one that is still in use is skipped."""
    async with pair(ignore) as (client, address, handler, _):
        waiting = asyncio.create_task(client.invoke(address, request(1), PATIENCE_S))
        await handler.until(lambda: len(handler.commands) == 1)
        client._opaque = 2**31 - 2
        handler.serve = echo
        for _ in range(3):
            await client.invoke(address, request(2), PATIENCE_S)
        handler.serve = ignore
        waiting.cancel()

        assert [command.opaque for command in handler.commands] == [1, 2**31 - 1, 0, 2]


async def test_a_lost_connection_fails_all_calls_in_flight_immediately_and_the_next_call_connects() -> (
    None
):
    """Law: a lost connection fails all open calls immediately, with unknown outcome, and the next call connects again."""
    async with pair(ignore) as (client, address, handler, server):
        calls = [asyncio.create_task(client.invoke(address, request(1), 60)) for _ in range(64)]
        await handler.until(lambda: len(handler.commands) == 64)
        started = time.perf_counter()
        server.connections[0].close(orderly=False)
        results = await asyncio.gather(*calls, return_exceptions=True)
        elapsed = time.perf_counter() - started

        handler.serve = echo
        answer = await client.invoke(address, request(2), PATIENCE_S)

        assert all(type(result) is ConnectionLost and result.maybe_sent for result in results)
        assert elapsed < 30, "the time-out of 60 s was waited for"
        assert answer.ext == {"echo": "2"}
        assert len(handler.made) == 2


async def test_a_call_after_a_connection_was_given_up_opens_another() -> None:
    """Law: a call after a connection was given up opens a new one, even if the loop has not seen the old one's end."""
    async with pair(echo) as (client, address, handler, _):
        await client.invoke(address, request(1), PATIENCE_S)
        connection = client.connection(address)
        assert connection is not None
        connection.close(orderly=False)

        answer = await client.invoke(address, request(2), PATIENCE_S)

        assert answer.ext == {"echo": "2"}
        assert len(handler.made) == 2


async def test_an_address_that_refuses_fails_immediately_and_surely_got_nothing() -> None:
    """Law: a refused connection fails the call immediately, and says that nothing was sent."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        client = RemotingClient()
        started = time.perf_counter()

        results = await asyncio.gather(
            *(client.invoke(address, request(1), 60) for _ in range(10)),
            client.send_oneway(address, request(1)),
            return_exceptions=True,
        )
        elapsed = time.perf_counter() - started
        await client.close()

    assert [type(result) for result in results] == [ConnectFailed] * 11
    assert not any(getattr(result, "maybe_sent", True) for result in results)
    assert address in str(results[0])
    assert elapsed < 30, "the time-out of 60 s was waited for"


async def test_a_look_up_that_was_given_up_ends_unheard() -> None:
    """Law: a name look-up that fails after its caller has given up leaves no unhandled exception."""
    loop = asyncio.get_running_loop()
    reported: list[str] = []
    loop.set_exception_handler(lambda _, found: reported.append(str(found)))
    client = RemotingClient(connect_timeout_s=0.0001)

    with pytest.raises(ConnectFailed):
        await client.invoke("nobody.invalid:9876", request(1), PATIENCE_S)
    for _ in range(4):  # The look-up threads; each one waits behind a look-up that was given up.
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("nobody.invalid", 9876)
    await client.close()
    gc.collect()
    await asyncio.sleep(0)

    assert reported == []


@pytest.mark.parametrize(
    "address", ["", "127.0.0.1", "host:", ":1", "[]:1", "host:99999", "host:x"]
)
async def test_an_address_that_is_none_fails_like_one_that_refuses(address: str) -> None:
    """Law: an invalid address (from a route or a user) fails the call with an error."""
    client = RemotingClient()

    with pytest.raises(ConnectFailed, match="is not host:port"):
        await client.invoke(address, request(1), 1)
    await client.close()


def test_addresses_may_be_names_or_of_version_6() -> None:
    """Law: in an address, a name or IPv6 too, the port is after the last colon."""
    assert split_address("broker-0.svc:10911") == ("broker-0.svc", 10911)
    assert split_address("[::1]:9876") == ("::1", 9876)
    with pytest.raises(ValueError, match=r"'a\.\.b:9876' is not host:port"):
        split_address("a..b:9876")  # No look-up accepts it.


async def test_a_call_without_answer_times_out_and_its_late_answer_is_dropped() -> None:
    """Law: after a timeout the outcome is unknown, the late answer is dropped, and the connection is kept."""
    late: list[tuple[Connection, RemotingCommand]] = []

    async with pair(lambda conn, command: late.append((conn, command))) as (
        client,
        address,
        handler,
        _,
    ):
        with pytest.raises(RequestTimeout) as caught:
            await client.invoke(address, request(1), 0.5)
        await handler.until(lambda: len(late) == 1)
        handler.serve = echo
        echo(*late[0])
        answer = await client.invoke(address, request(2), PATIENCE_S)

        assert caught.value.maybe_sent
        assert answer.ext == {"echo": "2"}
        assert client.traffic.errors == {"timeout": 1, "late_response": 1}
        assert len(handler.made) == 1


async def test_a_peer_that_accepts_nothing_is_given_up_before_anything_was_sent() -> None:
    """Law: connecting counts in the timeout; a call that never connected says that nothing was sent."""
    with socket.socket() as full:
        # A queue of length 0 holds one connection; further SYNs are dropped.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        name = full.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(name)
        slow, patient = RemotingClient(connect_timeout_s=0.05), RemotingClient()
        address = f"127.0.0.1:{name[1]}"

        with pytest.raises(ConnectFailed, match=r"no answer within 0\.05 s"):
            await slow.invoke(address, request(1), 5)
        with pytest.raises(RequestTimeout, match=r"no connection .* within 0\.05 s") as caught:
            await patient.invoke(address, request(1), 0.05)

        assert not caught.value.maybe_sent
        await slow.close()
        await patient.close()
        for filler in fillers:
            filler.close()


async def test_a_cancelled_caller_leaves_the_shared_attempt_to_the_others() -> None:
    """Law: a caller that is cancelled while connecting does not end the attempt for others."""
    async with pair(echo) as (client, address, handler, _):
        first = asyncio.create_task(client.invoke(address, request(1), PATIENCE_S))
        second = asyncio.create_task(client.invoke(address, request(2), PATIENCE_S))
        await asyncio.sleep(0)
        first.cancel()

        assert (await second).ext == {"echo": "2"}
        with pytest.raises(asyncio.CancelledError):
            await first
        assert len(handler.made) == 1


async def test_requests_of_the_server_are_answered_unless_oneway() -> None:
    """Law: the client answers a server's requests, except oneway ones, which get not even an error."""
    seen: list[int] = []

    def on_request(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        seen.append(command.code)
        if command.code == 666:
            raise RuntimeError("not here")
        return command.reply(0, body=b"running")

    def serve(conn: Connection, command: RemotingCommand) -> None:
        if command.is_response:
            return
        conn.send(RemotingCommand(307, opaque=1000))
        conn.send(RemotingCommand(40, opaque=1001, flag=2))
        conn.send(RemotingCommand(666, opaque=1002))
        conn.send(RemotingCommand(666, opaque=1003, flag=2))
        echo(conn, command)

    async with pair(serve, RemotingClient(on_request)) as (client, address, handler, _):
        await client.invoke(address, request(34), PATIENCE_S)
        await handler.until(lambda: len(handler.commands) == 3)
        answers = [(each.opaque, each.code, each.body) for each in handler.commands[1:]]

    assert seen == [307, 40, 666, 666]
    assert answers == [(1000, 0, b"running"), (1002, 1, b"")]


async def test_a_client_that_serves_nothing_says_so() -> None:
    """Law: a client without a handler answers each request with code 3."""

    def serve(conn: Connection, command: RemotingCommand) -> None:
        if not command.is_response:
            conn.send(RemotingCommand(307, opaque=5))

    async with pair(serve) as (client, address, handler, _):
        await client.send_oneway(address, request(34))
        await handler.until(lambda: len(handler.commands) == 2)
        answer = handler.commands[1]

    assert (answer.code, answer.remark) == (3, " request type 307 not supported")


async def test_closing_the_client_fails_what_waits_and_what_comes() -> None:
    """Law: close() fails all waiting calls and all later ones."""
    async with pair(ignore) as (client, address, handler, _):
        waiting = asyncio.create_task(client.invoke(address, request(1), 60))
        await handler.until(lambda: len(handler.commands) == 1)
        await client.close()

        with pytest.raises(ConnectionLost, match="the client was closed"):
            await waiting
        with pytest.raises(ConnectFailed, match="the client is closed"):
            await client.invoke(address, request(1), 1)


async def test_closing_while_connecting_ends_the_attempt() -> None:
    """Law: close() also ends an attempt to connect, and leaves no task."""
    async with pair(echo) as (client, address, _, _):
        call = asyncio.create_task(client.invoke(address, request(1), PATIENCE_S))
        await asyncio.sleep(0)
        await client.close()

        with pytest.raises((ConnectFailed, ConnectionLost)):
            await call


async def test_closing_right_after_the_peer_has_reset_the_connection_closes_it() -> None:
    """Law: close() ends a connection even if the kernel knows of the peer's reset before the loop does."""
    client = RemotingClient()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        await client.send_oneway(address, request(1))
        accepted, _ = listener.accept()
        await asyncio.to_thread(accepted.recv, 1)  # The request has left; nothing waits here.
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, LINGER_RESET)
        accepted.close()
        conn = client.connection(address)
        assert conn is not None
        conn.close()

        async with asyncio.timeout(PATIENCE_S):
            await client.close()

    assert client.traffic.connections == 0


async def test_garbage_from_a_server_fails_the_calls_immediately(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Law: garbage from a server fails the open calls immediately."""

    def serve(conn: Connection, command: RemotingCommand) -> None:
        conn.send_bytes([b"HTTP/1.1 400 Bad Request\r\n\r\n"])

    async with pair(serve) as (client, address, _, _):
        with caplog.at_level(logging.ERROR), pytest.raises(ConnectionLost):
            await client.invoke(address, request(1), PATIENCE_S)


async def test_a_caller_that_is_cancelled_while_the_client_closes_is_cancelled() -> None:
    """Law: a caller that is cancelled while the client closes gets its cancellation."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        client = RemotingClient()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        call = asyncio.create_task(client.invoke(address, request(1), 60))
        await asyncio.sleep(0)
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0)
        call.cancel()
        await closing

        with pytest.raises(asyncio.CancelledError):
            await call


async def test_a_connection_that_is_given_up_fails_the_calls_of_its_address() -> None:
    """Law: giving up a connection fails its calls immediately, without waiting for their timeouts."""
    lost: list[str] = []
    client = RemotingClient(on_connection_lost=lost.append)
    async with pair(ignore, client) as (_, address, handler, _):
        call = asyncio.create_task(client.invoke(address, request(1), 60))
        await handler.until(lambda: len(handler.commands) == 1)
        connection = client.connection(address)
        assert connection is not None
        connection.close(orderly=False)

        with pytest.raises(ConnectionLost):
            await call
        assert client.connection(address) is None
        assert lost == [address]
