"""
Spark's filters that a batch reader applies: queues, offsets, store times, keys and tags. Needs Spark 4.1.

Rule: the reader accepts a filter only if every row that it returns passes it. Time filters only find where to begin
and end in each queue of our brokers; Spark tests each row again.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.times import epoch_ms

_OF_QUEUE: Final[Mapping[str, Callable[[MessageQueue], object]]] = {
    "topic": operator.attrgetter("topic"),
    "broker": operator.attrgetter("broker_name"),
    "queue_id": operator.attrgetter("queue_id"),
}
_OF_ROW: Final = ("sharding_key", "tags")
_FIRST: Final = 0
_LAST: Final = 1 << 63


@dataclass(slots=True)
class Pushed:
    """The filters that were accepted from Spark.

    Attributes:
        values: the allowed values of a column; any value if the column has no entry.
        first, end: offsets of every queue, the end exclusive.
        since_ms, until_ms: store times, both inclusive; None: any.
    """

    values: dict[str, frozenset[object]] = field(default_factory=dict)
    first: int = _FIRST
    end: int = _LAST
    since_ms: int | None = None
    until_ms: int | None = None

    def take(self, filters: Iterable[Filter]) -> Iterator[Filter]:
        """Accept the filters that the reader can apply; yield those that Spark must still test."""
        for each in filters:
            if not self._take(each):
                yield each

    def _take(self, each: Filter) -> bool:
        """Return whether every row that will be read passes the filter."""
        match each:
            case EqualTo((column,), value):
                return self._equals(column, frozenset((value,)))
            case In((column,), values):
                return self._equals(column, frozenset(values))
            case GreaterThanOrEqual((column,), value):
                return self._from(column, value)
            case GreaterThan((column,), value):
                return self._from(column, value, 1)
            case LessThan((column,), value):
                return self._below(column, value)
            case LessThanOrEqual((column,), value):
                return self._below(column, value, 1)
        return False

    def _equals(self, column: str, values: frozenset[object]) -> bool:
        if column == "queue_offset" and all(type(each) is int for each in values) and values:
            numbers = [each for each in values if isinstance(each, int)]
            self._from(column, min(numbers))
            self._below(column, max(numbers), 1)
            return len(numbers) == 1
        if column in _OF_QUEUE or column in _OF_ROW:
            # A null equals no value.
            wanted = values - {None}
            self.values[column] = self.values.get(column, wanted) & wanted
            return True
        return False

    def _from(self, column: str, value: object, more: int = 0) -> bool:
        if column == "queue_offset" and isinstance(value, int):
            self.first = max(self.first, value + more)
            return True
        if column == "store_ts" and isinstance(value, datetime):
            self.since_ms = max(self.since_ms or 0, _ms(value))
        return False

    def _below(self, column: str, value: object, more: int = 0) -> bool:
        if column == "queue_offset" and isinstance(value, int):
            self.end = min(self.end, value + more)
            return True
        if column == "store_ts" and isinstance(value, datetime):
            until = _ms(value)
            self.until_ms = until if self.until_ms is None else min(self.until_ms, until)
        return False

    def wants(self, queue: MessageQueue) -> bool:
        """Return whether a queue can have matching rows."""
        return all(
            of(queue) in self.values[column]
            for column, of in _OF_QUEUE.items()
            if column in self.values
        )

    def keep(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows with the requested keys and tags."""
        for column in _OF_ROW:
            if column in self.values:
                wanted = pa.array(sorted(map(str, self.values[column])), pa.string())
                batch = batch.filter(pc.is_in(batch.column(column), wanted))
        return batch


def _ms(moment: datetime) -> int:
    """Return a time from Spark, with a zone or in this process's zone, in ms, rounded down."""
    return epoch_ms(moment.astimezone(UTC))
