"""A batch reader leaves out rows that Spark's filters exclude; with real brokers."""

import operator
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import ClusterAccess
from orderlymq_spark.frames import read_batch
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import parse_source
from orderlymq_spark.readers.batch import FilteringReader
from orderlymq_spark.readers.filters import Pushed
from orderlymq_spark.source.queuereader import message_schema
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.cluster]

Row = dict[str, Any]
_COMPARE: dict[type[Filter], Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    In: lambda value, values: value in values,
}


def passes(row: Row, each: Any) -> bool:
    """Return whether a filter passes a row, as a simple model.

    A null equals nothing, and is neither above nor below anything.
    """
    if isinstance(each, Not):
        return not passes(row, each.child)
    value = row[each.attribute[0]]
    if isinstance(each, IsNotNull) or value is None:
        return value is not None
    return _COMPARE[type(each)](value, each.value)


def read(topics: Topics, topic: str, *filters: Filter) -> tuple[list[Row], int, list[Filter]]:
    """Return the rows that a reader gives to Spark, the number of ranges, and the filters that it leaves to Spark."""
    options = parse_source({"bootstrap": topics.bootstrap, "topic": topic})
    reader = FilteringReader(options, message_schema(options))
    left = list(reader.pushFilters(list(filters)))
    parts = reader.partitions()
    rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    return rows, len(parts), left


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.make(queues=3)
    topics.numbered(name, 60)
    return name


MIDDLE = datetime(2000, 1, 1, tzinfo=UTC)  # stands for the store time of a message in the middle


@pytest.mark.parametrize(
    ("filters", "left", "all_needed"),
    [
        ((EqualTo(("queue_id",), 1),), 0, True),
        ((In(("queue_id",), (0, 2)), EqualTo(("queue_id",), 2)), 0, True),
        ((EqualTo(("topic",), "another"),), 0, True),
        ((EqualTo(("broker",), "another"),), 0, True),
        ((GreaterThan(("queue_offset",), 3), LessThanOrEqual(("queue_offset",), 9)), 0, True),
        ((GreaterThanOrEqual(("queue_offset",), 3), LessThan(("queue_offset",), 9)), 0, True),
        ((EqualTo(("queue_offset",), 4),), 0, True),
        ((In(("queue_offset",), (4, 8)),), 1, False),
        ((GreaterThanOrEqual(("store_ts",), MIDDLE),), 1, True),
        ((GreaterThan(("store_ts",), MIDDLE), LessThan(("store_ts",), MIDDLE)), 2, False),
        ((LessThanOrEqual(("store_ts",), MIDDLE),), 1, True),
        ((EqualTo(("sharding_key",), "key-2"),), 0, True),
        ((In(("sharding_key",), ("key-2", "key-9")), EqualTo(("tags",), "odd")), 0, True),
        ((EqualTo(("tags",), None),), 0, True),
        ((Not(EqualTo(("tags",), "odd")), IsNotNull(("seq",))), 2, False),
        ((EqualTo(("message_id",), "x"), EqualTo(("value", "city"), "x")), 2, False),
    ],
)
def test_what_is_left_out_is_what_the_filters_forbid(
    topics: Topics, topic: str, filters: tuple[Any, ...], left: int, *, all_needed: bool
) -> None:
    """The reader returns all rows that pass, and no others if it leaves no filter to Spark."""
    everything, _, _ = read(topics, topic)
    middle = sorted(row["store_ts"] for row in everything)[30]
    filters = tuple(
        type(each)(each.attribute, middle) if getattr(each, "value", None) is MIDDLE else each
        for each in filters
    )

    rows, _, again = read(topics, topic, *filters)

    wanted = [
        row
        for row in everything
        if all(passes(row, each) for each in filters if len(getattr(each, "attribute", "a")) == 1)
    ]
    assert len(again) == left
    assert all(row in rows for row in wanted)
    if all_needed:
        assert rows == wanted


