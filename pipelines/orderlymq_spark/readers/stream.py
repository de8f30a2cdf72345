"""
The stream reader: reads topics as they grow.

Rules: missing messages raise an error or are recorded; they are never skipped silently. A repeated batch reads exactly
the same ranges, or reports which are gone: a recreated topic has other messages at the same offsets, and is read from
its beginning. For a queue that the stream enters, one batch records the first offset without reading the queue, so
that the next batch knows which messages must exist. Spark before 4.2 calls `older`.
"""

import logging
import time
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.offsets import (
    QueueRange,
    begun_again,
    continued,
    created_again,
    from_json,
    ids_in,
    marks_in,
    ranges,
    share,
    split,
    to_json,
)
from orderlymq_spark.options import SourceOptions
from orderlymq_spark.readers.ranges import RangeReader
from orderlymq_spark.source.bounds import (
    awaited_queues,
    check_one_list,
    first_offsets,
    replaced_queues,
    report_loss,
)
from orderlymq_spark.source.records import parse_records
from orderlymq_spark.sparkversion import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

_log = logging.getLogger(__name__)

# Without a trigger Spark asks for the next batch every 10 ms, and each request costs two calls per queue.
_LOOK_AGAIN_S: Final = 0.2


class OrderlyMQStreamReader(RangeReader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader that reads topics as they grow."""

    def __init__(self, options: SourceOptions, schema: pa.Schema) -> None:
        super().__init__(options, schema)
        self._ends_now = False
        self._target: dict[MessageQueue, int] | None = None
        self._row_bytes = 0.0
        self._waiting_since: float | None = None
        self._reported: frozenset[QueueRange] = frozenset()
        self._reported_removed: frozenset[MessageQueue] = frozenset()
        self._highs: dict[MessageQueue, int] = {}
        self._looked_in_vain_at: float | None = None
        self._planned_end: dict[str, Any] = {}
        # A new run does not know what happened to its queues before it started.
        self._asks_at_rest = True

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return where the stream begins; every call returns the same."""
        if not self._options.keeps_start:
            # Spark asks again when it repeats the first batch, so the first batch records where the queues begin.
            return {}
        return first_offsets(access_to(self._options.connect), self._options)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of a batch."""
        if self._options.offsets_max is not None:
            return ReadMaxRows(self._options.offsets_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Make the first batch fix the ends for this run; messages that come later belong to the next run."""
        self._ends_now, self._target = True, None

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the queues' ends for the query's progress; Spark calls this right after `latestOffset`."""
        return to_json(self._highs)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the end of the next batch.

        Raises:
            DataLost: A queue is gone or was recreated, and `failOnDataLoss` is true.
        """
        if self._looked_in_vain_at is not None:
            time.sleep(max(0.0, self._looked_in_vain_at + _LOOK_AGAIN_S - time.monotonic()))
        end = self._next_end(start, limit)
        in_vain = end == start and not self._ends_now
        self._looked_in_vain_at = time.monotonic() if in_vain else None
        return end

    def _next_end(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        options, known = self._options, from_json(start)
        access = access_to(options.connect)
        awaited = known.keys() - self._reported_removed
        queues = self._target or awaited_queues(access, options, awaited)
        # Read the ids before the bounds: if a topic is recreated in between, its messages do not count as read.
        ids, before = access.topic_ids({queue.topic for queue in queues}), ids_in(start)
        lows, highs = access.bounds(queues)
        self._highs = highs
        ends = self._target or highs
        if self._ends_now:
            self._target = ends
        replaced = replaced_queues(access, start, ids, highs, at_rest=self._asks_at_rest)
        # Keep checking until a batch reads these queues from 0; this batch may still be too small to run.
        self._asks_at_rest = bool(replaced)
        found = continued(known, lows, highs, replaced)
        removed = [queue for queue in found.removed if queue not in self._reported_removed]
        missing = [part for part in found.missing if part not in self._reported]
        report_loss(options, missing, removed)
        self._reported, self._reported_removed = frozenset(found.missing), frozenset(found.removed)
        # If a removed queue comes back, as after a long outage of a broker, its read continues at the old offset.
        away = {queue: known[queue] for queue in found.removed}
        # After a restart the stream may already be beyond the target of this run.
        ends = {q: min(highs[q], max(ends[q], found.start[q])) for q in ends}
        ends |= {queue: lows[queue] for queue in found.entered}
        if not found.entered and self._waits(
            sum(ends[queue] - found.start[queue] for queue in ends)
        ):
            return start
        for queue in found.added:
            _log.warning(
                "the queue %s is new; reading begins at offset %d", queue, found.start[queue]
            )
        if not isinstance(limit, ReadAllAvailable):
            rows_max = self._rows_max(found.start, ends)
            if rows_max is not None:
                ends = share(found.start, ends, rows_max)
        # A replaced queue counts as moved even if its end equals the old offset, because the message there differs.
        moved = {q: end for q, end in ends.items() if end != known.get(q) or q in replaced}
        kept = {queue: mark for queue, mark in marks_in(start).items() if queue not in moved}
        self._planned_end = to_json({**ends, **away}, {**before, **ids}, kept | access.marks(moved))
        return self._planned_end

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets of the checkpoint.

        Raises:
            DataLost: Messages between them are gone and `failOnDataLoss` is true.
            QueueListChanged: The stream reads only one queue list, and the list has grown.
        """
        options = self._options
        known, ends = from_json(start), from_json(end)
        access = access_to(options.connect)
        if options.one_queue_list:
            # The ends are already fixed, so messages after an expansion that is not yet visible lie beyond them.
            check_one_list(access, options, known)
        # The first batch of a recreated topic begins at 0.
        ids, again = ids_in(end), begun_again(start, end)
        left = {queue: 0 if queue in again else known.get(queue, 0) for queue in ends}
        awaited = {queue for queue in ends if left[queue] < ends[queue]}
        present = awaited & {*awaited_queues(access, options, awaited)}
        removed = sorted(awaited - present)
        # If the topic was recreated after the batch was planned, other messages now have these offsets.
        other = created_again(present, ids, access.topic_ids({queue.topic for queue in present}))
        # A wiped cluster gives the same ids, so only the last message read shows the difference.
        replaced = access.differing(
            marks_in(start), {queue: left[queue] for queue in present - other - again}
        )
        if replaced or end != self._planned_end:  # another driver planned it, at an unknown time
            other |= access.differing(marks_in(end), {queue: ends[queue] for queue in present})
        lows, highs = access.bounds(present - other)
        # The current cluster has not reached this end, so the batch was planned before the cluster was replaced.
        other |= {queue for queue in replaced - other if ends[queue] > highs[queue]}
        again |= replaced - other
        report_loss(options, [QueueRange(q, known[q], known[q]) for q in sorted(again)], ())
        known |= dict.fromkeys(again, 0)
        other |= {queue for queue in lows if known.get(queue, 0) > highs[queue]}
        there = present - other
        found = continued(known, {queue: lows[queue] for queue in there}, highs)
        gone = [
            QueueRange(each.queue, each.start, min(each.end, ends[each.queue]))
            for each in found.missing
            if each.start < ends[each.queue]
        ]
        # A queue has become shorter: messages that later get these offsets are not the planned ones.
        gone += [QueueRange(q, highs[q], ends[q]) for q in there if highs[q] < ends[q]]
        gone += [QueueRange(q, known.get(q, 0), ends[q]) for q in sorted(other.union(removed))]
        report_loss(options, gone, removed)
        start_at = {queue: min(found.start[queue], ends[queue]) for queue in there}
        parts = ranges(start_at, {queue: min(ends[queue], highs[queue]) for queue in there})
        return [
            InputPartition(part)
            for part in split(parts, options.partitions_min, options.records_max)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit the progress at the brokers if a consumer group is named; only the checkpoint counts for a restart."""
        if self._options.report_group:
            access_to(self._options.connect).commit(self._options.report_group, from_json(end))

    def stop(self) -> None:
        """Do nothing: the connections close when the process ends."""

    def _waits(self, waiting: int) -> bool:
        """Return whether the batch is still too small to run."""
        least = self._options.offsets_min
        if least is None or self._target is not None or waiting >= least:
            self._waiting_since = None
            return False
        now = time.monotonic()
        if self._waiting_since is None:
            self._waiting_since = now
        if waiting and (now - self._waiting_since) * 1000 >= self._options.delay_max_ms:
            self._waiting_since = None
            return False
        return True

    def _rows_max(
        self, start: dict[MessageQueue, int], ends: dict[MessageQueue, int]
    ) -> int | None:
        """Return the message limit of a batch from both options; the byte limit is divided by the mean size of a sample."""
        options = self._options
        if options.bytes_max is None:
            return options.offsets_max
        waiting, expected_bytes = 0, 0.0
        for part in ranges(start, ends):
            size, count = self._sample(part)
            if count:
                # A batch takes messages from each queue in proportion to its backlog.
                waiting += part.size
                expected_bytes += part.size * size / count
        if waiting:
            self._row_bytes = expected_bytes / waiting
        by_bytes = int(options.bytes_max / max(1.0, self._row_bytes)) or 1
        return by_bytes if options.offsets_max is None else min(by_bytes, options.offsets_max)

    def _sample(self, part: QueueRange) -> tuple[int, int]:
        """Return the total bytes of the first messages of a range, and their number."""
        end = min(part.end, part.start + 32)
        access = access_to(self._options.connect)
        chunks = [
            chunk
            for fetched in access.read(QueueRange(part.queue, part.start, end))
            for chunk in fetched.chunks
        ]
        return sum(map(len, chunks)), len(parse_records(chunks, 0, 1 << 62))
