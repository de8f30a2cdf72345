"""A full disk: the writer fails, and removes unfinished files that would use up the remaining room."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from orderlymq_spark.locations.addresses import location
from orderlymq_spark.source.queuereader import MESSAGE_TYPES
from orderlymq_spark.tables.archive import ArchiveWriter, Written
from orderlymq_spark.tables.parquet import Part

ROOM = 64 << 10


@contextmanager
def little_room() -> Iterator[None]:
    """Let no file grow beyond ROOM: the next write fails as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def rows(queue: int, size: int) -> pa.RecordBatch:
    values = {
        "topic": "orders",
        "broker": "demo-0",
        "queue_id": queue,
        "queue_offset": 0,
        "body": Random(queue).randbytes(size),
    }
    schema = pa.schema([pa.field(name, MESSAGE_TYPES[name]) for name in values])
    return pa.RecordBatch.from_pylist([values], schema)


def size_around_a_body(folder: Path) -> int:
    """Return the size of a file without the body of its only row."""
    (part,) = written(
        ArchiveWriter(location(folder), "app", "none", kind="delta"), [rows(9, ROOM // 2)]
    )
    Path(part.path).unlink()
    return part.size_bytes - ROOM // 2


def written(writer: ArchiveWriter, batches: list[pa.RecordBatch]) -> list[Part]:
    found = writer.write(iter(batches))
    assert isinstance(found, Written)
    return found.parts


@pytest.mark.parametrize("kind", ["parquet", "delta"])
@pytest.mark.parametrize("late", [False, True], ids=["at the rows", "at the end of a file"])
def test_a_task_that_finds_the_disk_full_leaves_no_file(
    tmp_path: Path, *, kind: str, late: bool
) -> None:
    """The task removes the file of the queue that did not fit and all others, finished or not."""
    size = ROOM + 100 - size_around_a_body(tmp_path) if late else 2 * ROOM
    batches = [rows(0, 10), rows(1, size), rows(2, 10)]
    writer = ArchiveWriter(location(tmp_path), "app", "none", kind=kind)

    with little_room(), pytest.raises(OSError, match="too large"):
        writer.write(iter(batches))

    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    # When there is room again, the same batch can be written.
    assert [part.rows for part in written(writer, batches)] == [1, 1, 1]


def test_a_file_that_does_not_fit_is_not_there_and_the_former_one_is(tmp_path: Path) -> None:
    """A status or manifest is written completely or stays as it was."""
    path = tmp_path / "status.json"
    location(path).write("before")

    with little_room(), pytest.raises(OSError, match="too large"):
        location(path).write("x" * 2 * ROOM)

    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [
        ("status.json", "before")
    ]
