"""Commits to Delta tables: each batch once, whatever is repeated."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable

from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_spark.archivefiles import Part
from orderlymq_spark.deltatable import append_files
from orderlymq_spark.offsets import QueueRange

QUEUE = MessageQueue("orders", "g", 0)


def write(root: Path, name: str, start: int, end: int) -> Part:
    path = root / f"{name}.parquet"
    offsets = pa.array(range(start, end), pa.int64())
    pq.write_table(pa.table({"queue_offset": offsets}), path)
    return Part(str(path), QueueRange(QUEUE, start, end), end - start, path.stat().st_size)


def test_a_batch_that_is_repeated_is_in_the_table_once(tmp_path: Path) -> None:
    """Committed, committed again with files written anew, an older one again: every offset once."""
    first, second = (0, 5), (5, 9)

    append_files(tmp_path, "app", 0, [write(tmp_path, "a", *first)])
    append_files(tmp_path, "app", 1, [write(tmp_path, "b", *second)])
    append_files(tmp_path, "app", 1, [write(tmp_path, "c", *second)])
    append_files(tmp_path, "app", 0, [write(tmp_path, "d", *first)])

    table = DeltaTable(str(tmp_path))
    assert sorted(table.to_pyarrow_table()["queue_offset"].to_pylist()) == list(range(9))
    assert table.version() == 1
