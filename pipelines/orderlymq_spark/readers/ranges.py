"""A range of a queue, read by one task in order: what all readers share."""

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.source.queuereader import range_row, read_range


class RangeReader:
    """Reads ranges in tasks; shared by batch and stream."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        self._options = options
        self._schema = schema

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a range, in order; or one row that names it (`rangesOnly`).

        Raises:
            DataLost: Some are gone and `failOnDataLoss` is true.
            SourceUnavailable: The cluster stayed away.
        """
        part = partition.value
        if part is None:
            return iter(())  # Spark plans such a one where a reader has none
        assert isinstance(part, QueueRange)
        if self._options.ranges_only:
            return iter((range_row(self._schema, part),))
        return read_range(self._options, self._schema, part)
