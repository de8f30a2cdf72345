"""Batches of any stream in a Delta table: each once, whatever is repeated."""

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from orderlymq_spark.frames import delta_batches
from orderlymq_spark.locations.location import location
from orderlymq_spark.tables.delta import append_rows, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_batch_is_one_commit_and_a_repeat_of_it_none(tmp_path: Path) -> None:
    """Batches of another stream have numbers of their own; a new column is added, and an empty batch is no commit."""
    root, rows = location(tmp_path / "table"), pa.table({"n": [1, 2]})
    for app_id, batch in (("a", 0), ("a", 0), ("b", 0), ("a", 1), ("a", 0), ("b", 0)):
        append_rows(root, app_id, batch, rows)
    append_rows(root, "a", 2, pa.table({"n": [3], "said": ["x"]}))
    append_rows(root, "a", 3, rows.slice(0, 0))

    found = read_table(root).to_pyarrow_table().to_pylist()
    assert sorted(each["n"] for each in found) == [1, 1, 1, 2, 2, 2, 3]
    assert [each["said"] for each in found if each["n"] == 3] == ["x"]
    assert read_table(root).version() == 4


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_frame_that_spark_gives_again_adds_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """`foreachBatch` gives a batch again when the driver has died between the table's commit and Spark's own."""
    append = delta_batches(tmp_path / "table", "numbers")
    for batch, end in ((0, 3), (0, 3), (1, 6), (1, 6)):
        frame = spark.range(3 * batch, end).selectExpr("id", "current_timestamp() as at")
        append(frame, batch)

    rows = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == list(range(6))
