"""What connections to an HTTP server may keep in memory, for any caller."""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from orderlymq_runtime.pages import callers
from orderlymq_runtime.pages.callers import HEAD_BYTES_MAX, Callers, let_loop_turn, runner
from orderlymq_runtime.sockets.inputbudget import InputBudget

MIB = 1 << 20
PATIENCE_S = 10.0
GET = b"GET / HTTP/1.1\r\nHost: x\r\n"


class Site:
    """Pages that answer when the test allows it."""

    def __init__(self) -> None:
        self.budget = InputBudget(bytes_max=2 * MIB, strangers_max=MIB)
        self.may_answer = asyncio.Event()
        self.asked = 0
        self.port = 0

    async def answer(self, request: web.Request) -> web.Response:
        self.asked += 1
        await self.may_answer.wait()
        return web.Response(text=f"<{len(await request.read())}>")

    async def call(self, said: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(said)
        return reader, writer


@asynccontextmanager
async def site() -> AsyncIterator[Site]:
    made = Site()
    application = web.Application(middlewares=[let_loop_turn])
    application.router.add_route("*", "/", made.answer)
    running = runner(application, shutdown_timeout=0.1)
    await running.setup()
    assert running.server is not None
    listener = await asyncio.get_running_loop().create_server(
        Callers(running.server, 100, made.budget).accept, "127.0.0.1", 0
    )
    made.port = listener.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        made.may_answer.set()
        listener.close()
        await running.cleanup()


async def read_out(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(PATIENCE_S):
        with contextlib.suppress(ConnectionResetError):
            return await reader.read()
    return b""


def headers(size: int) -> bytes:
    one = b"x-%03d: " + b"a" * 990 + b"\r\n"
    return b"".join(one % number for number in range(size // 999))


async def test_headers_without_end_end_their_connection() -> None:
    """Law: a request whose headers exceed the limit ends its connection; aiohttp alone would keep 1 MiB, twice."""
    async with site() as pages:
        reader, writer = await pages.call(GET + headers(HEAD_BYTES_MAX - 1_000))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await reader.read(1)
        writer.write(headers(2_000))

        assert await read_out(reader) == b""
        writer.close()


async def test_headers_that_do_not_come_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a connection whose headers stay incomplete ends within seconds, at its first request or a later one."""
    monkeypatch.setattr(callers, "HEAD_S", 0.5)
    async with site() as pages:
        pages.may_answer.set()
        for before, answers in ((b"", 0), (GET + b"\r\n", 1)):
            reader, writer = await pages.call(before + GET)
            assert (await read_out(reader)).count(b"<0>") == answers
            writer.close()


async def test_a_request_that_takes_its_time_keeps_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a slow request keeps its connection: the time limit is for its headers,
    and does not run for the next request meanwhile.
    """
    monkeypatch.setattr(callers, "HEAD_S", 1.0)
    async with site() as pages:
        reader, writer = await pages.call(GET + b"\r\n" + GET)
        await asyncio.sleep(2.0)
        writer.write(b"Connection: close\r\n\r\n")
        pages.may_answer.set()

        assert (await read_out(reader)).count(b"<0>") == 2
        writer.close()


async def test_what_follows_a_request_waits_until_it_is_answered() -> None:
    """Law: a connection keeps one request and the next in memory; aiohttp would parse 32 ahead (8 MiB of headers here)."""
    async with site() as pages:
        tracemalloc.start()
        try:
            reader, writer = await pages.call(GET + b"\r\n")
            more = (GET + headers(HEAD_BYTES_MAX - 2_000) + b"\r\n") * 30
            before, _ = tracemalloc.get_traced_memory()
            for start in range(0, len(more), 4096):
                writer.write(more[start : start + 4096])
            for _ in range(200):
                await asyncio.sleep(0.001)
            kept = tracemalloc.get_traced_memory()[0] - before
        finally:
            tracemalloc.stop()
        # Most of it is still in this writer, once.
        assert kept < len(more) + MIB
        assert pages.asked == 1
        pages.may_answer.set()
        answers = b""
        async with asyncio.timeout(PATIENCE_S):
            while answers.count(b"<0>") < 31:
                part = await reader.read(1 << 16)
                assert part
                answers += part
        writer.close()


@pytest.mark.parametrize("size", [1, 300_000])
async def test_requests_with_bodies_follow_each_other(size: int) -> None:
    """Law: each request gets its own body, however the bytes are cut, and the next request is answered too."""
    post = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % size
    post += (b"\r\n" * size)[:size]
    async with site() as pages:
        pages.may_answer.set()
        for step in (len(post), 7_001):
            reader, writer = await pages.call(b"")
            said = post * 3 + GET + b"Connection: close\r\n\r\n"
            for start in range(0, len(said), step):
                writer.write(said[start : start + step])
                await asyncio.sleep(0)
            answers = await read_out(reader)
            assert (answers.count(b"<%d>" % size), answers.count(b"<0>")) == (3, 1)
            writer.close()


async def test_strangers_that_keep_half_of_their_headers_are_kept_within_the_budget() -> None:
    """Law: if incomplete headers of all strangers exceed the budget, the oldest connection ends."""
    async with site() as pages:
        crowd = [await pages.call(GET + headers(HEAD_BYTES_MAX - 2_000)) for _ in range(12)]

        assert await read_out(crowd[0][0]) == b""

        assert 0 < pages.budget.strangers.held <= pages.budget.strangers_max
        for _, writer in crowd:
            writer.transport.abort()
    assert pages.budget.strangers.held == 0


async def test_who_asks_and_hangs_up_at_once_leaves_no_traceback() -> None:
    """Law: a caller that asks and hangs up at once leaves no traceback, although uvloop reports both in one iteration."""
    failures: list[str] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: failures.append(str(context)))
    accepted: list[asyncio.Protocol] = []
    async with site() as made:
        application = web.Application()
        running = runner(application, shutdown_timeout=0.1)
        await running.setup()
        assert running.server is not None
        listening = Callers(running.server, 100, made.budget)

        def accept() -> asyncio.BaseProtocol:
            caller = listening.accept()
            assert isinstance(caller, asyncio.Protocol)
            accepted.append(caller)
            return caller

        listener = await loop.create_server(accept, "127.0.0.1", 0)
        made.port = listener.sockets[0].getsockname()[1]
        reader, writer = await made.call(b"GET /")
        while not accepted:  # noqa: ASYNC110 - nothing signals it
            await asyncio.sleep(0)

        accepted[0].data_received(b" HTTP/1.1\r\nHost: x\r\n\r\n")
        accepted[0].connection_lost(None)
        writer.close()
        await read_out(reader)
        listener.close()
        await running.cleanup()
    gc.collect()
    await asyncio.sleep(0)
    loop.set_exception_handler(None)

    assert failures == []
