"""Compaction of files that cannot all be merged, or cannot be read."""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import StoreFailed
from orderlymq_spark.jobs import compact
from orderlymq_spark.locations.local import LocalLocation
from orderlymq_spark.locations.location import Location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.specs import CompactSpec
from orderlymq_spark.tables.parquet import PartFile, parts_folder, path_of, publish, published

QUEUES = [MessageQueue("orders", "g", number) for number in range(2)]
pytestmark = pytest.mark.parametrize("root", ["local"], indirect=True)


@dataclass(frozen=True, slots=True)
class Narrow(LocalLocation):
    """A place whose store permits listing only inside the archive."""

    @property
    def parent(self) -> "Narrow":
        return Forbidden(str(Path(self.path).parent))


class Forbidden(Narrow):
    """A folder whose parents may not be listed."""

    def __truediv__(self, name: str) -> "Forbidden":
        return Forbidden(str(Path(self.path) / name))

    def names(self) -> list[str]:
        raise StoreFailed(f"the object store did not list {self}: 403 AccessDenied")


def archive(root: Location, batch: int, *more: str) -> None:
    """Publish two offsets of each queue, with columns in addition to the offset."""
    parts = []
    for queue in QUEUES:
        file = PartFile(
            parts_folder(root, "a", batch) / f"{queue.queue_id}.part",
            queue,
            rows(0, more).schema,
            "none",
        )
        file.write(rows(2 * batch, more), "")
        parts.append(file.close())
    publish(root, "a", batch, parts)


def rows(start: int, more: tuple[str, ...]) -> pa.RecordBatch:
    said = {name: pa.array(["x", "y"]) for name in more}
    return pa.RecordBatch.from_pydict({"queue_offset": pa.array([start, start + 1]), **said})


def compacted(root: Location) -> Outcome:
    spec = CompactSpec(type="compact", path=root, min_files=2)
    return compact.run("c", spec, None)  # type: ignore[arg-type]  # needs no Spark


def ranges_of(root: Location, queue: MessageQueue) -> list[tuple[int, int]]:
    return [(each.start, each.end) for each in published(root) if each.queue == queue]


@pytest.mark.parametrize("name", ["archive", "data"])
def test_the_right_to_list_the_archive_is_enough(root: Location, name: str) -> None:
    """An Iceberg table is detected above a folder `data`; without the right to list there, it is no table."""
    place = Narrow(str(root / name))
    archive(place, 0)
    archive(place, 1)

    assert compacted(place).passed
    assert ranges_of(place, QUEUES[0]) == [(0, 4)]


def test_files_are_put_together_up_to_where_the_columns_change(root: Location) -> None:
    """The columns changed twice; each file keeps its own columns."""
    for batch in range(6):
        archive(root, batch, *(("body",) if 2 <= batch < 4 else ()))

    outcome = compacted(root)

    assert outcome.passed
    for queue in QUEUES:
        assert ranges_of(root, queue) == [(0, 4), (4, 8), (8, 12)]
        with pq.ParquetFile(path_of(root, QueueRange(queue, 4, 8)).open()) as file:
            assert file.schema_arrow.names == ["queue_offset", "body"]


def test_a_file_that_cannot_be_read_stops_its_own_group_only(root: Location) -> None:
    """The error names the file, and the run fails after the other groups are done."""
    for batch in range(3):
        archive(root, batch)
    path_of(root, QueueRange(QUEUES[0], 2, 4)).write(b"no parquet")

    outcome = compacted(root)

    assert not outcome.passed
    assert "orders g:0" in outcome.text
    assert ranges_of(root, QUEUES[0]) == [(0, 2), (2, 4), (4, 6)]
    assert ranges_of(root, QUEUES[1]) == [(0, 6)]


def test_row_groups_are_neither_small_nor_large(root: Location) -> None:
    """Small row groups are merged and large ones split: once, a whole decompressed file was held in memory."""
    body = b"x" * (1 << 20)
    start = 0
    for batch, counts in enumerate(([1] * 20, [100])):
        schema = pa.schema([("queue_offset", pa.int64()), ("body", pa.binary())])
        file = PartFile(parts_folder(root, "a", batch) / "p.part", QUEUES[0], schema, "zstd")
        for count in counts:
            offsets = pa.array(range(start, start + count), pa.int64())
            file.write(pa.record_batch([offsets, [body] * count], schema), "")
            start += count
        publish(root, "a", batch, [file.close()])

    assert compacted(root).passed

    with pq.ParquetFile(path_of(root, QueueRange(QUEUES[0], 0, start)).open()) as file:
        rows = [file.metadata.row_group(n).num_rows for n in range(file.metadata.num_row_groups)]
        assert file.read(["queue_offset"])["queue_offset"].to_pylist() == list(range(start))
    assert rows == [20, 63, 37]
