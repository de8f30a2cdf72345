"""
The format "orderlymq_archive": a stream of messages into Parquet files, a Delta or an Iceberg table, each once.

Rows are messages. With the option `source` (options of the format "orderlymq" as JSON), rows are ranges of queues, and
the tasks read their messages from the brokers. Tasks write files that readers do not see. The driver publishes the
files of a finished batch (`parquet`), or commits them to the table under (appId, batch). An Iceberg table is named by
`catalog` (JSON) and `table`, and `path` is its data folder. Rule: commit may be repeated, and abort deletes nothing,
because Spark calls it with good files after a failed commit.
"""

import json
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.columns import RANGE_COLUMNS
from orderlymq_spark.errors import OptionError
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.options import SPARKS_OWN, parse_source
from orderlymq_spark.sparkversion import DataSourceStreamArrowWriter, stream_writer
from orderlymq_spark.tables.parquet import Part, PartFile, parts_folder, publish

_OPTIONS: Final = ("path", "appId", "format", "codec", "source", "catalog", "table")
_PLACE: Final = ("topic", "broker", "queue_id", "queue_offset")


class ArchiveDataSource(DataSource):
    """A data source that only writes."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "orderlymq_archive"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's names
        """Return the stream writer.

        Raises:
            OptionError: An option is missing, unknown or has a wrong value, or a column is missing.
        """
        known = {name.lower() for name in _OPTIONS}
        for name in self.options:
            if name.lower() not in known and name.lower() not in SPARKS_OWN:
                raise OptionError(f"the archive has no option {name}; known: {', '.join(_OPTIONS)}")
        path, app_id = self.options.get("path", ""), self.options.get("appId", "")
        if not path or not app_id:
            raise OptionError("the archive needs the options path and appId")
        root = location(path)
        source = json.loads(self.options.get("source", "null"))
        check_place(schema.names, RANGE_COLUMNS if source else _PLACE)
        kind = self.options.get("format", "parquet")
        if kind not in ("parquet", "delta", "iceberg"):
            raise OptionError(f"format is {kind!r}; it must be parquet, delta or iceberg")
        catalog, table = json.loads(self.options.get("catalog", "null")), self.options.get("table")
        if (kind == "iceberg") != bool(catalog and table):
            raise OptionError(
                "format iceberg needs the options catalog and table; other formats do not accept them"
            )
        codec = self.options.get("codec", "zstd")
        named = (catalog["name"], catalog["properties"], str(table)) if catalog else None
        writer = ArchiveWriter(root, app_id, codec, kind=kind, table=named, source=source)
        return stream_writer(writer, schema)


def check_place(names: Sequence[str], needed: Iterable[str] = _PLACE) -> None:
    """Check that the rows have the columns that locate them.

    Raises:
        OptionError: A column is missing.
    """
    for name in needed:
        if name not in names:
            raise OptionError(f"the archive needs the column {name}; the rows have {list(names)}")


@dataclass
class Written(WriterCommitMessage):
    """The files that one task has written."""

    parts: list[Part]


class ArchiveWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one stream.

    Args:
        kind: the format.
        table: for Iceberg: name and properties of the catalogue, and the name of the table.
        source: if the rows are ranges, the options for reading their messages.
    """

    def __init__(
        self,
        root: Location,
        app_id: str,
        codec: str,
        *,
        kind: str,
        table: tuple[str, dict[str, str], str] | None = None,
        source: dict[str, str] | None = None,
    ) -> None:
        self._root = root
        self._app_id = app_id
        self._codec = codec
        self._kind = kind
        self._table = table
        self._source = source

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of one task, with one file per queue.

        Raises:
            SinkConflict: The rows of a queue are not in offset order.
            OSError, StoreFailed: The disk is full or the object store is unavailable; the batch is repeated later.
        """
        context = TaskContext.get()
        batch = int((context and context.getLocalProperty("streaming.sql.batchId")) or 0)
        names_files = self._kind == "parquet"
        folder = parts_folder(self._root, self._app_id, batch) if names_files else self._root
        files: dict[MessageQueue, PartFile] = {}
        try:
            for incoming in self._messages(iterator):
                for queue, rows in by_queue(incoming):
                    if queue not in files:
                        suffix = "part" if names_files else "parquet"
                        path = folder / f"{uuid.uuid4()}.{suffix}"
                        files[queue] = PartFile(path, queue, rows.schema, self._codec)
                    files[queue].write(
                        rows,
                        f"the rows of {queue} are not in offset order: an archive needs "
                        "the frame as it was read, without minPartitions, repartition or joins",
                    )
            # Close inside the `try`, because writing the end of a file may fill the disk.
            return Written([file.close() for file in files.values()])
        except BaseException:
            for file in files.values():
                file.discard()
            raise

    def _messages(self, incoming: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        if self._source is None:
            yield from incoming
            return
        from orderlymq_spark.source.queuereader import (  # noqa: PLC0415 - only tasks need the way to the brokers
            message_schema,
            ranges_in_rows,
            read_range,
        )

        options = parse_source(self._source)
        schema = message_schema(options)
        for rows in incoming:
            for part in ranges_in_rows(rows):
                yield from read_range(options, schema, part)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish a batch."""
        parts: list[Part] = []
        for message in messages:
            if isinstance(message, Written):
                parts += message.parts
        if self._kind == "parquet":
            publish(self._root, self._app_id, batchId, parts)
        elif self._table is None:
            from orderlymq_spark.tables import delta  # noqa: PLC0415 - only this format needs it

            delta.append_files(self._root, self._app_id, batchId, parts)
        else:
            from orderlymq_spark.tables import iceberg  # noqa: PLC0415 - only this format needs it

            name, properties, table = self._table
            catalog = iceberg.open_catalog(name, properties)
            iceberg.append_files(catalog, table, self._app_id, batchId, parts)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Keep all files: those of a failed commit may be published, and the others are removed later."""


def by_queue(rows: pa.RecordBatch) -> Iterator[tuple[MessageQueue, pa.RecordBatch]]:
    """Split a batch where the queue changes; nearly all batches have one queue."""
    if not rows.num_rows:
        return
    places: list[Any] = [rows.column(name).dictionary_encode() for name in _PLACE[:3]]
    if all(len(each.dictionary) == 1 for each in places):
        yield MessageQueue(*(each.dictionary[0].as_py() for each in places)), rows
        return
    keys = list(zip(*(each.to_pylist() for each in places), strict=True))
    start = 0
    for at in range(1, len(keys) + 1):
        if at == len(keys) or keys[at] != keys[start]:
            yield MessageQueue(*keys[start]), rows.slice(start, at - start)
            start = at
