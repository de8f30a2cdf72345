"""
The stream reader for Spark 4.0 and 4.1, which do not pass the start of a batch when they ask for its end.

Missing messages are therefore found only when the batch is planned, and a limit needs a previous batch. The first
batch of a run has all waiting messages; `availableNow` needs this, because it makes one batch. For topics and broker
groups that are new to the checkpoint, the first batch has the messages that exist when it is planned. A repeat of that
batch cannot know which of them are missing.
"""

import logging
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.offsets import from_json, to_json
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.readers.stream import OrderlyMQStreamReader
from orderlymq_spark.source.bounds import awaited_queues, kept_offsets, report_loss

_log = logging.getLogger(__name__)


class OlderStreamReader(OrderlyMQStreamReader):
    """A stream reader like `OrderlyMQStreamReader`, for the interface of Spark 4.0 and 4.1."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._planned: dict[str, Any] = {}
        if options.offsets_max or options.bytes_max or options.offsets_min:
            _log.warning(
                "this Spark does not support limits of a batch (4.2 does): the first batch of a run has the whole backlog"
            )

    def latestOffset(self) -> dict[str, Any]:  # type: ignore[override]  # noqa: N802 - Spark's name and form of before 4.2
        """Return the end of the next batch.

        Raises:
            DataLost: A queue is gone or was recreated, and `failOnDataLoss` is true.
        """
        if self._planned:
            end = super().latestOffset(self._planned, self.getDefaultReadLimit())
        else:
            access, options = access_to(self._options.connect), self._options
            # The stream's position is unknown, but the queues with which it began are known.
            queues = awaited_queues(access, options, from_json(kept_offsets(options)).keys())
            ids = access.topic_ids({queue.topic for queue in queues})
            _, ends = access.bounds(queues)
            end = to_json(ends, ids, access.marks(ends))
        self._planned = end
        return end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets of the checkpoint.

        Raises:
            DataLost: Messages between them are gone and `failOnDataLoss` is true.
        """
        removed = sorted(from_json(start).keys() - from_json(end).keys())
        report_loss(self._options, (), removed)
        return super().partitions(start, end)
