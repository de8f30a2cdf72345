"""
Drivers that write an archive into an object store are killed by SIGKILL at each kind of their requests.

The proxy before the store sees a request, kills the driver with all its child processes, and then carries the request
out or drops it. The default of eight kills (ORDERLYMQ_KILLS) is one before and one after each kind of request.
"""

import hashlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import cycle, islice, product
from pathlib import Path
from typing import Final
from uuid import uuid4

import psutil
import pytest
import yaml

from orderlymq_spark.locations.addresses import location
from orderlymq_spark.tables.parquet import path_of, published
from tests.spark.faults.aftermath import archive_faults
from tests.spark.faults.kills import ROOT
from tests.spark.s3 import BUCKET, S3, Fate, Request
from tests.spark.topics import Topics

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(7200)]

_MARK: Final = "ORDERLYMQ_KILLED_OF"
_PATIENCE_S: Final = 1800.0
_MESSAGES: Final = 40
PLACES: Final[dict[str, Callable[[Request], bool]]] = {
    "a task's file": lambda each: each.method in {"PUT", "POST"} and "/_parts/" in each.path,
    "the manifest": lambda each: each.conditional and "/_manifests/" in each.path,
    "the name of a file": lambda each: each.copies,
    "the end of a part": lambda each: each.method in {"DELETE", "POST"} and not each.copies,
}
FATES: Final[tuple[Fate, ...]] = ("cut", "served")
KILLS: Final = int(os.environ.get("ORDERLYMQ_KILLS", "2"))


@dataclass
class Killer:
    """Kills a driver at the first request of a kind, and carries the request out or drops it."""

    fits: Callable[[Request], bool]
    fate: Fate
    folder: Path
    driver: "subprocess.Popen[bytes] | None" = None
    done: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> Fate:
        with self._lock:
            if self.done or self.driver is None or not self.fits(request):
                return "cut" if self.done else "served"
            self.done = True
            end(self.driver, self.folder)
        return self.fate


def end(driver: "subprocess.Popen[bytes]", folder: Path) -> None:
    """Kill a driver and all its child processes; Spark's daemons are in other process groups."""
    with suppress(ProcessLookupError):
        os.killpg(driver.pid, signal.SIGKILL)
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(_MARK) == str(folder):
                process.kill()


def start(folder: Path) -> "subprocess.Popen[bytes]":
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "orderlymq", "pipeline", "run", str(folder / "archive.yaml")],
            cwd=ROOT,
            env={**os.environ, _MARK: str(folder), "PYSPARK_PYTHON": sys.executable},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def test_no_kill_loses_repeats_or_changes_anything_in_an_object_store(
    topics: Topics, tmp_path: Path, s3: S3
) -> None:
    """Every offset is in one manifest, once and in order; no unpublished part is left, and no published object changes."""
    topic = topics.make()
    root = location(f"s3a://{BUCKET}/{uuid4().hex}/files")
    manifest = {
        "apiVersion": "orderlymq.io/v1alpha1",
        "kind": "Pipeline",
        "metadata": {"name": "kept"},
        "spec": {
            "type": "archive",
            "source": {
                "bootstrap": topics.bootstrap,
                "topic": topic,
                "options": {"maxOffsetsPerTrigger": _MESSAGES // 2},
            },
            "checkpoint": str(tmp_path / "checkpoint"),
            "path": str(root),
            "spark": {
                "master": "local[2]",
                "settings": {"spark.python.authenticate.socketTimeout": "600s"},
            },
        },
    }
    (tmp_path / "archive.yaml").write_text(yaml.safe_dump(manifest))
    seen: dict[str, str] = {}
    changed: list[str] = []
    count = 0

    def look() -> None:
        for part in published(root):
            digest = hashlib.sha256(path_of(root, part).read_bytes()).hexdigest()
            if seen.setdefault(str(part), digest) != digest:
                changed.append(str(part))

    for fate, place in islice(cycle(product(FATES, PLACES)), KILLS):
        topics.numbered(topic, _MESSAGES, start=count)
        count += _MESSAGES
        killer = Killer(PLACES[place], fate, tmp_path)
        s3.decide = killer
        killer.driver = start(tmp_path)
        killer.driver.wait(_PATIENCE_S)
        end(killer.driver, tmp_path)
        assert killer.done, f"no driver came to {place}: {(tmp_path / 'log').read_text()[-3000:]}"
        s3.reset()
        look()
    last = start(tmp_path)
    code = last.wait(_PATIENCE_S)
    end(last, tmp_path)
    look()

    assert code == 0, (tmp_path / "log").read_text()[-3000:]
    assert changed == []
    assert archive_faults(root, topics.read(topic)) == []
    assert sum(part.size for part in published(root)) == count
