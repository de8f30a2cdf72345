"""Batches of any stream in a Delta table: each is stored once, whatever is repeated."""

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException

from orderlymq_spark.errors import SinkConflict
from orderlymq_spark.frames import delta_batches
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.tables.delta import append_rows, read_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_batch_is_one_commit_and_a_repeat_of_it_none(tmp_path: Path) -> None:
    """Another stream has its own batch numbers; a new column is added, and an empty batch makes no commit."""
    root, rows = location(tmp_path / "table"), pa.table({"n": [1, 2]})
    for app_id, batch in (("a", 0), ("a", 0), ("b", 0), ("a", 1), ("a", 1), ("b", 0)):
        append_rows(root, app_id, batch, rows)
    append_rows(root, "a", 2, pa.table({"n": [3], "said": ["x"]}))
    append_rows(root, "a", 3, rows.slice(0, 0))

    found = read_table(root).to_pyarrow_table().to_pylist()
    assert sorted(each["n"] for each in found) == [1, 1, 1, 2, 2, 2, 3]
    assert [each["said"] for each in found if each["n"] == 3] == ["x"]
    assert read_table(root).version() == 4


def test_batches_of_another_checkpoint_are_refused(tmp_path: Path) -> None:
    """Spark repeats only its last batch, so an earlier number belongs to another checkpoint, whose rows would be dropped."""
    root = location(tmp_path / "table")
    for batch in (0, 5):
        append_rows(root, "a", batch, pa.table({"n": [batch]}))

    with pytest.raises(SinkConflict, match="batch 0 of a comes after batch 5"):
        append_rows(root, "a", 0, pa.table({"n": [7]}))
    assert sorted(read_table(root).to_pyarrow_table()["n"].to_pylist()) == [0, 5]


def test_a_batch_with_the_number_of_another_checkpoints_last_is_refused(tmp_path: Path) -> None:
    """A new checkpoint begins at 0 again, and its batch would be dropped as a repeat."""
    root = location(tmp_path / "table")
    append_rows(root, "a", 0, pa.table({"n": [0]}), "first")

    with pytest.raises(SinkConflict, match="this is another checkpoint"):
        append_rows(root, "a", 0, pa.table({"n": [7]}), "second")
    append_rows(root, "b", 0, pa.table({"n": [8]}), "second")
    append_rows(root, "a", 0, pa.table({"n": [0]}), "first")
    append_rows(root, "a", 1, pa.table({"n": [1]}), "first")
    assert sorted(read_table(root).to_pyarrow_table()["n"].to_pylist()) == [0, 1, 8]


@pytest.mark.parametrize(
    "other",
    [pa.array([1.7]), pa.array(["x"]), pa.array([1 << 40])],
    ids=["fraction", "text", "large"],
)
def test_values_that_do_not_fit_a_column_are_refused(tmp_path: Path, other: pa.Array) -> None:
    """Delta would cast them, for example 1.7 to 1. Values that fit get the table's type."""
    root = location(tmp_path / "table")
    append_rows(root, "a", 0, pa.table({"n": pa.array([1], pa.int32())}))

    with pytest.raises(SinkConflict, match="column n is int32"):
        append_rows(root, "a", 1, pa.table({"n": other}))
    append_rows(root, "a", 1, pa.table({"n": pa.array([2], pa.int64())}))
    assert sorted(read_table(root).to_pyarrow_table()["n"].to_pylist()) == [1, 2]


AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
UTC_TIME = pa.timestamp("us", "UTC")


@pytest.mark.parametrize("inside", ["plain", "struct", "list", "map", "deep"])
@pytest.mark.parametrize(
    ("there", "here", "good", "bad"),
    [
        (pa.float32(), pa.float64(), [1.5, float("nan"), float("inf")], 1e300),
        (pa.float32(), pa.float64(), [-0.0], 0.1),
        (pa.float64(), pa.decimal128(38, 0), [Decimal(1 << 70)], Decimal(10**37 + 1)),
        (pa.int32(), pa.float64(), [2.0], 1.7),
        (pa.int32(), pa.int64(), [7], 1 << 40),
        (pa.bool_(), pa.int32(), [0, 1], 7),
        (pa.date32(), UTC_TIME, [AT.replace(hour=0, minute=0, second=0)], AT),
    ],
)
def test_a_value_that_would_be_changed_is_refused(
    tmp_path: Path, there: pa.DataType, here: pa.DataType, good: list[Any], bad: Any, inside: str
) -> None:
    """Values in structs, arrays and maps are checked, too; Delta itself would turn 1.7 into 1, and 1e300 into infinity."""

    def table(kind: pa.DataType, *values: Any) -> pa.Table:
        kinds = {
            "plain": (kind, lambda each: each),
            "struct": (pa.struct([("a", kind)]), lambda each: {"a": each}),
            "list": (pa.list_(kind), lambda each: [None, each]),
            "map": (pa.map_(pa.string(), kind), lambda each: [("k", each)]),
            "deep": (pa.list_(pa.struct([("a", kind)])), lambda each: [None, {"a": each}]),
        }
        outer, put = kinds[inside]
        return pa.table({"x": pa.array([None, *map(put, values)], outer)})

    root = location(tmp_path / "table")
    append_rows(root, "a", 0, table(there))

    with pytest.raises(SinkConflict, match="column x is "):
        append_rows(root, "a", 1, table(here, *good, bad))
    append_rows(root, "a", 1, table(here, *good))

    assert read_table(root).to_pyarrow_table().num_rows == 2 + len(good)


def test_a_time_is_of_one_type_in_whatever_zone(tmp_path: Path) -> None:
    """Spark gives times in its session's zone, which may change."""
    root = location(tmp_path / "table")
    for batch, zone in enumerate(("UTC", "Asia/Shanghai", "+08:00")):
        kind, at = pa.timestamp("us", zone), datetime(2026, 1, 1, tzinfo=UTC)
        inner = pa.array([{"at": at}], pa.struct([pa.field("at", kind)]))
        append_rows(root, "a", batch, pa.table({"at": pa.array([at], kind), "value": inner}))

    assert read_table(root).to_pyarrow_table().num_rows == 3


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_frame_that_spark_gives_again_adds_nothing(spark: "SparkSession", tmp_path: Path) -> None:
    """`foreachBatch` gets a batch again if the driver died between the table's commit and Spark's own."""
    append = delta_batches(tmp_path / "table", "numbers")
    for batch, end in ((0, 3), (0, 3), (1, 6), (1, 6)):
        frame = spark.range(3 * batch, end).selectExpr("id", "current_timestamp() as at")
        append(frame, batch)

    rows = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(rows["id"].to_pylist()) == list(range(6))


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_stream_whose_checkpoint_was_deleted_drops_no_rows(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """A run of one batch and a run with a new checkpoint both write batch 0; the second run fails."""
    append = delta_batches(tmp_path / "table", "numbers")
    (tmp_path / "source").mkdir()

    def run(number: int, checkpoint: str) -> None:
        (tmp_path / "source" / f"{number}.json").write_text(f'{{"n": {number}}}')
        rows = spark.readStream.schema("n int").json(str(tmp_path / "source"))
        query = rows.writeStream.foreachBatch(append).trigger(availableNow=True)
        query.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination()

    run(0, "first")
    with pytest.raises(StreamingQueryException, match="this is another checkpoint"):
        run(1, "second")
    run(2, "first")

    rows = DeltaTable(tmp_path / "table").to_pyarrow_table()
    assert sorted(rows["n"].to_pylist()) == [0, 1, 2]
