"""The base of all readers: one task reads one range of a queue, in order."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.source.queuereader import range_row, read_range


class RangeReader:
    """A reader of ranges in tasks; the base of the batch and stream readers."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a range, in order, or one row that names the range (`rangesOnly`).

        Raises:
            DataLost: Messages are missing and `failOnDataLoss` is true.
            SourceUnavailable: The cluster was unavailable longer than `retryTimeout`.
        """
        part = partition.value
        if part is None:
            return iter(())  # Spark plans an empty partition if a reader has none
        assert isinstance(part, QueueRange)
        if self._options.ranges_only:
            return iter((range_row(self._schema, part),))
        return read_range(self._options, self._schema, part)
