"""
What the console costs and how long its first page takes: ``make bench-console``, three minutes.

A group of three real processes gets 10,000 topics. The CPU time of the leader is compared over half a minute without a
console, with a console that nobody looks at, and with a first page that follows the cluster. Then the first page is loaded, cold
and again, and the list of topics with a search.
"""

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import aiohttp
import psutil
from tests.cluster.processes import Group

from orderlymq.admin.client import AdminClient
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings

TOPICS: Final = 10_000
SPAN_S: Final = 30.0
LOADS: Final = 30
#: Creations under way.
AT_ONCE: Final = 32


async def main(topics: int, span_s: float) -> None:
    """Measure everything and print it."""
    with tempfile.TemporaryDirectory() as directory, Group(Path(directory) / "group") as group:
        await create(group.name_server_address, topics)
        leader = psutil.Process(group.brokers[group.wait_for_leader()].pid)
        say(f"{topics:,} topics; the leader is one of three processes on {psutil.cpu_count()} CPUs")
        base = await share(leader, span_s)
        say(f"leader without a console: {base:.2%} of a CPU")
        settings = ConsoleSettings(name_servers=group.name_server_address, port=0)
        async with Console(settings) as console, aiohttp.ClientSession() as session:
            cold_s = await load(session, console.url)
            alone = await share(leader, span_s)
            say(f"leader with a console that nobody looks at: {alone:.2%}, {alone - base:+.2%}")
            async with session.get(
                f"{console.url}/events/overview", timeout=aiohttp.ClientTimeout(None)
            ) as events:
                reader = asyncio.create_task(drain(events))
                followed = await share(leader, span_s)
                reader.cancel()
            say(f"leader with one open first page: {followed:.2%}, {followed - base:+.2%}")
            say(f"first page, the first time: {1000 * cold_s:.0f} ms")
            for path in ("/", "/topics", "/topics?q=bench-77", "/groups"):
                first_s = await load(session, console.url + path)
                times = [await load(session, console.url + path) for _ in range(LOADS)]
                say(
                    f"{path}: first {1000 * first_s:.0f} ms, then median {1000 * statistics.median(times):.0f} ms, "
                    f"worst of {LOADS} {1000 * max(times):.0f} ms"
                )


async def create(name_server: str, topics: int) -> None:
    """Create topics of four queues."""
    gate = asyncio.Semaphore(AT_ONCE)
    async with AdminClient(name_server) as admin:

        async def one(number: int) -> None:
            async with gate:
                await admin.create_topic(f"bench-{number}", queues=4)

        await asyncio.gather(*(one(number) for number in range(topics)))


async def share(process: psutil.Process, span_s: float) -> float:
    """Return the part of one CPU that a process uses over a span."""
    begin, began_s = process.cpu_times(), time.monotonic()
    await asyncio.sleep(span_s)
    end, elapsed_s = process.cpu_times(), time.monotonic() - began_s

    return (end.user + end.system - begin.user - begin.system) / elapsed_s


async def load(session: aiohttp.ClientSession, url: str) -> float:
    """Load a page; return the seconds until its last byte."""
    began_s = time.perf_counter()
    async with session.get(url) as answer:
        await answer.read()
        answer.raise_for_status()

    return time.perf_counter() - began_s


async def drain(events: aiohttp.ClientResponse) -> None:
    """Read what the server sends, as a browser does."""
    async for _ in events.content.iter_any():
        pass


def say(text: str) -> None:
    """Print a line now."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--seconds", type=float, default=SPAN_S)
    given = parser.parse_args()
    asyncio.run(main(given.topics, given.seconds))
