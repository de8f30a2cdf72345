"""
Takes the pictures of the console in docs/pictures: ``python docs/pictures/console.py``, a minute.

A cluster in this process gets troubles: keys whose lane is held, and a queue that stands still. Pipelines have what their drivers
would leave. A real Chromium opens the pages. It needs Chromium (Debian: ``apt-get install chromium``).
"""

import argparse
import asyncio
import json
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import aiohttp
from PIL import Image
from playwright.async_api import async_playwright

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import ReceivedMessage
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_testing.cluster import Cluster

HERE: Final = Path(__file__).parent
#: What stands still when the pictures are taken: a queue counts after half a minute, two lanes before.
STANDING: Final = 3
COLOURS: Final = 64
#: Nothing on a page is unknown: of a machine that is busy with other things the docs need no picture.
SETTLED: Final = "!document.querySelector('main .unknown, main .notice, .stale') && !document.querySelector('main').innerText.includes('≥')"
Scheme = Literal["light", "dark"]
#: File, page, width and height, colours.
PICTURES: Final[tuple[tuple[str, str, int, int, Scheme], ...]] = (
    ("console-overview", "/", 1280, 560, "light"),
    ("console-blocked", "/blocked", 900, 620, "dark"),
    ("console-phone", "/groups/billing", 390, 760, "light"),
    ("console-pipelines", "/pipelines/orders-archive", 900, 560, "light"),
)


