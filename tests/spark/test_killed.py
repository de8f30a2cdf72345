"""
Drivers and executors killed where it matters: the archive holds every offset once, the copy every message.

Set ORDERLYMQ_KILLS to kill more often than the few times that a usual test run can afford.
"""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from orderlymq_spark.archivefiles import holes, published
from tests.spark.test_pipelines import files
from tests.spark.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("ORDERLYMQ_KILLS", "3"))
STAGES = ("wrote", "published", "copying", "publishing")
ROOT = Path(__file__).parents[2]


def drive(settings: dict[str, object], log: Path) -> int:
    with log.open("ab") as out:
        return subprocess.run(
            [sys.executable, "-m", "tests.spark.killed", json.dumps(settings)],
            stdout=out,
            stderr=out,
            start_new_session=True,
            check=False,
            timeout=300,
            cwd=ROOT,
        ).returncode


def test_kills_neither_lose_nor_repeat_anything(topics: Topics, tmp_path: Path) -> None:
    """SIGKILL of driver and workers at each stage, several times, each time with new messages behind."""
    topic, target = topics.make(), topics.make(queues=3)
    chance = random.Random(5)
    log = tmp_path / "log"
    kept: dict[str, bytes] = {}
    for number, stage in enumerate(itertools.islice(itertools.cycle(STAGES), KILLS)):
        topics.numbered(topic, 100, start=number * 100)
        (tmp_path / "passages").unlink(missing_ok=True)
        settings: dict[str, object] = {
            "bootstrap": topics.bootstrap,
            "topic": topic,
            "target": target,
            "folder": str(tmp_path),
            "stage": stage,
            "skip": chance.randrange(2),
        }
        code = drive(settings, log)
        assert code == -signal.SIGKILL, log.read_text()[-3000:]
        now = files(tmp_path / "archive")
        assert kept.items() <= now.items(), "a published file was changed or is gone"
        kept = now

    assert drive({**settings, "stage": ""}, log) == 0, log.read_text()[-3000:]

    parts = published(tmp_path / "archive")
    ends = {queue: len(messages) for queue, messages in topics.read(topic).items()}
    assert holes(parts) == []
    assert {each.queue: each.end for each in parts} == ends
    assert sum(each.size for each in parts) == sum(ends.values()) == KILLS * 100

    def by_key(name: str) -> dict[str | None, list[str]]:
        found: dict[str | None, list[str]] = {}
        for messages in topics.read(name).values():
            for message in messages:
                found.setdefault(message.key, []).append(message.properties["n"])
        return found

    assert by_key(target) == by_key(topic)
