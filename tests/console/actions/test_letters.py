"""Dead letters on a real cluster: wait, release, redrive; a key's messages come in their first order."""

import asyncio
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
from tests.console.signedin import ALICE, fields, post, sign_in

RELEASE = "/groups/accounts/release?topic=orders&key=order-1&how=release"
REDRIVE = "/groups/accounts/redrive?topic=orders&key=order-1"
NO_TOPIC = "/groups/accounts/redrive?topic=&key=order-1"


class Accounts:
    """A group whose listener fails for one key until it is repaired."""

    def __init__(self, server: str) -> None:
        self.consumed: list[tuple[str | None, str]] = []
        self.is_repaired = False
        self.consumer = Consumer(
            "accounts",
            server,
            topics="orders",
            ordered=True,
            consume_from="first",
            listener=self._listen,
            settings=ConsumerSettings(max_reconsume_times=1),
        )

    def of(self, key: str) -> list[str]:
        return [text for each, text in self.consumed if each == key]

    def _listen(self, messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        for message in messages:
            if message.key == "order-1" and not self.is_repaired:
                raise ValueError("no such account")
            self.consumed.append((message.key, message.text))


@pytest.mark.cluster
async def test_a_key_goes_from_its_first_letter_back_into_order(
    tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: a key's letters get back in order: each step is offered in time, a redrive before the release is refused,
    nothing is sent twice.
    """
    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        server = cluster.name_server
        settings = ConsoleSettings(name_servers=server, port=0, accounts=(ALICE,))
        accounts = Accounts(server)
        async with (
            AdminClient(server) as admin,
            Producer(name_servers=server) as producer,
            Console(settings, io.StringIO()) as console,
        ):
            await admin.set_group(SubscriptionGroupConfig("accounts", on_dead_letter="HoldKey"))
            for step in ("created", "paid", "shipped"):
                for key in ("order-1", "order-2"):
                    await producer.send("orders", step, key=key)
            await sign_in(browser, console, ALICE)

            async def row(step: str) -> dict[str, Any]:
                """Return the key's row when its next step is this one."""
                while True:
                    async with browser.get(f"{console.url}/api/dead-letters/accounts") as answer:
                        rows = (await answer.json())["rows"]
                    if [(each["step"], each["letters"]["value"]) for each in rows] == [(step, 3)]:
                        found: dict[str, Any] = rows[0]
                        return found
                    await asyncio.sleep(0.2)

            async def act(path: str) -> str:
                form = await fields(browser, console, path) | {"confirm": "order-1"}
                status, html = await post(browser, console, path, form)
                assert status == 200, html
                return html

            async with accounts.consumer:
                found = await row("release")
                async with browser.get(console.url + REDRIVE) as answer:
                    assert answer.status == 400
                    assert "release it first" in await answer.text()
                async with browser.get(console.url + NO_TOPIC) as answer:
                    assert answer.status == 400
                    assert "do not name the topic" in await answer.text()
                accounts.is_repaired = True
                await act(RELEASE)
                await row("redrive")
                html = await act(REDRIVE)
                await row("done")
                while len(accounts.of("order-1")) < 3:  # noqa: ASYNC110 - nothing signals it
                    await asyncio.sleep(0.02)
                async with browser.get(console.url + REDRIVE) as answer:
                    assert answer.status == 404

    assert (found["key"], found["lag"]["value"]) == ("order-1", 0)
    assert "3 dead letters sent" in html
    assert accounts.of("order-1") == ["created", "paid", "shipped"]
    assert accounts.of("order-2") == ["created", "paid", "shipped"]


async def test_a_group_without_letters_says_so(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: a group without dead letters shows 0 (a known count)."""
    async with browser.get(f"{console.url}/api/dead-letters/billing") as answer:
        page = await answer.json()

    assert (page["total"]["value"], page["rows"]) == (0, [])


async def test_letters_that_nobody_can_count_are_unknown(
    lonely: Console, browser: aiohttp.ClientSession
) -> None:
    async with browser.get(f"{lonely.url}/api/dead-letters/billing") as answer:
        page = await answer.json()

    assert page["total"]["value"] is None
    assert page["total"]["unknown"]
