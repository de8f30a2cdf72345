"""Law: `/api` gives the same as the commands, because both use `orderlymq.admin`."""

import asyncio
import json
import sys
from typing import Any

import aiohttp
import pytest

from orderlymq_console.app import Console
from orderlymq_testing.cluster import Cluster
from tests.console.pages.test_pages import get

pytestmark = pytest.mark.cluster


async def command(cluster: Cluster, *words: str) -> Any:
    """Return what a command prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "orderlymq", *words, "--output", "json"),
        *("--name-server", cluster.name_server),
        stdout=asyncio.subprocess.PIPE,
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, words
    return json.loads(printed)


def place(row: dict[str, Any]) -> tuple[str, str, int]:
    return row["topic"], row["brokerGroup"], row["queue"]


async def test_a_topic(troubled: Cluster, console: Console, browser: aiohttp.ClientSession) -> None:
    """Law: for a topic: order, groups, and first offset and end of each queue."""
    printed = await command(troubled, "topic", "show", "orders")
    page = await get(browser, console, "/topics/orders")
    listed = await get(browser, console, "/topics?system=1")

    assert (page["ordered"], page["groups"]) == (printed["ordered"], printed["consumers"])
    assert [
        (row["brokerGroup"], row["queue"], row["head"]["value"], row["end"]["value"])
        for row in page["queues"]
    ] == [
        (row["brokerGroup"], row["queue"], row["minOffset"], row["maxOffset"])
        for row in printed["queues"]
    ]
    assert {row["topic"]: (row["queues"], row["ordered"]) for row in listed["rows"]} == {
        row["topic"]: (row["queues"], row["ordered"])
        for row in await command(troubled, "topic", "list", "--all")
    }


async def test_a_group(troubled: Cluster, console: Console, browser: aiohttp.ClientSession) -> None:
    """Law: for a group: offsets, lag, holder and epoch of each queue, and the number of lanes by state."""
    printed = await command(troubled, "group", "show", "billing")
    page = await get(browser, console, "/groups/billing")

    rows = {place(row): row for row in page["queues"]}
    assert {where: row["committed"]["value"] for where, row in rows.items()} == {
        place(row): row["committed"] for row in printed["queues"]
    }
    for row in printed["queues"]:
        shown = rows[place(row)]
        assert (shown["end"]["value"], shown["lag"]["value"]) == (row["maxOffset"], row["lag"])
        assert (shown["holder"], shown["epoch"]) == (row["holder"], row["epoch"])
    assert page["lag"]["value"] == printed["lag"]
    assert [row["clientId"] for row in page["members"]] == [
        row["clientId"] for row in printed["members"]
    ]
    assert page["retryMaxTimes"] == printed["retryMaxTimes"]
    for name in ("ready", "parked", "held", "deadLettering", "owed"):
        assert sum(row[name] for row in page["lanes"]) == printed["lanes"][name]


async def test_a_key(troubled: Cluster, console: Console, browser: aiohttp.ClientSession) -> None:
    """Law: for a key: its queue, and per group the committed offset, what waits and what comes next."""
    printed = await command(troubled, "explain", "orders", "order-3")
    page = await get(browser, console, "/key?topic=orders&key=order-3")

    assert (page["brokerGroup"], page["queue"], page["queues"], page["head"], page["end"]) == tuple(
        printed[name] for name in ("brokerGroup", "queue", "queues", "minOffset", "maxOffset")
    )
    assert [
        (row["group"], row["holder"], row["committed"]["value"], row["waiting"]["value"])
        for row in page["groups"]
    ] == [
        (row["group"], row["holder"], row["committed"], row["waiting"]) for row in printed["groups"]
    ]
    assert [(row["nextOfKey"], row["ahead"]) for row in page["groups"]] == [
        (row["nextOfKey"], row["ahead"]) for row in printed["groups"]
    ]


async def test_a_message(
    troubled: Cluster, console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: for a message: by its place on the page, by its id in the command."""
    messages = await get(browser, console, "/topics/orders/messages?key=order-3")
    where = f"queue={messages['brokerGroup']}:{messages['queue']}&offset={messages['rows'][0]['offset']}"
    row = (await get(browser, console, f"/message?topic=orders&{where}"))["row"]
    printed = await command(troubled, "message", "show", row["offsetMessageId"])

    # A pull adds the queue's ends.
    assert printed["properties"].items() <= row["properties"].items()
    assert (row["topic"], row["queue"], row["offset"]) == (
        printed["topic"],
        printed["queue"],
        printed["offset"],
    )
