"""The batch reader: reads topics once; the ranges are fixed when Spark plans."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from orderlymq_spark.cluster.access import ClusterAccess, access_to
from orderlymq_spark.offsets import QueueRange, continued, ranges, split
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.readers.ranges import RangeReader
from orderlymq_spark.source.bounds import chosen_queues, report_loss, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql.datasource import Filter


class OrderlyMQReader(RangeReader, DataSourceReader):
    """A reader that reads topics once."""

    def partitions(self) -> Sequence[InputPartition]:
        """Return the ranges; this call fixes them."""
        options = self._options
        access = access_to(options.connect)
        queues = chosen_queues(access, options)
        start = resolve(access, options, options.start, "starting", queues)
        end = resolve(access, options, options.end, "ending", queues)
        found = continued(start, *access.bounds(queues))
        report_loss(options, found.missing, ())
        parts = self._cut(access, ranges(found.start, end))
        parts = split(parts, options.partitions_min, options.records_max)
        return [InputPartition(part) for part in parts]

    def _cut(self, access: ClusterAccess, parts: list[QueueRange]) -> list[QueueRange]:
        return parts


class FilteringReader(OrderlyMQReader):
    """A reader that applies Spark's filters; Spark 4.1 refuses such a reader unless its setting is on."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        from orderlymq_spark.readers.filters import Pushed  # noqa: PLC0415 - Spark 4.0 has no filters

        super().__init__(options, schema)
        self._pushed = Pushed()

    def pushFilters(self, filters: "list[Filter]") -> "Iterable[Filter]":  # noqa: N802 - Spark's name
        """Accept filters from Spark; return those that Spark must still test."""
        return list(self._pushed.take(filters))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the messages of a range that pass the filters, in order.

        Raises:
            DataLost, SourceUnavailable: As in `RangeReader`.
        """
        return map(self._pushed.keep, super().read(partition))

    def _cut(self, access: ClusterAccess, parts: list[QueueRange]) -> list[QueueRange]:
        """Return the parts of the ranges with the requested offsets and times.

        At RocketMQ's brokers, which give topics no ids, store times may decrease. A binary search could then skip
        messages, so their ranges are not cut by time.
        """
        pushed = self._pushed
        timed = pushed.since_ms is not None or pushed.until_ms is not None
        rising = access.topic_ids({part.queue.topic for part in parts} if timed else ())
        found = []
        for part in (each for each in parts if pushed.wants(each.queue)):
            queue, low, high = part.queue, max(part.start, pushed.first), min(part.end, pushed.end)
            halved = (queue.topic, queue.broker_name) in rising
            if halved and low < high and pushed.since_ms is not None:
                since = access.offset_at(queue, low, high, pushed.since_ms)
                low = high if since is None else since
            if halved and low < high and pushed.until_ms is not None:
                until = access.offset_at(queue, low, high, pushed.until_ms + 1)
                high = high if until is None else until
            if low < high:
                found.append(QueueRange(queue, low, high))
        return found