def test_queues_and_times_that_are_not_asked_for_are_not_read(topics: Topics, topic: str) -> None:
    """Ranges are left out, not only rows."""
    _, ranges, _ = read(topics, topic, EqualTo(("queue_id",), 1))
    assert ranges == 1
    _, ranges, _ = read(topics, topic, GreaterThan(("store_ts",), datetime(2100, 1, 1, tzinfo=UTC)))
    assert ranges == 0


class OfRocketMQ(ClusterAccess):
    """A queue of RocketMQ whose clock was set back twice; RocketMQ's brokers give topics no ids."""

    def topic_ids(self, topics: Iterable[str]) -> dict[tuple[str, str], int]:
        return {}

    def stored_at(self, queue: MessageQueue, offset: int) -> int | None:
        return (5_000, 1_000, 2_000, 3_000, 9_000, 1_500)[offset]


@pytest.mark.parametrize("compared", [GreaterThanOrEqual, LessThanOrEqual])
def test_times_that_fall_leave_nothing_out(
    topics: Topics, compared: type[GreaterThanOrEqual | LessThanOrEqual]
) -> None:
    """Law: no row that passes is left out, although a binary search finds only one of the places that reach a time."""
    options = parse_source({"bootstrap": topics.bootstrap, "topic": "orders"})
    reader = FilteringReader(options, message_schema(options))
    moment = datetime.fromtimestamp(3 if compared is GreaterThanOrEqual else 1.5, UTC)
    list(reader.pushFilters([compared(("store_ts",), moment)]))
    whole = [QueueRange(MessageQueue("orders", "g", 0), 0, 6)]

    assert reader._cut(OfRocketMQ(options.connect), whole) == whole


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_spark_gives_its_filters_to_the_source(
    spark: "SparkSession", topics: Topics, topic: str
) -> None:
    """The rows equal those that Spark itself would filter, but one task reads them instead of three."""
    plain = read_batch(spark, bootstrap=topics.bootstrap, topic=topic, pushFilters=False)
    first = plain.agg(F.min("store_ts")).collect()[0][0]
    where = [F.col("queue_id") == 1, F.col("store_ts") >= F.lit(first), F.col("tags") == "odd"]

    def wanted(frame: "DataFrame") -> "DataFrame":
        return frame.where(reduce(operator.and_, where))

    pushed = wanted(read_batch(spark, bootstrap=topics.bootstrap, topic=topic, pushFilters=True))

    assert sorted(pushed.collect()) == sorted(wanted(plain).collect())
    assert pushed.rdd.getNumPartitions() == 1
    assert plain.rdd.getNumPartitions() == 3


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_each_query_of_a_frame_has_the_rows_of_its_own_filters(
    spark: "SparkSession", topics: Topics, topic: str
) -> None:
    """Spark reuses the result of a filtered query for later ones of the frame, so filters are pushed down only on request."""
    frame = read_batch(spark, bootstrap=topics.bootstrap, topic=topic)

    some = frame.where("queue_id = 1").count()
    assert frame.count() == 60
    assert frame.where("queue_id = 1").unionAll(frame).count() == some + 60


@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize("push", [False, True])
def test_a_frame_of_no_messages_is_empty(
    spark: "SparkSession", topics: Topics, topic: str, *, push: bool
) -> None:
    """The topic has no messages, or no message is in the range or passes the filter."""
    options = {"bootstrap": topics.bootstrap, "pushFilters": push}

    assert read_batch(spark, topic=topics.make(), **options).count() == 0
    assert read_batch(spark, topic=topic, endingTimestamp="0", **options).count() == 0
    assert read_batch(spark, topic=topic, **options).where("broker = 'none'").count() == 0


@pytest.mark.parametrize("year", [2026, 2039])
def test_a_bound_is_the_millisecond_that_is_given(year: int) -> None:
    """As a float, some times from 2038 on were one millisecond too low."""
    since = datetime(year, 1, 1, tzinfo=UTC)
    first_ms = int(since.timestamp()) * 1000
    for number in range(2_000):
        pushed = Pushed()
        list(pushed.take([LessThanOrEqual(("store_ts",), since + timedelta(milliseconds=number))]))
        assert pushed.until_ms == first_ms + number
