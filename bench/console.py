"""
Measures the cost of the console and the time of its first page: ``make bench-console``, six minutes.

A group of three real processes gets 10,000 topics and 5,000 consumer groups. The CPU time of the leader is compared without a console,
with a console that nobody looks at, and with a first page that follows the cluster: in turn, several times, because what a leader does
by itself changes from minute to minute. Then the first page is loaded, cold and again, and the lists of topics and groups with a search:
in five new consoles each, because a single load says more of the machine than of the console, and thirty times in one that has them.
"""

import argparse
import asyncio
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final

import aiohttp
import psutil
from tests.cluster.processes import Group

from bench.report import sections
from orderlymq.admin.client import AdminClient
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig

TOPICS: Final = 10_000
GROUPS: Final = 5_000
SPAN_S: Final = 10.0
ROUNDS: Final = 6
LOADS: Final = 30
NEW_CONSOLES: Final = 5
#: Concurrent creations.
AT_ONCE: Final = 32


async def main(topics: int, groups: int, span_s: float) -> list[tuple[str, str, str]]:
    """Measure everything and print it; return each figure with its promised limit."""
    rows: list[tuple[str, str, str]] = []

    def note(figure: str, value: str, promise: str = "") -> None:
        rows.append((figure, value, promise))
        say(f"{figure}: {value}" + (f" ({promise})" if promise else ""))

    with tempfile.TemporaryDirectory() as directory, Group(Path(directory) / "group") as group:
        await create(group.name_server_address, topics, groups)
        leader = psutil.Process(group.brokers[group.wait_for_leader()].pid)
        settings = ConsoleSettings(name_servers=group.name_server_address, port=0)
        costs = [await cost(settings, leader, span_s) for _ in range(ROUNDS)]
        base, alone, followed = zip(*costs, strict=True)
        note("CPU of the leader without a console", shares(base))
        note("more with a console that nobody looks at", shares(alone, sign="+"))
        note("more with one open first page", shares(followed, sign="+"), "under 0.5 %")
        async with Console(settings) as console, aiohttp.ClientSession() as session:
            cold_s = await load(session, console.url)
            note("first page of a new console", milliseconds(cold_s), "under 300 ms")
            for path in ("/", "/topics", "/topics?q=bench-77", "/groups", "/groups?q=bench-77"):
                first_s = await first_load(settings, session, path)
                await load(session, console.url + path)
                times = [await load(session, console.url + path) for _ in range(LOADS)]
                note(
                    f"`{path}`",
                    f"{milliseconds(first_s)} in a new console, {milliseconds(statistics.median(times))} median, {milliseconds(max(times))} worst of {LOADS}",
                    "under 300 ms" if path == "/" else "",
                )
    return rows


async def cost(
    settings: ConsoleSettings, leader: psutil.Process, span_s: float
) -> tuple[float, float, float]:
    """Return the leader's share of a CPU without a console, and the increase with a console and with an open page."""
    base = await share(leader, span_s)
    async with Console(settings) as console, aiohttp.ClientSession() as session:
        await load(session, console.url)
        alone = await share(leader, span_s)
        async with session.get(
            f"{console.url}/events/overview", timeout=aiohttp.ClientTimeout(None)
        ) as events:
            events.raise_for_status()
            reader = asyncio.create_task(drain(events))
            followed = await share(leader, span_s)
            reader.cancel()
    return base, alone - base, followed - base


def shares(rounds: Sequence[float], sign: str = "") -> str:
    """Format the shares of one CPU in several rounds: their median, minimum and maximum."""
    least, most = min(rounds), max(rounds)
    return f"{statistics.median(rounds):{sign}.2%} ({least:{sign}.2%} to {most:{sign}.2%})"


def milliseconds(seconds: float) -> str:
    """Format a time in ms."""
    return f"{1000 * seconds:.0f} ms"


async def create(name_server: str, topics: int, groups: int) -> None:
    """Create topics with four queues, and consumer groups."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def in_turn(made: Callable[[], Awaitable[object]]) -> None:
        async with gate:
            await made()

    async with AdminClient(name_server) as admin:
        # Create consumer groups first, because each creation asks for the broker groups of every topic.
        await asyncio.gather(
            *(
                in_turn(
                    functools.partial(admin.set_group, SubscriptionGroupConfig(f"bench-{number}"))
                )
                for number in range(groups)
            )
        )
        await asyncio.gather(
            *(
                in_turn(functools.partial(admin.create_topic, f"bench-{number}", queues=4))
                for number in range(topics)
            )
        )


def write(page: Path, rows: list[tuple[str, str, str]], topics: int, groups: int) -> None:
    """Write the section of the results page."""
    about = (
        f"`make bench-console`: {topics:,} topics and {groups:,} consumer groups on a broker group of three replicas, on {os.cpu_count()} CPUs;"
        f" {time.strftime('%Y-%m-%d', time.gmtime())}. 100 % is one CPU; CPU figures are medians of {ROUNDS} rounds, with minimum and maximum. A page is loaded when its last byte is there."
    )
    table = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    sections.put(
        page,
        "console",
        f"## The console\n\n{about}\n\n| figure | measured | promised |\n|---|---|---|\n{table}",
    )


async def share(process: psutil.Process, span_s: float) -> float:
    """Return the share of one CPU that a process uses in a time span."""
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


async def first_load(settings: ConsoleSettings, session: aiohttp.ClientSession, path: str) -> float:
    """Return the median time of a page in a console that has only shown its first page."""
    times = []
    for _ in range(NEW_CONSOLES):
        async with Console(settings) as console:
            await load(session, console.url)
            times.append(await load(session, console.url + path))

    return statistics.median(times)


async def drain(events: aiohttp.ClientResponse) -> None:
    """Read the server's events, as a browser does."""
    async for _ in events.content.iter_any():
        pass


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=TOPICS)
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--seconds", type=float, default=SPAN_S)
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    measured = asyncio.run(main(given.topics, given.groups, given.seconds))
    if given.write is not None:
        write(given.write, measured, given.topics, given.groups)
