"""
The running version of Spark, and replacements for features that versions since 4.0 lack.

Spark 4.0 has no Arrow writer for streams (`stream_writer` converts its rows to Arrow) and pushes no filters. Spark 4.0
and 4.1 have no limits per batch (`readers.older`). Rule: no other module checks Spark's version.
"""

import ast
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import __version__
from pyspark.sql import Row
from pyspark.sql.datasource import DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import DataType, StructType

SPARK: Final = tuple(int(part) for part in re.findall(r"\d+", __version__)[:2])
HAS_ARROW_WRITERS: Final = SPARK >= (4, 1)
HAS_FILTERS: Final = SPARK >= (4, 1)
HAS_LIMITS: Final = SPARK >= (4, 2)
_BATCH_ROWS: Final = 4096

if TYPE_CHECKING or HAS_ARROW_WRITERS:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:

    class DataSourceStreamArrowWriter(DataSourceStreamWriter):
        """A writer of Arrow batches, missing in Spark 4.0; `stream_writer` feeds it."""


if TYPE_CHECKING or HAS_LIMITS:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
else:

    class ReadLimit:
        """Missing in Spark before 4.2."""

    class ReadAllAvailable(ReadLimit):
        """A batch of all available rows."""

    class ReadMaxRows(ReadLimit):
        """A limit on the rows of a batch."""

    class ReadMaxBytes(ReadLimit):
        """A limit on the bytes of a batch."""

    class SupportsTriggerAvailableNow:
        """An empty class: older versions of Spark fix the end themselves and make one batch."""


__all__ = [
    "HAS_ARROW_WRITERS",
    "HAS_FILTERS",
    "HAS_LIMITS",
    "SPARK",
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "arrow_type",
    "stream_writer",
]


def stream_writer(
    writer: DataSourceStreamArrowWriter, schema: StructType
) -> DataSourceStreamWriter:
    """Return the writer in the form that this Spark takes: 4.0 passes rows, which are converted back to Arrow batches."""
    return writer if HAS_ARROW_WRITERS else RowWriter(writer, schema)


class RowWriter(DataSourceStreamWriter):
    """A writer that converts the rows of a stream to Arrow batches for another writer."""

    def __init__(self, writer: DataSourceStreamArrowWriter, schema: StructType) -> None:
        self._writer = writer
        self._schema = pa.schema(
            [pa.field(each.name, arrow_type(each.dataType), each.nullable) for each in schema]
        )

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        """Write the rows of one task."""
        return self._writer.write(rows_as_batches(iterator, self._schema))

    def commit(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 - Spark's name
        """Commit through the Arrow writer."""
        self._writer.commit(messages, batchId)

    def abort(self, messages: "list[WriterCommitMessage | None]", batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort through the Arrow writer."""
        self._writer.abort(messages, batchId)


def arrow_type(kind: DataType) -> pa.DataType:
    """Return the Arrow type that Spark expects for a column of this type."""
    if "timezone" in inspect.signature(to_arrow_type).parameters:
        return to_arrow_type(kind, timezone="UTC")
    return to_arrow_type(kind)  # times are in UTC here


def progress_offsets(value: object) -> Any:
    """Return an offset from a query's progress: JSON, or before Spark 4.2 the Python repr of the JSON values."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return ast.literal_eval(value)


def rows_as_batches(rows: Iterable[Sequence[Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield Spark's rows as Arrow batches; a time without a zone is in this process's zone, as Spark gives it."""
    left = iter(rows)
    while part := list(islice(left, _BATCH_ROWS)):
        columns = zip(*part, strict=True)
        arrays = [
            pa.array([_arrow_value(value, field.type) for value in column], field.type)
            for column, field in zip(columns, schema, strict=True)
        ]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)


def _arrow_value(value: Any, kind: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_timestamp(kind) and kind.tz:
        return value.astimezone(UTC)
    if pa.types.is_struct(kind):
        fields = zip(value, kind, strict=True)
        return {field.name: _arrow_value(each, field.type) for each, field in fields}
    if pa.types.is_map(kind):
        return [(key, _arrow_value(each, kind.item_type)) for key, each in value.items()]
    if pa.types.is_list(kind):
        return [_arrow_value(each, kind.value_type) for each in value]
    return bytes(value) if pa.types.is_binary(kind) else value
