"""A failover of a real cluster: the first page shows it for an hour, and a group's page shows it between its lock changes."""

import asyncio
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orderlymq import Consumer, Producer
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_testing.cluster import Cluster


def consumer(server: str) -> Consumer:
    return Consumer("shipping", server, topics="orders", ordered=True, listener=lambda _, __: None)


@pytest.mark.cluster
async def test_locks_are_a_time_line_through_a_fail_over(
    tmp_path: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: a lock's time line has three rows after a failover: first holder, new leader, next holder; the newest first."""
    with Cluster(tmp_path, replicas=3) as cluster:
        cluster.create_topic("orders", queues=1)
        server = cluster.name_server

        async def page(path: str) -> Any:
            async with browser.get(f"{console.url}/api{path}") as answer:
                assert answer.status == 200, await answer.text()
                return await answer.json()

        async def group(member: Consumer) -> Any:
            found = await page("/groups/shipping")
            while {"orders": member.client_id} not in [
                {row["topic"]: row["holder"]} for row in found["queues"]
            ]:
                await asyncio.sleep(0.1)
                found = await page("/groups/shipping")
            return found

        async with (
            Producer(name_servers=server) as producer,
            Console(ConsoleSettings(name_servers=server, port=0)) as console,
        ):
            await producer.send("orders", "x", key="order-1")
            async with consumer(server) as first:
                await group(first)
                (before,) = (await page("/raft"))["brokerGroups"]
                cluster.kill_leader()
                (after,) = (await page("/raft"))["brokerGroups"]
                while (after["term"] or 0) <= before["term"]:
                    await asyncio.sleep(0.1)
                    (after,) = (await page("/raft"))["brokerGroups"]
            async with consumer(server) as second:
                found = await group(second)
            overview = await page("/overview")

    texts = [row["text"] for row in found["history"] if row["topic"] in ("orders", "")]
    held = [text for text in texts if text.startswith("held by")]
    assert held[0].startswith(f"held by {second.client_id} with epoch 2")
    assert held[-1] == f"held by {first.client_id} with epoch 1"
    leads = [
        text
        for text in texts
        if text.startswith(f"node {after['leader']} leads in term {after['term']}")
    ]
    assert leads
    assert texts.index(held[0]) < texts.index(leads[0]) < texts.index(held[-1])
    assert leads[0] in [row["text"] for row in overview["changes"]]
    assert overview["changesSinceMs"] > 0
