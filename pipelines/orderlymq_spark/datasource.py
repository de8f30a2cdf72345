"""
The format "orderlymq": batch read, stream read, batch write, stream write.

Spark calls these classes; the logic is in `offsets`, `readers`, `source` and `sink`. Rules: one task reads one range
of a queue, in order. Missing messages raise an error or are recorded; they are never skipped silently. A repeated
batch reads exactly the same ranges.
"""

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
)
from pyspark.sql.types import StructType

from orderlymq_spark.columns import COLUMNS, OF_VALUE, RANGE_COLUMNS, ddl
from orderlymq_spark.errors import OptionError
from orderlymq_spark.options import parse_sink, parse_source, parse_stream
from orderlymq_spark.readers.batch import FilteringReader, OrderlyMQReader
from orderlymq_spark.readers.older import OlderStreamReader
from orderlymq_spark.readers.stream import OrderlyMQStreamReader
from orderlymq_spark.sink.writer import OrderedBatchWriter, OrderedStreamWriter
from orderlymq_spark.source.batches import ARROW_TYPES
from orderlymq_spark.sparkversion import HAS_FILTERS, HAS_LIMITS, arrow_type, stream_writer
from orderlymq_spark.values.decoder import value_type


class OrderlyMQDataSource(DataSource):
    """A data source that reads topics as tables and streams, and writes tables and streams to topics."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "orderlymq"

    def schema(self) -> str:
        """Return the columns that the options ask for."""
        options = parse_source(self.options)
        if options.ranges_only:
            return ddl(tuple(RANGE_COLUMNS), RANGE_COLUMNS)
        columns = ddl(options.columns)
        if options.value is None:
            return columns
        return f"{columns}, value {value_type(options.value)}, value_error string"

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the batch reader."""
        options = parse_source(self.options)
        filters = options.push_filters and HAS_FILTERS and not options.ranges_only
        kind = FilteringReader if filters else OrderlyMQReader
        return kind(options, _arrow_schema(schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """Return the stream reader."""
        kind = OrderlyMQStreamReader if HAS_LIMITS else OlderStreamReader
        return kind(parse_stream(self.options), _arrow_schema(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        """Return the batch writer."""
        if overwrite:
            raise OptionError("a topic cannot be overwritten; write with mode('append')")
        return OrderedBatchWriter(parse_sink(self.options), types_of(schema))

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,
    ) -> DataSourceStreamWriter:
        """Return the stream writer."""
        writer = OrderedStreamWriter(parse_sink(self.options), types_of(schema))
        return stream_writer(writer, schema)


def types_of(schema: StructType) -> dict[str, str]:
    """Return Spark's name for the type of each column."""
    return {each.name: each.dataType.simpleString() for each in schema.fields}


def _arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of the selected columns, exactly as Spark compares it.

    Raises:
        OptionError: The user's schema has a column that topics do not have, or a column of another type.
    """
    fields = []
    known = RANGE_COLUMNS if schema.names == list(RANGE_COLUMNS) else COLUMNS
    for each in schema.fields:
        if each.name in OF_VALUE:
            fields.append(pa.field(each.name, arrow_type(each.dataType), nullable=each.nullable))
            continue
        kind = known.get(each.name)
        if kind is None or each.dataType.simpleString() != kind:
            raise OptionError(
                f"the schema's column {each.name} {each.dataType.simpleString()} does not exist in "
                f"a topic; there are: {', '.join(f'{name} {kind}' for name, kind in COLUMNS.items())}"
            )
        fields.append(pa.field(each.name, ARROW_TYPES[kind], nullable=each.nullable))
    return pa.schema(fields)
