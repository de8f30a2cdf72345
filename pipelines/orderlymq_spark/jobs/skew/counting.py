"""
Counts the figures of the skew report in Spark; the driver gets histograms, queues, minutes and the hottest keys.

Rule: no collected result grows with the number of keys, or with keys times minutes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from orderlymq_spark.jobs.skew.model import Loads, Simulated, place_of

_HASHED: Final = "sharding_key string, minute bigint, messages bigint, place bigint"


@dataclass(frozen=True, slots=True)
class Counted:
    """The counts of a topic.

    Attributes:
        queues: messages of each (broker, queue number), including those without a key.
        key_count: the number of keys.
        top: the hottest keys with their messages.
        loads: of messages with a key.
    """

    queues: dict[tuple[str, int], int]
    key_count: int
    top: list[tuple[str, int]]
    loads: Loads


def count(rows: DataFrame, sizes: Sequence[int], *, present: int, top: int) -> Counted:
    """Count the rows of a topic.

    Args:
        rows: with broker, queue_id, sharding_key and store_ts.
        sizes: the queue counts to simulate.
        present: the current queue count of the topic.
        top: how many of the hottest keys to return.
    """
    minute = F.floor(F.col("store_ts").cast("double") / 60).alias("minute")
    table = rows.groupBy("broker", "queue_id", minute, "sharding_key").agg(
        F.count("*").alias("messages")
    )
    table.persist()  # otherwise Spark reads the topic for each query
    keyed = (
        table.where(F.col("sharding_key").isNotNull())
        .groupBy("sharding_key", "minute")
        .agg(_sum("messages"))
        .mapInArrow(_with_places, _HASHED)
    )
    keyed.persist()
    try:
        queues = table.groupBy("broker", "queue_id").agg(_sum("messages")).collect()
        first = table.agg(F.min("minute").alias("minute")).first()
        minutes = {
            row.minute: row.messages
            for row in keyed.groupBy("minute").agg(_sum("messages")).collect()
        }
        begin = first.minute if first is not None and first.minute is not None else 0
        by_key = keyed.groupBy("sharding_key", "place").agg(_sum("messages"))
        histogram = {
            row.messages: row.times
            for row in by_key.groupBy("messages").agg(F.count("*").alias("times")).collect()
        }
        hottest = by_key.orderBy(F.desc("messages"), "sharding_key").limit(top).collect()
        return Counted(
            {(row.broker, row.queue_id): row.messages for row in sorted(queues)},
            sum(histogram.values()),
            [(row.sharding_key, row.messages) for row in hottest],
            Loads(
                [
                    minutes.get(each, 0)
                    for each in range(begin, max(minutes, default=begin - 1) + 1)
                ],
                histogram,
                hottest[0].sharding_key if hottest else "",
                _minutes_of(keyed, hottest[0].sharding_key) if hottest else {},
                _simulated(keyed, by_key, sizes, present),
            ),
        )
    finally:
        keyed.unpersist()
        table.unpersist()


def _sum(column: str) -> Column:
    return F.sum(column).alias("messages")


def _with_places(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for rows in batches:
        places = [place_of(key) for key in rows.column("sharding_key").to_pylist()]
        yield rows.append_column("place", pa.array(places, pa.int64()))


def _minutes_of(keyed: DataFrame, key: str) -> dict[int, int]:
    found = keyed.where(F.col("sharding_key") == F.lit(key)).groupBy("messages")
    return {row.messages: row.times for row in found.agg(F.count("*").alias("times")).collect()}


def _simulated(
    keyed: DataFrame, by_key: DataFrame, sizes: Sequence[int], present: int
) -> dict[int, Simulated]:
    """Return the load that each queue count would have produced."""
    each = F.array(
        *(
            F.struct(F.lit(size).alias("size"), (F.col("place") % size).alias("queue"))
            for size in sizes
        )
    )
    cells = (
        keyed.select("minute", "messages", F.explode(each).alias("at"))
        .groupBy("at.size", "at.queue", "minute")
        .agg(_sum("messages"))
    )
    cells.persist()
    try:
        loads = {size: [0] * size for size in sizes}
        for row in cells.groupBy("size", "queue").agg(_sum("messages")).collect():
            loads[row.size][row.queue] = row.messages
        histograms: dict[int, dict[int, int]] = defaultdict(dict)
        for row in cells.groupBy("size", "messages").agg(F.count("*").alias("times")).collect():
            histograms[row.size][row.messages] = row.times
    finally:
        cells.unpersist()
    differs = (
        F.when(F.col("place") % size != F.col("place") % present, F.col("messages")).otherwise(0)
        for size in sizes
    )
    moved = by_key.agg(*(F.coalesce(F.sum(one), F.lit(0)) for one in differs)).first()
    assert moved is not None
    return {
        size: Simulated(loads[size], histograms[size], each)
        for size, each in zip(sizes, moved, strict=True)
    }
