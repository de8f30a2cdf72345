"""
The price of a backup while a cluster serves, and the time of a restore until the first delivery.

``python -m bench.backup [--gib 10] [--rate 2000] [--quick] [--write docs/explanation/benchmarks.md]``. Three replicas of one
group run on loopback. They are filled, a steady load of ordered sends is measured alone and beside ``backup create``, and another
cluster is started from the backup. The backup lies in a folder on the same disk.
"""

import argparse
import asyncio
import itertools
import os
import random
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from rich.console import Console
from rich.progress import Progress
from tests.clients.localcluster import LocalCluster

from bench import lanes
from bench.report import sections
from orderlymq import Consumer, Message, MessageQueue, Producer, SendResult, split_batch

SIZE: Final = 1024
QUEUES: Final = 8
ALONE_S: Final = 20.0
BATCH_BYTES: Final = 1 << 18
COMMAND_MAX_S: Final = 3600.0
PART: Final = 1 << 14  # messages sent to a queue at a time while the cluster is filled
_POOL: Final = (
    random.Random(0).randbytes(1 << 21).hex()
)  # bodies are slices of it, so they compress to a half


@dataclass(frozen=True, slots=True)
class Load:
    """A steady load: acknowledged sends per second, and their latencies in ms."""

    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Price:
    """The measured figures; sizes in GiB of message bodies, times in s."""

    gib: float
    offered: float
    alone: Load
    beside: Load
    create_s: float
    again_s: float
    up_s: float
    delivered_s: float


def body(number: int) -> str:
    """Return the body of a message."""
    start = number * 7919 % (len(_POOL) - SIZE)
    return _POOL[start : start + SIZE]


async def fill(name_server: str, topic: str, count: int, progress: Progress) -> None:
    """Store this many messages, in all queues concurrently."""
    task = progress.add_task("filling", total=count)
    async with Producer("bench-fill", name_server) as producer:

        async def one(queue: MessageQueue) -> None:
            for start in range(0, count // QUEUES, PART):
                numbers = range(start, min(start + PART, count // QUEUES))
                messages = [
                    Message(topic=topic, body=body(each), key=str(each)) for each in numbers
                ]
                for part in split_batch(messages, BATCH_BYTES):
                    await producer.send_batch(part, queue=queue, timeout=60.0)
                    progress.advance(task, len(part))

        await asyncio.gather(*(one(each) for each in await producer.queues(topic)))


async def load(name_server: str, topic: str, rate: float, ends: "asyncio.Future[float]") -> Load:
    """Send at a steady rate until *ends* is done."""
    latencies: list[float] = []

    async def sent(began: float, future: "asyncio.Future[SendResult]") -> None:
        await future
        latencies.append(time.perf_counter() - began)

    async with Producer("bench-load", name_server) as producer:
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                if ends.done():
                    break
                future = producer.send_nowait(topic, body(number), key=number % 1000)
                group.create_task(sent(time.perf_counter(), future))
                await asyncio.sleep(began + (number + 1) / rate - time.perf_counter())
        elapsed = time.perf_counter() - began
    latencies.sort()
    return Load(
        len(latencies) / elapsed,
        1000 * median(latencies),
        1000 * latencies[int(len(latencies) * 0.99)],
    )


async def timed(cluster: LocalCluster, *words: str) -> float:
    """Run a command on the cluster and return its duration in s."""
    began = time.perf_counter()
    await asyncio.to_thread(cluster.command, *words)
    return time.perf_counter() - began


async def first_delivery(name_server: str, topic: str) -> None:
    """Wait until a new consumer receives a message."""
    async with Consumer(
        "bench-restored", name_server, topics=topic, ordered=True, consume_from="first"
    ) as consumer:
        async for _ in consumer:
            break


async def measure(folder: Path, gib: float, rate: float, progress: Progress) -> Price:
    """Fill a cluster, back it up under load and restore it."""
    count = int(gib * 2**30 / SIZE) // QUEUES * QUEUES
    place = str(folder / "backups")
    # This folder has the operator's secret, which has the right to make backups.
    environment = {"ORDERLYMQ_DATA_DIR": str(folder / "first" / "data")}
    first = LocalCluster(folder / "first", timeout_s=COMMAND_MAX_S, environment=environment)
    first.up()
    try:
        topic = first.topic(queues=QUEUES)
        await fill(first.name_server, topic, count, progress)
        task = progress.add_task("a load alone, and beside a backup", total=None)
        alone_ends: asyncio.Future[float] = asyncio.ensure_future(asyncio.sleep(ALONE_S, 0.0))
        alone = await load(first.name_server, topic, rate, alone_ends)
        create = asyncio.ensure_future(timed(first, "backup", "create", "--to", place))
        beside = await load(first.name_server, topic, rate, create)
        again_s = await timed(first, "backup", "create", "--to", place)
        progress.remove_task(task)
    finally:
        first.down()
    shutil.rmtree(first.directory)
    progress.add_task("restoring", total=None)
    began = time.perf_counter()
    second = LocalCluster(folder / "second", from_backup=place, timeout_s=COMMAND_MAX_S)
    second.up()
    try:
        up_s = time.perf_counter() - began
        await first_delivery(second.name_server, topic)
        delivered_s = time.perf_counter() - began
    finally:
        second.down()
    return Price(gib, rate, alone, beside, await create, again_s, up_s, delivered_s)


def rows(price: Price) -> Iterator[str]:
    """Yield the lines of the page's table."""
    yield "| work | result |"
    yield "|---|---|"
    for name, found in (("alone", price.alone), ("beside a backup", price.beside)):
        yield (
            f"| {price.offered:,.0f} ordered sends/s of 1 KiB are offered, {name} | {found.rate:,.0f}/s acknowledged, "
            f"p50 {found.p50_ms:.2f} ms, p99 {found.p99_ms:.1f} ms |"
        )
    yield f"| `backup create` of {price.gib:g} GiB, read back | {price.create_s:.0f} s |"
    yield f"| the next one, of what is new | {price.again_s:.0f} s |"
    yield f"| `up --from-backup` until the cluster is ready | {price.up_s:.0f} s |"
    yield (
        f"| until a consumer gets the first message | {price.delivered_s:.0f} s, "
        f"{price.delivered_s / price.gib:.1f} s per GiB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0, help="message bodies that are stored")
    parser.add_argument("--rate", type=float, default=2000.0, help="sends per second beside it")
    parser.add_argument("--quick", action="store_true", help="half a GiB")
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    gib = 0.5 if given.quick else given.gib
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as directory, Progress(console=console) as progress:
        price = asyncio.run(measure(Path(directory), gib, given.rate, progress))
    table = "\n".join(rows(price))
    print(table)
    if given.write is not None:
        about = (
            f"`make bench-backup`: a broker group of three replicas, {lanes.form()}, the load and the backup on {os.cpu_count()} CPUs and one disk; "
            f"{time.strftime('%Y-%m-%d', time.gmtime())}. The backup is stored in a folder and read back before it counts."
        )
        sections.put(given.write, "backup", f"## Backups and restores\n\n{about}\n\n{table}")


if __name__ == "__main__":
    main()
