"""Commits to Delta tables: each batch once, whatever is repeated."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.locations.location import location
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.tables.delta import append_files
from orderlymq_spark.tables.parquet import Part

QUEUE = MessageQueue("orders", "g", 0)


def write(root: Path, name: str, start: int, end: int) -> Part:
    path = root / f"{name}.parquet"
    offsets = pa.array(range(start, end), pa.int64())
    pq.write_table(pa.table({"queue_offset": offsets}), path)
    return Part(str(path), QueueRange(QUEUE, start, end), end - start, path.stat().st_size)


def test_a_batch_that_is_repeated_is_in_the_table_once(tmp_path: Path) -> None:
    """Committed, committed again with files written again, an older one again: every offset once."""
    first, second = (0, 5), (5, 9)

    append_files(location(tmp_path), "app", 0, [write(tmp_path, "a", *first)])
    append_files(location(tmp_path), "app", 1, [write(tmp_path, "b", *second)])
    append_files(location(tmp_path), "app", 1, [write(tmp_path, "c", *second)])
    append_files(location(tmp_path), "app", 0, [write(tmp_path, "d", *first)])

    table = DeltaTable(str(tmp_path))
    assert sorted(table.to_pyarrow_table()["queue_offset"].to_pylist()) == list(range(9))
    assert table.version() == 1


def offsets_in(root: Path) -> list[int]:
    found: list[int] = DeltaTable(str(root)).to_pyarrow_table()["queue_offset"].to_pylist()
    return found


def test_another_checkpoint_under_the_same_name_is_refused(tmp_path: Path) -> None:
    """Its batches have the numbers of others: they would be taken for those, or hold what is there already."""
    append_files(location(tmp_path), "app", 0, [write(tmp_path, "a", 0, 5)])
    append_files(location(tmp_path), "app", 1, [write(tmp_path, "b", 5, 9)])
    # Somebody else's commits stand between.
    append_files(location(tmp_path), "other", 7, [write(tmp_path, "c", 0, 1)])

    with pytest.raises(SinkConflict, match="from another checkpoint"):
        append_files(location(tmp_path), "app", 0, [write(tmp_path, "d", 0, 12)])
    with pytest.raises(SinkConflict, match=r"orders g:0 \[4, 12\)"):
        append_files(location(tmp_path), "app", 2, [write(tmp_path, "e", 4, 12)])

    assert sorted(offsets_in(tmp_path)) == sorted([*range(9), 0])
    append_files(location(tmp_path), "app", 2, [write(tmp_path, "f", 9, 12)])
    assert sorted(offsets_in(tmp_path)) == sorted([*range(12), 0])


def test_a_queue_that_has_nothing_in_a_batch_is_not_forgotten(tmp_path: Path) -> None:
    """How far the application has come is known of every queue, whichever batch brought it."""
    other = Part(*_of_another_queue(tmp_path))
    append_files(location(tmp_path), "app", 0, [write(tmp_path, "a", 0, 5), other])
    append_files(location(tmp_path), "app", 1, [write(tmp_path, "b", 5, 9)])

    with pytest.raises(SinkConflict, match="orders g:1"):
        append_files(location(tmp_path), "app", 2, [Part(*_of_another_queue(tmp_path))])


def _of_another_queue(root: Path) -> tuple[str, QueueRange, int, int]:
    part = write(root, "z", 0, 2)
    queue = MessageQueue("orders", "g", 1)
    return part.path, QueueRange(queue, 0, 2), part.rows, part.size_bytes
