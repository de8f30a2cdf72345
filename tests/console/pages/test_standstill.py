"""A standing queue on a real cluster: the leader finds it, and pages show cause and cure."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_testing.cluster import Cluster


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(120)
async def test_a_blocked_queue_names_message_key_holder_error_and_what_is_behind(
    tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: a blocked queue has message, key, holder, error and what waits; the first page counts it, until it goes on."""
    is_repaired = threading.Event()

    def ship(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key == "order-2" and not is_repaired.is_set():
            raise ValueError("no address for this customer")

    with Cluster(tmp_path) as cluster:
        cluster.create_topic("orders", queues=1)
        server = cluster.name_server
        async with (
            Producer(name_servers=server) as producer,
            Consumer(
                "shipping",
                server,
                topics="orders",
                ordered=True,
                consume_from="first",
                listener=ship,
            ) as consumer,
            Console(ConsoleSettings(name_servers=server, port=0)) as console,
        ):
            results = [
                await producer.send("orders", "x", key=f"order-{number}") for number in range(5)
            ]
            page: dict[str, Any] = {"rows": []}
            while not page["rows"]:
                async with browser.get(f"{console.url}/api/blocked") as answer:
                    page = await answer.json()
                await asyncio.sleep(1)
            overview: dict[str, Any] = {"sentence": ""}
            while overview["sentence"] != "1 queue is blocked.":
                async with browser.get(f"{console.url}/api/overview") as answer:
                    overview = await answer.json()
                await asyncio.sleep(0.2)
            is_repaired.set()
            (row,) = page["rows"]
            while page["rows"]:
                async with browser.get(f"{console.url}/api/blocked") as answer:
                    page = await answer.json()
                await asyncio.sleep(1)

    assert (row["kind"], row["state"], row["group"], row["topic"], row["queue"]) == (
        "queue",
        "blocked",
        "shipping",
        "orders",
        0,
    )
    assert (row["offset"], row["key"], row["messageId"]) == (2, "order-2", results[2].message_id)
    assert (row["holder"], row["behind"]["value"]) == (consumer.client_id, 2)
    assert row["holderAddress"].startswith("127.0.0.1:")
    assert row["tries"] > 1
    assert "no address for this customer" in row["lastError"]
    assert consumer.client_id in row["todo"]


@pytest.mark.cluster
@pytest.mark.long
@pytest.mark.timeout(180)
async def test_a_standstill_lasts_over_a_change_of_leader(
    tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: a standstill lasts through a change of leader: the cluster is never healthy meanwhile, and the time stays."""

    def ship(_: Sequence[ReceivedMessage], __: OrderedContext) -> None:
        raise ValueError("no address for this customer")

    with Cluster(tmp_path, replicas=3) as cluster:
        cluster.create_topic("orders", queues=1)
        server = cluster.name_server

        async def ask(console: Console, page: str) -> dict[str, Any]:
            await asyncio.sleep(0.5)
            async with browser.get(f"{console.url}/api/{page}") as answer:
                found: dict[str, Any] = await answer.json()
                return found

        async with (
            Producer(name_servers=server) as producer,
            Consumer(
                "shipping",
                server,
                topics="orders",
                ordered=True,
                consume_from="first",
                listener=ship,
            ),
            Console(ConsoleSettings(name_servers=server, port=0)) as console,
        ):
            await producer.send("orders", "x", key="order-1")
            before = await ask(console, "blocked")
            while not before["rows"]:
                before = await ask(console, "blocked")
            cluster.kill_leader()
            states: set[str] = set()
            sentences: list[str] = []
            after: dict[str, Any] = {"leftOut": "not asked"}
            while not sentences or after["leftOut"] or after["missing"]:
                overview = await ask(console, "overview")
                states.add(overview["state"])
                sentences.append(overview["sentence"])
                after = await ask(console, "blocked")
                after["missing"] = [each for each in after["sources"] if each["unknown"]]

    assert "1 queue is blocked, and what else is blocked is unknown." in sentences
    assert "healthy" not in states
    (row,), (old,) = after["rows"], before["rows"]
    assert (row["offset"], row["sinceMs"]) == (old["offset"], old["sinceMs"])
    assert not [each for each in overview["changes"] if "makes progress again" in each["text"]]
