"""Connections on which calls time out: which ones the client keeps, and which it replaces."""

import asyncio
import time
from contextlib import suppress

import pytest

from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import ConnectionLost, RemotingClient, RequestTimeout
from orderlymq_runtime.remoting.connection import Connection
from orderlymq_runtime.sockets.addresses import split_address
from tests.faultyproxy import DOWN, UP, Way, faulty_proxy
from tests.runtime.peers import PATIENCE_S, echo, pair


@pytest.mark.parametrize("way", [UP, DOWN])
@pytest.mark.parametrize("timeout_s", [0.05, 0.4])
async def test_a_connection_that_says_nothing_any_more_is_followed_by_another(
    way: Way, timeout_s: float
) -> None:
    """Law: a connection on which nothing comes any more (a proxy lost its other side) is replaced,
    however short the calls are.
    """
    client = RemotingClient(silence_max_s=0.3)
    async with (
        pair(echo, client) as (_, address, _handler, _server),
        faulty_proxy(split_address(address)) as proxy,
    ):
        await client.invoke(proxy.address, request(1), PATIENCE_S)
        proxy.hold(way)
        held = asyncio.create_task(client.invoke(proxy.address, request(2), 60))

        async with asyncio.timeout(PATIENCE_S):
            while True:
                with suppress(RequestTimeout, ConnectionLost):
                    await client.invoke(proxy.address, request(3), timeout_s)
                    break

        with pytest.raises(ConnectionLost) as caught:
            await held
        assert caught.value.maybe_sent
        assert proxy.accepted == 2


async def test_a_connection_on_which_something_comes_is_kept_however_late_its_answers_are() -> None:
    """Law: a connection on which anything arrives is kept, however late its answers are; the server is only slow."""

    def speak(conn: Connection, command: RemotingCommand) -> None:
        conn.send(RemotingCommand(40, flag=2))

    client = RemotingClient(silence_max_s=0.1)
    async with pair(speak, client) as (_, address, handler, _server):
        for _ in range(4):
            with pytest.raises(RequestTimeout):
                await client.invoke(address, request(1), 0.1)

        assert len(handler.made) == 1


async def test_a_connection_is_kept_while_its_server_says_that_it_is_there() -> None:
    """Law: a connection is kept while its server shows that it is there, as with a disk that hangs."""

    pings = []

    def answer_pings(conn: Connection, command: RemotingCommand) -> None:
        if command.code == RequestCode.ORDERLYMQ_PING:
            pings.append(command)
            conn.send(command.reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    client = RemotingClient(silence_max_s=0.1)
    async with pair(answer_pings, client) as (_, address, handler, _server):
        waiting = asyncio.create_task(client.invoke(address, request(1), 60))
        for _ in range(4):
            with pytest.raises(RequestTimeout):
                await client.invoke(address, request(2), 0.5)

        assert (len(handler.made), waiting.done()) == (1, False)
        assert pings
        assert client.traffic.errors == {"timeout": 4}, "the answer to a ping is no error"
        waiting.cancel()


async def test_a_connection_is_kept_while_calls_expire_behind_what_it_still_sends() -> None:
    """Law: a connection is kept while calls time out behind a large request that is still being sent."""
    client = RemotingClient(silence_max_s=0.3)
    async with (
        pair(echo, client) as (_, address, handler, _server),
        faulty_proxy(split_address(address)) as slow,
    ):
        await client.invoke(slow.address, request(1), PATIENCE_S)
        slow.piece, slow.delays_s[UP] = 1 << 14, 0.002
        large = request(2, body=bytes(8 << 20))
        sent = [asyncio.create_task(client.invoke(slow.address, large, 60)) for _ in range(2)]
        await asyncio.sleep(0)
        for _ in range(2):
            with pytest.raises(RequestTimeout):
                await client.invoke(slow.address, request(3), 0.4)
        slow.heal()
        await asyncio.gather(*sent)

        assert len(handler.made) == 1


async def test_a_silent_connection_is_given_up_however_much_is_sent_on_it() -> None:
    """Law: a silent connection is replaced however much is sent on it; a proxy may accept everything."""
    client = RemotingClient(silence_max_s=0.3)
    async with (
        pair(echo, client) as (_, address, _handler, _server),
        faulty_proxy(split_address(address)) as proxy,
    ):
        proxy.swallows = True
        large = request(2, body=bytes(8 << 20))
        async with asyncio.timeout(PATIENCE_S):
            while proxy.accepted < 2:
                calls = [client.invoke(proxy.address, large, 0.3) for _ in range(2)]
                await asyncio.gather(*calls, return_exceptions=True)


async def test_a_connection_is_kept_when_this_process_has_stood_still() -> None:
    """Law: after this process itself stood still, what has arrived is read before a connection is judged."""
    client = RemotingClient(silence_max_s=0.1)
    async with pair(echo, client) as (_, address, handler, _server):
        await client.invoke(address, request(1), PATIENCE_S)
        call = asyncio.create_task(client.invoke(address, request(2), 0.1))
        await handler.until(lambda: len(handler.commands) == 2)
        time.sleep(0.3)  # noqa: ASYNC251 - the loop shall stand still
        with suppress(RequestTimeout):
            await call
        await asyncio.sleep(0.3)
        await client.invoke(address, request(3), PATIENCE_S)

        assert len(handler.made) == 1
