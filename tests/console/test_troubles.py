"""
Twelve problems in real clusters: at most three clicks and five seconds from the first page to cause and cure.

Each test opens the first page in a real Chromium and clicks what a person sees there. `troubles.py` makes ten of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import pytest

from orderlymq.blocking import LoopThread
from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from orderlymq_testing.cluster import Cluster
from tests.cluster.processes import Group
from tests.console.chromium import NEEDS_CHROMIUM
from tests.console.reach import ROW
from tests.console.troubles import ten_troubles
from tests.trouble.conftest import make_group  # noqa: F401 - a fixture
from tests.trouble.smalldisk import fill, mounted

if TYPE_CHECKING:
    from playwright.async_api import Browser

pytestmark = [*NEEDS_CHROMIUM, pytest.mark.long, pytest.mark.timeout(240)]

# A queue stands still after half a minute, and loads are judged by the minute.
FOUND_MS: Final = 150_000
CLICKS_MAX: Final = 3
#: The elements to click, and the texts of the last page: first the cause, then the cure.
PATHS: Final = {
    "poison message": (
        ("nav a[href='/blocked']",),
        ("Key order-2", "no address for this customer", "repair the cause"),
    ),
    "dead consumer without proof": (
        ("nav a[href='/groups']", "a[href='/groups/orphaned']"),
        (
            "ghost@pod",
            "is not connected. Nothing proves that it is dead.",
            "when the lease of 600 s ends",
        ),
    ),
    "suspended consumer": (
        ("nav a[href='/blocked']",),
        ("resting", "its program has suspended the consumer", "Have it call resume()"),
    ),
    "lock wanted by two": (
        ("nav a[href='/groups']", "a[href='/groups/wanted']"),
        (
            "holder@pod holds it",
            "claimant@pod was refused",
            "compare versions, allocation strategies",
        ),
    ),
    "doubled client id": (
        ("#live a[href='/groups/doubled']",),
        ("Two clients have the id twin@pod", "Give each process its own instance name"),
    ),
    "members that disagree": (
        ("#live a[href='/groups/split']",),
        ("Members of group split disagree", "Give all members the same subscriptions"),
    ),
    "hot key": (
        ("#live a[href='/topics/coarse']",),
        ("key everybody got", "Choose a finer key"),
    ),
    "hot queue": (
        ("#live a[href='/topics/lopsided']",),
        ("queue broker-a:0 got", "producers that choose the queue themselves"),
    ),
    "parked lane": (
        ("nav a[href='/blocked']",),
        ("Key order-2 of parked", "no address for this customer", "retry the message; or skip it"),
    ),
    "half message nobody decides": (
        ("#live a[href='/waiting']",),
        ("given up: 1 half message of the producer groups booking", "check-transaction"),
    ),
}
TO_RAFT: Final = ("#live .troubles a[href='/raft']",)


@pytest.fixture(scope="module")
def sick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with ten problems at the same time."""
    with Cluster(tmp_path_factory.mktemp("sick")) as cluster:
        thread = LoopThread("troubles")
        troubles = ten_troubles(cluster)
        thread.run(troubles.__aenter__())
        yield cluster
        thread.run(troubles.__aexit__(None, None, None))
        thread.close()


@pytest.mark.parametrize("trouble", PATHS)
async def test_three_clicks_lead_from_the_first_page_to_cause_and_cure(
    sick: Cluster, chromium: Browser, trouble: str, record_property: Callable[[str, object], None]
) -> None:
    """Law: three clicks lead from the first page to a problem's cause and cure, among nine other problems."""
    clicks, texts = PATHS[trouble]
    async with Console(ConsoleSettings(name_servers=sick.name_server, port=0)) as console:
        record_property(ROW, await reach(chromium, console, trouble, clicks, texts))


async def test_a_full_disk(
    chromium: Browser,
    make_group: Callable[..., Group],  # noqa: F811 - the fixture
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    """Law: for a full disk the Raft page says why sends are refused and how to make room."""
    with mounted(tmp_path / "disk") as disk:
        group = make_group(1, data_dir=str(disk / "node-1"))
        fill(disk, leave=3 << 20)
        settings = ConsoleSettings(name_servers=group.name_server_address, port=0)
        async with Console(settings) as console:
            texts = ("the leader's disk is full. Sends are refused", "Free disk space or shorten")
            record_property(ROW, await reach(chromium, console, "full disk", TO_RAFT, texts))
        group.stop()


async def test_a_lost_majority(
    chromium: Browser,
    make_group: Callable[..., Group],  # noqa: F811 - the fixture
    record_property: Callable[[str, object], None],
) -> None:
    """Law: without a majority the Raft page says which replicas there were, how many must run, and to keep the disks."""
    group = make_group(3)
    settings = ConsoleSettings(name_servers=group.name_server_address, port=0)
    async with Console(settings) as console:
        page = await chromium.new_page()
        await page.goto(console.url)
        await page.wait_for_selector(".health.healthy", timeout=FOUND_MS)
        leader = group.wait_for_leader()
        group.brokers[leader].kill()
        group.brokers[group.wait_for_leader(other_than=leader)].kill()
        texts = (
            "has no leader that answers",
            "Its replicas are 1, 2, 3; 2 of them must run",
            "Start replicas until a majority of them runs",
        )
        record_property(ROW, await reach(chromium, console, "lost majority", TO_RAFT, texts))


async def reach(
    chromium: Browser,
    console: Console,
    trouble: str,
    clicks: tuple[str, ...],
    texts: tuple[str, ...],
) -> str:
    """Wait until the problem is found, go the way three times, and return its row for the table."""
    assert len(clicks) <= CLICKS_MAX
    await follow(chromium, console, clicks, texts)
    ways = [await follow(chromium, console, clicks, texts) for _ in range(3)]
    seconds = statistics.median(taken_s for taken_s, _ in ways)

    return f"{trouble} | {len(clicks)} | {seconds:.1f} | `{ways[-1][1]}`"


async def follow(
    chromium: Browser, console: Console, clicks: tuple[str, ...], texts: tuple[str, ...]
) -> tuple[float, str]:
    """Click from the first page until the last page has the texts; return the seconds, and that page."""
    context = await chromium.new_context()
    page = await context.new_page()
    began_s = time.perf_counter()
    await page.goto(console.url)
    for selector in clicks:
        await page.locator(selector).first.click(timeout=FOUND_MS)
    for text in texts:
        await page.locator("main").get_by_text(text).first.wait_for(timeout=FOUND_MS)
    taken_s, path = time.perf_counter() - began_s, urlsplit(page.url).path
    await context.close()

    return taken_s, path
