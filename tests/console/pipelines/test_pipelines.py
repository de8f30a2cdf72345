"""Pages of pipelines over a real cluster: state, current lag and age per queue, errors, findings."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orderlymq import Producer
from orderlymq.admin.client import AdminClient
from orderlymq_console.app import Console
from orderlymq_console.pipelines.reports import PipelineReport, PipelinesUnread
from orderlymq_console.settings import ConsoleSettings
from orderlymq_testing.cluster import Cluster
from tests.console.pages.test_pages import get, show
from tests.console.pipelines.leavings import BREAK, driver_on, manifest, status

pytestmark = pytest.mark.cluster


@pytest.fixture
async def watching(troubled: Cluster, tmp_path: Path) -> AsyncIterator[Console]:
    """A console with a folder of pipelines."""
    settings = ConsoleSettings(
        name_servers=troubled.name_server, port=0, pipelines=(tmp_path / "pipelines",)
    )
    (tmp_path / "pipelines").mkdir()
    async with Console(settings) as running:
        yield running


@pytest.fixture
def folder(watching: Console, tmp_path: Path) -> Path:
    """Return the folder of the console's pipelines."""
    return tmp_path / "pipelines"


async def offsets_behind(troubled: Cluster, behind: int) -> tuple[dict[str, Any], int]:
    """Return offsets of the topic orders, that many messages before one queue's end, and that queue's number."""
    async with AdminClient(troubled.name_server) as admin:
        ends = {
            each.queue_id: found.max_offset
            for each, found in (await admin.topic_stats("orders")).items()
        }
    late = max(ends, key=lambda queue: ends[queue])
    ends[late] -= behind
    return {"orders": {"broker-a": {str(queue): end for queue, end in ends.items()}}}, late


async def test_a_running_pipeline_shows_how_far_it_is_behind_now(
    watching: Console, folder: Path, troubled: Cluster, browser: aiohttp.ClientSession
) -> None:
    """Law: a running pipeline's lag and age are current, although its offsets are those of its last batch."""
    offsets, late = await offsets_behind(troubled, 2)
    here = {"topic": "orders", "bootstrap": troubled.name_server}
    manifest(folder, "archive", source=here)
    with driver_on(status(folder, "archive", offsets=offsets, lag=2)):
        page = await get(browser, watching, "/pipelines/archive")
        listed = await get(browser, watching, "/pipelines")

    assert (page["row"]["state"], page["row"]["lag"]["value"]) == ("Running", 2)
    assert [row["name"] for row in listed["rows"]] == ["archive"]
    by_queue = {row["queue"]: row for row in page["queues"]}
    assert by_queue[late]["lag"]["value"] == 2
    assert by_queue[late]["oldestSeconds"]["value"] > 0
    others = [row for queue, row in by_queue.items() if queue != late]
    nothing = {"value": None, "unknown": "", "atLeast": False}
    assert [row["oldestSeconds"] for row in others] == [nothing] * 3
    async with Producer(name_servers=troubled.name_server) as producer:
        await producer.send("orders", "one more", key="order-1")
    while page["row"]["lag"]["value"] != 3:
        page = await get(browser, watching, "/pipelines/archive")


async def test_of_another_cluster_the_lag_is_unknown(
    watching: Console, folder: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: for a pipeline of another cluster the lag is unknown, not that of a topic with the same name here."""
    manifest(folder, "far", source={"topic": "orders", "bootstrap": "elsewhere:9876"})
    status(folder, "far")

    page = await get(browser, watching, "/pipelines/far")

    assert page["row"]["lag"]["value"] is None
    assert "it reads the cluster of elsewhere:9876" in page["row"]["lag"]["unknown"]
    assert page["row"]["isTopic"] is False
    assert {row["lag"]["value"] for row in page["queues"]} == {None}


async def test_what_is_wrong_stands_on_the_first_page_too(
    watching: Console, folder: Path, browser: aiohttp.ClientSession
) -> None:
    """Law: failed or dead pipelines and broken orders are also on the first page, with links."""
    findings = folder / "found.jsonl"
    findings.write_text(json.dumps(BREAK) + "\n")
    manifest(folder, "audit", type="order-audit", findings=str(findings))
    manifest(folder, "copy", type="replay", target="orders-copy", path=None)
    status(folder, "copy", phase="Failed", last_error="the topic orders-copy is not there")

    for path in ("/pipelines", "/overview"):
        troubles = (await get(browser, watching, path))["troubles"]
        links = {each["link"]: (each["severity"], each["text"]) for each in troubles}
        assert links["/pipelines/audit"] == (
            "critical",
            "Pipeline audit found the order of orders broken.",
        )
        assert links["/pipelines/copy"] == (
            "warning",
            "Pipeline copy has stopped: the topic orders-copy is not there",
        )
    page = await get(browser, watching, "/pipelines/audit")
    assert page["audit"]["state"] == "broken"
    assert [row["key"] for row in page["audit"]["findings"]] == ["order-3"]


async def test_without_a_word_of_pipelines_they_are_unknown(
    console: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: without a source of pipelines their page says what to pass, and the first page says nothing."""
    page = await get(browser, console, "/pipelines")

    assert page["rows"] == []
    assert ["--pipelines FILE" in each["unknown"] for each in page["sources"]] == [True]
    assert "No pipelines" not in await show(browser, console, "/pipelines")
    names = [each["name"] for each in (await get(browser, console, "/overview"))["sources"]]
    assert "pipelines" not in names


async def test_a_folder_that_goes_is_unknown_with_its_reason_on_every_page(
    watching: Console, folder: Path, browser: aiohttp.ClientSession
) -> None:
    await asyncio.to_thread(folder.rmdir)

    for path in ("/pipelines", "/overview"):
        sources = {
            each["name"]: each["unknown"]
            for each in (await get(browser, watching, path))["sources"]
        }
        assert "No such file or directory" in sources["pipelines"]
    async with browser.get(f"{watching.url}/pipelines/archive") as answer:
        assert answer.status == 404


class Counted:
    """Pipelines that count how often they are read."""

    def __init__(self) -> None:
        self.times = 0

    async def read(self) -> tuple[PipelineReport, ...]:
        """Return none, and fail every other time."""
        self.times += 1
        if self.times % 2:
            raise PipelinesUnread("not now")
        return ()


async def test_pipelines_are_asked_once_for_any_number_of_viewers(
    watching: Console, browser: aiohttp.ClientSession
) -> None:
    """Law: pipelines are read at most once a second for all viewers, even after failures."""
    counted = Counted()
    watching._reader.pipelines = counted
    begun_s = watching.collector.now_s()
    for path in ("/pipelines", "/overview") * 20:
        await get(browser, watching, path)

    assert 1 <= counted.times <= 1 + watching.collector.now_s() - begun_s
