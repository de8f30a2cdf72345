"""Who follows a page: a viewer that does not read, and one whose token is not looked at any more, are ended."""

import asyncio
import itertools
import socket

import aiohttp
import pytest
from aiohttp import web

from orderlymq_console.app import Console
from orderlymq_console.settings import Account, ConsoleSettings
from orderlymq_console.web import events
from orderlymq_console.web.keys import SETTINGS, VIEWERS
from orderlymq_console.web.sessions import WRONG_MAX
from orderlymq_console.web.viewers import Viewers

TOKEN = "v" * 24


async def test_a_viewer_that_does_not_read_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: neither its place nor its connection is kept behind what it does not read."""
    monkeypatch.setattr(events, "WRITE_TIMEOUT_S", 0.1)
    monkeypatch.setattr(events, "EVERY_S", 0.01)
    pages = itertools.count()

    async def render() -> str:
        return f"{next(pages)}" + "x" * 400_000

    async def follow(request: web.Request) -> web.StreamResponse:
        return await events.stream(request, render)

    application = web.Application()
    application[SETTINGS] = ConsoleSettings(name_servers="127.0.0.1:1")
    application[VIEWERS] = viewers = Viewers()
    application.router.add_get("/", follow)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    server = runner.server
    assert server is not None
    try:
        with socket.create_connection(runner.addresses[0][:2]) as sleeper:
            sleeper.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            async with asyncio.timeout(5.0):
                while not server.requests_count or server.connections:  # noqa: ASYNC110 - nobody tells it
                    await asyncio.sleep(0.01)

            assert viewers.count == 0
    finally:
        await runner.cleanup()


async def test_a_viewer_whose_token_is_not_looked_at_any_more_is_ended(
    browser: aiohttp.ClientSession,
) -> None:
    """Law: its events end as at the end of a session, not amid an answer."""
    settings = ConsoleSettings(
        name_servers="127.0.0.1:1", port=0, accounts=(Account("bob", "view", TOKEN),)
    )
    async with Console(settings) as console:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with browser.get(f"{console.url}/events/overview", headers=headers) as followed:
            assert followed.status == 200
            await followed.content.readline()
            for _ in range(WRONG_MAX):
                await browser.post(f"{console.url}/sign-in", data={"token": "wrong"})

            async with asyncio.timeout(20.0):
                rest = await followed.content.read()

    assert b"HTTP/1.1" not in rest
