"""The console's page of a running pipeline, with a real driver, to which the console sends no requests."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orderlymq_console.app import Console
from orderlymq_console.settings import ConsoleSettings
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster, pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]
NAME = "orders-archive"


@pytest.fixture
def driver(topics: Topics, tmp_path: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Archive a topic of 40 messages every second; the manifest is in the test's folder."""
    topic = topics.make()
    topics.numbered(topic, 40)
    spec = {
        "type": "archive",
        "source": {"topic": topic, "bootstrap": topics.bootstrap},
        "trigger": "1s",
        "checkpoint": str(tmp_path / "checkpoint"),
        "path": str(tmp_path / "archive"),
        "spark": {"master": "local[1]", "memory": "700m"},
    }
    file = tmp_path / f"{NAME}.yaml"
    file.write_text(json.dumps({"kind": "Pipeline", "metadata": {"name": NAME}, "spec": spec}))
    with (tmp_path / "driver.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "orderlymq", "pipeline", "run", str(file)],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    yield process
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture
async def look(
    topics: Topics, tmp_path: Path
) -> AsyncIterator[Callable[[Callable[[dict[str, Any]], bool]], Any]]:
    """Return a function that reads the pipeline's page until it shows a text."""
    settings = ConsoleSettings(
        name_servers=topics.bootstrap, port=0, pipelines=(tmp_path / f"{NAME}.yaml",)
    )
    async with Console(settings) as console, aiohttp.ClientSession() as session:

        async def until(shows: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            while True:
                async with session.get(f"{console.url}/api/pipelines/{NAME}") as answer:
                    page: dict[str, Any] = await answer.json()
                if shows(page):
                    return page
                await asyncio.sleep(0.5)

        yield until


async def test_the_page_of_a_driver_that_runs_follows_it_until_it_is_killed(
    topics: Topics,
    tmp_path: Path,
    driver: "subprocess.Popen[bytes]",
    look: Callable[[Callable[[dict[str, Any]], bool]], Any],
) -> None:
    """The page shows state, batches, rows and present lag; a new message is archived; a killed driver is shown as died."""
    page = await look(lambda page: page["row"]["rows"]["value"] == 40)
    first = page["row"]

    assert (first["state"], first["stateUnknown"], first["lastError"]) == ("Running", "", "")
    assert first["rowsPerSecond"]["value"] > 0
    assert sum(row["offset"] for row in page["queues"]) == 40

    topics.numbered(first["reads"], 1, start=40)
    page = await look(lambda page: page["row"]["rows"]["value"] == 41)
    assert page["row"]["lastBatch"] > first["lastBatch"]
    assert page["row"]["lag"]["value"] == 0
    assert page["row"]["state"] == "Running"

    os.kill(driver.pid, signal.SIGKILL)
    page = await look(lambda page: page["row"]["state"] != "Running")
    assert page["row"]["state"] == "Died"