async def make_trouble(name_server: str, ready: asyncio.Event) -> None:
    """Send orders for ever; two keys fail in one group, one key in another."""

    def bill(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key in ("order-4711", "order-4714"):
            raise RuntimeError("402 from the card service: card expired")

    def ship(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key == "order-4712":
            raise ValueError("no address for this customer")

    async with (
        AdminClient(name_server) as admin,
        Producer(name_servers=name_server) as producer,
    ):
        by_key = SubscriptionGroupConfig("billing", concurrency="Key", on_dead_letter="HoldKey")
        await admin.set_group(by_key)
        twice = ConsumerSettings(max_reconsume_times=2)
        async with (
            Consumer(
                "billing",
                name_server,
                topics="orders",
                ordered="key",
                listener=bill,
                settings=twice,
            ),
            Consumer("shipping", name_server, topics="orders", ordered=True, listener=ship),
            Consumer(
                "audit", name_server, topics=["orders", "payments"], listener=lambda _, __: None
            ),
        ):
            number = 0
            while True:
                key = f"order-{4708 + number % 9}"
                step = ("created", "paid", "shipped")[number // 9 % 3]
                body = json.dumps({"order": key, "step": step, "amount": 19.90})
                await producer.send("orders", body, key=key, tags=step)
                await producer.send("payments", body, key=key)
                number += 1
                await asyncio.sleep(0.1)
                if number == 27:
                    ready.set()


async def leave_pipelines(name_server: str, folder: Path) -> None:
    """Write manifests and what their drivers leave: a stream that failed, an audit with a finding, one that has not run."""
    async with AdminClient(name_server) as admin:
        ends = await admin.topic_stats("orders")
    offsets: dict[str, dict[str, int]] = {}
    for queue, end in ends.items():
        offsets.setdefault(queue.broker_name, {})[str(queue.queue_id)] = end.max_offset
    status = {
        "phase": "Failed",
        "last_batch": 41,
        "rows": sum(end.max_offset for end in ends.values()),
        "rows_per_second": 18.4,
        "offsets": {"orders": offsets},
        "updated_at_ms": time.time_ns() // 1_000_000,
        "last_error": "archive/_parts/0-27.parquet: No space left on device",
    }
    finding = {
        "queue": "orders/broker-a:1",
        "offset": 17,
        "defect": "skipped",
        "key": "order-4710",
        "expected": 4,
        "got": 6,
    }
    source = {"topic": "orders", "bootstrap": name_server}
    checkpoint = folder / "orders-archive"
    await asyncio.to_thread(checkpoint.mkdir)
    texts = {
        checkpoint / "status.json": json.dumps(status),
        folder / "found.jsonl": json.dumps(finding),
    }
    for name, spec in {
        "orders-archive": {"type": "archive", "checkpoint": str(checkpoint), "path": "archive"},
        "orders-audit": {"type": "order-audit", "findings": str(folder / "found.jsonl")},
        "orders-replay": {"type": "replay", "checkpoint": "replay", "target": "orders-copy"},
    }.items():
        made = {"kind": "Pipeline", "metadata": {"name": name}, "spec": {"source": source, **spec}}
        texts[folder / f"{name}.yaml"] = json.dumps(made)
    for path, text in texts.items():
        await asyncio.to_thread(path.write_text, text)


async def wait_until_found(url: str) -> None:
    """Return when the leader has found what stands still."""
    async with aiohttp.ClientSession() as session:
        found = 0
        while found < STANDING:
            await asyncio.sleep(1)
            async with session.get(f"{url}/api/overview") as answer:
                found = (await answer.json())["blocked"]["value"] or 0


async def take(
    url: str, folder: Path, pictures: Sequence[tuple[str, str, int, int, Scheme]]
) -> None:
    """Open each page and save what is seen of it."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        for name, path, width, height, scheme in pictures:
            context = await browser.new_context(
                viewport={"width": width, "height": height}, color_scheme=scheme
            )
            page = await context.new_page()
            await page.goto(url + path)
            # Rates need two looks a second apart.
            await page.wait_for_timeout(2_500)
            if folder == HERE:
                await page.wait_for_function(SETTLED, timeout=120_000)
            file = folder / f"{name}.png"
            await page.screenshot(path=file)
            await context.close()
            Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)
            print(f"{file}: {file.stat().st_size // 1024} KiB", flush=True)
        await browser.close()


async def play(
    name_server: str, folder: Path, pictures: Sequence[tuple[str, str, int, int, Scheme]]
) -> None:
    """Make the troubles, wait until the leader has seen them, take the pictures."""
    ready = asyncio.Event()
    pipelines = Path(await asyncio.to_thread(tempfile.mkdtemp))
    settings = ConsoleSettings(name_servers=name_server, port=0, pipelines=(pipelines,))
    async with Console(settings) as console:
        trouble = asyncio.create_task(make_trouble(name_server, ready), name="trouble")
        await asyncio.wait(
            {trouble, asyncio.create_task(ready.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        await leave_pipelines(name_server, pipelines)
        await wait_until_found(console.url)
        await take(console.url, folder, pictures)
        await asyncio.to_thread(shutil.rmtree, pipelines)
        trouble.cancel()
        await asyncio.gather(trouble, return_exceptions=True)


def main() -> None:
    """Take the pictures of the docs; with a folder, every page at three widths in both colours into it, to look at them."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=HERE)
    pictures, folder = list(PICTURES), parser.parse_args().folder
    if folder != HERE:
        folder.mkdir(parents=True, exist_ok=True)
        schemes: tuple[Scheme, ...] = ("light", "dark")
        sizes = [(width, scheme) for width in (1440, 768, 360) for scheme in schemes]
        pages = {
            "overview": "/",
            "blocked": "/blocked",
            "topics": "/topics",
            "topic": "/topics/orders",
            "messages": "/topics/orders/messages",
            "groups": "/groups",
            "group": "/groups/shipping",
            "key": "/key?topic=orders&key=order-4711",
            "message": "/message?topic=orders&queue=broker-a:0&offset=0",
            "deadletters": "/dead-letters",
            "letters": "/dead-letters/billing",
            "waiting": "/waiting",
            "pipelines": "/pipelines",
            "pipeline": "/pipelines/orders-archive",
            "audit": "/pipelines/orders-audit",
            "signin": "/sign-in",
            "raft": "/raft",
        }
        pictures = [
            (f"{name}-{width}-{scheme}", path, width, 800, scheme)
            for name, path in pages.items()
            for width, scheme in sizes
        ]
    with (
        tempfile.TemporaryDirectory() as data,
        Cluster(Path(data) / "cluster", replicas=3) as cluster,
    ):
        cluster.create_topic("orders")
        cluster.create_topic("payments", queues=8)
        asyncio.run(play(cluster.name_server, folder, pictures))


if __name__ == "__main__":
    main()
