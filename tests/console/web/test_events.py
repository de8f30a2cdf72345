"""Viewers that follow a page: one that does not read is ended, and strangers end nobody."""

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from orderlymq.errors import OrderlyMQError
from orderlymq_console.app import Console
from orderlymq_console.settings import Account, ConsoleSettings
from orderlymq_console.web import events
from orderlymq_console.web.keys import SESSIONS, SETTINGS, VIEWERS
from orderlymq_console.web.sessions import WRONG_MAX, Sessions
from orderlymq_console.web.viewers import VIEWERS_MAX, Viewers
from tests.waiting import turns

TOKEN = "v" * 24


@asynccontextmanager
async def serving(
    render: Callable[[], Awaitable[str]], *accounts: Account
) -> AsyncIterator[web.AppRunner]:
    """Serve one page's events."""

    async def follow(request: web.Request) -> web.StreamResponse:
        return await events.stream(request, render)

    application = web.Application()
    application[SETTINGS] = ConsoleSettings(name_servers="127.0.0.1:1", accounts=accounts)
    application[SESSIONS] = Sessions(accounts)
    application[VIEWERS] = Viewers()
    application.router.add_get("/", follow)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield runner
    finally:
        await turns()
        await runner.cleanup()


async def test_a_viewer_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a viewer that does not read is ended, and its place and connection become free."""
    monkeypatch.setattr(events, "WRITE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(events, "EVERY_S", 0.01)
    pages = itertools.count()

    async def render() -> str:
        return f"{next(pages)}" + "x" * 400_000

    async with serving(render) as runner:
        server = runner.server
        assert server is not None
        with socket.create_connection(runner.addresses[0][:2]) as sleeper:
            sleeper.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(30.0):
                while not server.requests_count or server.connections:  # noqa: ASYNC110 - nothing signals it
                    await asyncio.sleep(0.01)

            assert runner.app[VIEWERS].count == 0


async def test_a_viewer_hears_something_each_time(
    monkeypatch: pytest.MonkeyPatch, browser: aiohttp.ClientSession
) -> None:
    """Law: each look sends an event: the page, a heartbeat if it is unchanged, or a failure until the page works again."""
    monkeypatch.setattr(events, "EVERY_S", 0.01)
    told: Iterator[str | None] = iter(["a", "a", "b", None, None, "b", "c"])

    async def render() -> str:
        text = next(told)
        if text is None:
            raise OrderlyMQError("away")
        return text

    async with serving(render) as runner, asyncio.timeout(30.0):
        host, port = runner.addresses[0][:2]
        async with browser.get(f"http://{host}:{port}/") as followed:
            heard = await followed.content.read()  # To the end: there is no eighth page.

    assert heard.decode().split("\n\n")[:-1] == [
        'event: live\ndata: "a"',
        'event: beat\ndata: ""',
        'event: live\ndata: "b"',
        'event: trouble\ndata: "away"',
        'event: trouble\ndata: "away"',
        'event: beat\ndata: ""',
        'event: live\ndata: "c"',
    ]


async def test_an_account_with_most_pages_gives_way_to_another(
    monkeypatch: pytest.MonkeyPatch, browser: aiohttp.ClientSession
) -> None:
    """Law: when all places are taken, the account with most open pages loses one for another account."""
    monkeypatch.setattr(events, "EVERY_S", 0.01)
    alice, bob = Account("alice", "act", "a" * 24), Account("bob", "view", "b" * 24)

    async def render() -> str:
        return "page"

    async with serving(render, alice, bob) as runner, asyncio.timeout(30.0):
        host, port = runner.addresses[0][:2]

        async def follow(account: Account) -> aiohttp.ClientResponse:
            headers = {"Authorization": f"Bearer {account.token}"}
            return await browser.get(f"http://{host}:{port}/", headers=headers)

        followed = [await follow(bob) for _ in range(VIEWERS_MAX)]
        assert [each.status for each in followed] == [200] * VIEWERS_MAX
        assert [(await follow(who)).status for who in (bob, alice, bob)] == [503, 200, 503]

        assert b"beat" in await followed[0].content.read()  # To the end.
        assert b"live" in await followed[1].content.readline()
        assert runner.app[VIEWERS].count == VIEWERS_MAX
        for each in followed:
            each.close()


async def test_wrong_tokens_of_strangers_end_no_viewer_and_keep_no_right_one_out(
    browser: aiohttp.ClientSession,
) -> None:
    """Law: wrong tokens of strangers neither end a viewer nor keep out a right token."""
    settings = ConsoleSettings(
        name_servers="127.0.0.1:1", port=0, accounts=(Account("bob", "view", TOKEN),)
    )
    async with Console(settings) as console:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with browser.get(f"{console.url}/events/overview", headers=headers) as followed:
            assert followed.status == 200
            for _ in range(WRONG_MAX + 1):
                await browser.post(f"{console.url}/sign-in", data={"token": "wrong"})

            async with asyncio.timeout(20.0):
                for _ in range(9):  # Three events.
                    assert await followed.content.readline() != b""
        async with browser.get(f"{console.url}/api/raft", headers=headers) as answer:
            assert answer.status == 200
