"""
Writers of Delta tables in an object store: they are killed at each of their requests, or lose an answer.

A writer has its own process: deltalake holds the interpreter's lock while it waits, and the proxy runs in this process.
The checks afterwards bypass the proxy.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing.process import BaseProcess
from typing import Final
from uuid import uuid4

import pyarrow as pa
import pytest

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.tables.delta import append_files, append_rows, is_table, read_table
from orderlymq_spark.tables.parquet import PartFile
from tests.spark.s3 import BUCKET, S3, Fate, Request

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

QUEUE: Final = MessageQueue("orders", "g", 0)
BATCHES: Final = ((0, 4), (4, 7))
_PATIENCE_S: Final = 300.0
_PROCESSES: Final = multiprocessing.get_context("forkserver")


def write_files(root: Location) -> None:
    """Archive two batches, continuing where the former writer stopped, as the pipeline `archive` does."""
    for batch, offsets in enumerate(BATCHES):
        rows = pa.RecordBatch.from_pydict({"queue_offset": pa.array(range(*offsets), pa.int64())})
        file = PartFile(root / f"{uuid4().hex}.parquet", QUEUE, rows.schema, "none")
        file.write(rows, "")
        append_files(root, "app", batch, [file.close()])


def write_rows(root: Location) -> None:
    """Add the rows of two batches, as `delta_batches` does; Spark repeats only the last one."""
    begin = (read_table(root).transaction_version("app") or 0) if is_table(root) else 0
    for batch, offsets in [*enumerate(BATCHES)][begin:]:
        append_rows(root, "app", batch, pa.table({"queue_offset": pa.array(range(*offsets))}))


WRITERS: Final = {"files": write_files, "rows": write_rows}


def work(kind: str, root: str, endpoint: str) -> None:
    """Run as a writer."""
    os.environ["AWS_ENDPOINT_URL"] = endpoint
    WRITERS[kind](location(root))


@dataclass
class Store:
    """The S3 server, and the writers that use its proxy."""

    s3: S3
    running: list[BaseProcess] = field(default_factory=list)

    def start(self, kind: str, root: Location) -> BaseProcess:
        endpoint = f"http://127.0.0.1:{self.s3.port}"
        writer = _PROCESSES.Process(target=work, args=(kind, str(root), endpoint))
        writer.start()
        self.running.append(writer)
        return writer

    def end(self) -> list[int | None]:
        """Wait for all writers; return their exit codes."""
        for each in self.running:
            each.join(_PATIENCE_S)
        ended = [each.exitcode for each in self.running]
        self.running.clear()
        self.s3.reset()
        return ended


@pytest.fixture
def store(s3: S3, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{s3.backend}")
    _PROCESSES.set_forkserver_preload([__name__])
    store = Store(s3)
    yield store
    for each in store.running:
        each.kill()


def roots() -> Iterator[Location]:
    """Return empty folders of the store."""
    base = uuid4().hex
    return (location(f"s3a://{BUCKET}/{base}/{number}") for number in count())


class At:
    """Calls a function at one of the changing requests, by its number."""

    def __init__(self, number: int, act: Callable[[], Fate]) -> None:
        self._left, self._act, self._lock = number, act, threading.Lock()
        self.at: Request | None = None

    def __call__(self, request: Request) -> Fate:
        with self._lock:
            if request.method in {"GET", "HEAD"} or self.at is not None:
                return "served"
            self._left -= 1
            if self._left >= 0:
                return "served"
            self.at = request
            return self._act()


def offsets_in(root: Location) -> list[int]:
    return sorted(read_table(root).to_pyarrow_table()["queue_offset"].to_pylist())


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("fate", ["cut", "served"])
def test_a_writer_may_be_killed_at_every_request(store: Store, kind: str, fate: Fate) -> None:
    """Whether the request was carried out or not, the next writer ends with each row once."""
    for number, root in enumerate(roots()):
        writers: list[BaseProcess] = []

        def kill(writers: list[BaseProcess] = writers) -> Fate:
            writers[0].kill()
            return fate

        store.s3.decide = moment = At(number, kill)
        writers.append(store.start(kind, root))
        (ended,) = store.end()
        assert (ended == 0) == (moment.at is None)

        WRITERS[kind](root)

        assert offsets_in(root) == list(range(7)), moment.at
        if moment.at is None:
            break
    assert number >= len(BATCHES) * 2  # a file and a commit for each


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("fate", ["busy", "answer lost"])
def test_a_writer_goes_on_whatever_becomes_of_an_answer(
    store: Store, kind: str, fate: Fate
) -> None:
    """A writer recognises its own commit after a lost answer: the batch neither fails nor is stored twice."""
    for number, root in enumerate(roots()):
        store.s3.decide = moment = At(number, lambda: fate)
        store.start(kind, root)
        assert store.end() == [0], moment.at

        assert offsets_in(root) == list(range(7)), moment.at
        if moment.at is None:
            break
