"""A cluster with problems, and a console that looks at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_testing.cluster import Cluster
from tests.console.chromium import launched
from tests.console.reach import OPTION, ReachTable
from tests.console.signedin import ALICE, BOB, Log

if TYPE_CHECKING:
    from playwright.async_api import Browser

HOSTILE_KEY = "<script>document.title='owned'</script>"
HOSTILE_BODY = '"><img src=x onerror="document.title=\'owned\'">'
HOSTILE_ERROR = "<b onmouseover=alert(1)>the card service refuses</b>"


#: A folder for pictures of each tested page, at each width.
PICTURES = "--console-pictures"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(PICTURES, type=Path, help="save a picture of each page of the console here")
    parser.addoption(
        OPTION, action="store_true", help="write docs/evidence/console.md from this run"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION, default=False):
        config.pluginmanager.register(ReachTable())


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with orders of several keys; the group billing (by key) holds the lane of order-3 after one try."""
    with Cluster(tmp_path_factory.mktemp("console")) as cluster:
        cluster.create_topic("orders")
        asyncio.run(_make_trouble(cluster.name_server))
        yield cluster


async def _make_trouble(name_server: str) -> None:
    async with Producer(name_servers=name_server) as producer:
        for number in range(24):
            body = json.dumps({"order": number, "amount": 12345678901234567890})
            await producer.send("orders", body, key=f"order-{number % 4}")
        await producer.send("orders", HOSTILE_BODY, key=HOSTILE_KEY)
        await producer.send("orders", b"\x00\x01\xff\xfe", key="binary")
    await hold_lane(name_server, "billing")


async def hold_lane(name_server: str, group: str) -> None:
    """Consume orders by key until only the lane of order-3 is held."""
    async with AdminClient(name_server) as admin:
        by_key = SubscriptionGroupConfig(group, concurrency="Key", on_dead_letter="HoldKey")
        await admin.set_group(by_key)

        def listen(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
            if messages[0].key == "order-3":
                raise RuntimeError(HOSTILE_ERROR)

        async with Consumer(
            group,
            name_server,
            topics="orders",
            ordered="key",
            consume_from="first",
            listener=listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        ):
            while not await _only_the_held_is_owed(admin, group):  # noqa: ASYNC110 - nothing signals it
                await asyncio.sleep(0.02)


async def _only_the_held_is_owed(admin: AdminClient, group: str) -> bool:
    table = await admin.lanes(group)
    scanned = sum(row.scanned for row in table.queues)
    return scanned == 26 and sum(row.owed for row in table.queues) == 6


@pytest.fixture
async def console(troubled: Cluster) -> AsyncIterator[Console]:
    """A console of that cluster, started as by `orderlymq console`."""
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0)
    async with Console(settings) as running:
        yield running


@pytest.fixture
async def lonely() -> AsyncIterator[Console]:
    """A console whose name server does not answer."""
    async with Console(ConsoleSettings(name_servers="127.0.0.1:1", port=0)) as running:
        yield running


@pytest.fixture
async def browser() -> AsyncIterator[aiohttp.ClientSession]:
    """An HTTP client that keeps cookies and follows no redirects."""
    jar = aiohttp.CookieJar(unsafe=True)  # Cookies of an IP address.
    many = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(cookie_jar=jar, connector=many) as session:
        yield session


@pytest.fixture
async def chromium() -> AsyncIterator[Browser]:
    """A headless browser."""
    async with launched() as running:
        yield running


@pytest.fixture
def log() -> Log:
    return Log()


@pytest.fixture
async def guarded(troubled: Cluster, log: Log) -> AsyncIterator[Console]:
    """A console with two accounts."""
    settings = ConsoleSettings(name_servers=troubled.name_server, port=0, accounts=(ALICE, BOB))
    async with Console(settings, log) as running:
        yield running
