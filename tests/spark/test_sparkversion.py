"""Replacements for features that older versions of Spark lack."""

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from orderlymq_spark.sparkversion import RowWriter, progress_offsets

SCHEMA = StructType(
    [
        StructField("offset", LongType()),
        StructField("at", TimestampType()),
        StructField("keys", ArrayType(StringType())),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("body", BinaryType()),
        StructField("inner", StructType([StructField("n", IntegerType())])),
    ]
)
MOMENT = datetime(2026, 1, 31, 12, tzinfo=UTC)


class Noted:
    """A writer of Arrow batches that records its batches."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def write(self, iterator: Any) -> WriterCommitMessage:
        self.calls += list(iterator)
        return WriterCommitMessage()

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.calls.append(("commit", len(messages), batchId))

    def abort(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.calls.append(("abort", len(messages), batchId))


def test_rows_come_to_a_writer_as_the_batches_that_they_were() -> None:
    """Spark 4.0 gives rows with times in the process's zone; all values and nulls arrive."""
    here = MOMENT.astimezone().replace(tzinfo=None)
    rows = [
        Row(
            offset=number,
            at=here,
            keys=["a", "b"],
            properties={"n": "1"},
            body=bytearray(b"x"),
            inner=Row(n=number),
        )
        for number in range(5000)
    ] + [Row(offset=None, at=None, keys=None, properties=None, body=None, inner=None)]
    noted = Noted()
    writer = RowWriter(noted, SCHEMA)  # type: ignore[arg-type]  # a writer by its methods

    message = writer.write(iter(rows))
    writer.commit([message], 3)
    writer.abort([], 4)

    *batches, committed, aborted = noted.calls
    assert (committed, aborted) == (("commit", 1, 3), ("abort", 0, 4))
    found = pa.Table.from_batches(batches).to_pylist()
    assert len(found) == len(rows)
    assert found[7] == {
        "offset": 7,
        "at": MOMENT,
        "keys": ["a", "b"],
        "properties": [("n", "1")],
        "body": b"x",
        "inner": {"n": 7},
    }
    assert set(found[-1].values()) == {None}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ('{"orders": {"b": {"0": 7}}}', {"orders": {"b": {"0": 7}}}),
        ("{'orders': {'b': {'0': 7}}}", {"orders": {"b": {"0": 7}}}),
        ("None", None),
        ("null", None),
        ({"orders": {}}, {"orders": {}}),
        (None, None),
    ],
)
def test_offsets_of_a_progress_are_read_in_every_form(given: object, expected: object) -> None:
    """Offsets are JSON, and before 4.2 the result of Python's str()."""
    assert progress_offsets(given) == expected
