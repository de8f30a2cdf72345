"""The format "orderlymq" against real brokers and a real Spark."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orderlymq_spark.frames import read_batch, read_stream
from orderlymq_spark.options import Connect
from orderlymq_spark.run.lag import LagListener
from tests.spark.streams import run_through
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def places(rows: list[Any]) -> list[tuple[int, int]]:
    return [(row.queue_id, row.queue_offset) for row in rows]


def test_a_frame_holds_what_a_client_reads(spark: "SparkSession", topics: Topics) -> None:
    """Every column equals the value that the SDK's pull consumer reads."""
    topic = topics.make()
    topics.numbered(topic, 100)
    expected = {
        (queue.queue_id, message.queue_offset): (
            *(message.message_id, message.key, list(message.keys), message.tags, message.body),
            {k: v for k, v in message.properties.items() if k not in ("MIN_OFFSET", "MAX_OFFSET")},
            *(message.born_timestamp, message.store_timestamp, message.reconsume_times),
        )
        for queue, messages in topics.read(topic).items()
        for message in messages
    }

    rows = (
        read_batch(spark, bootstrap=topics.bootstrap, topic=topic, sequenceProperty="n")
        .selectExpr("*", "unix_millis(born_ts) as born", "unix_millis(store_ts) as stored")
        .collect()
    )

    found = {
        (row.queue_id, row.queue_offset): (
            *(row.message_id, row.sharding_key, row["keys"], row.tags, bytes(row.body)),
            row.properties,
            *(row.born, row.stored, row.reconsume_times),
        )
        for row in rows
    }
    assert found == expected
    assert len(rows) == 100
    assert {row.topic for row in rows} == {topic}
    assert all(str(row.seq) == row.properties["n"] for row in rows)


def test_a_stream_reads_every_offset_once_in_order(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], Path]
) -> None:
    """Limited batches of availableNow, a restart and new messages leave no gap and repeat nothing."""
    topic = topics.make(queues=3)
    topics.numbered(topic, 90, keys=9)
    where = checkpoint("a")
    batches: list[list[tuple[int, int]]] = []

    def run() -> None:
        frame = read_stream(
            spark,
            where,
            bootstrap=topics.bootstrap,
            topic=topic,
            startingOffsets="earliest",
            maxOffsetsPerTrigger=40,
            includeBody=False,
        )
        run_through(frame, where, lambda rows, _: batches.append(places(rows.collect())))

    run()
    first = [len(batch) for batch in batches]
    topics.numbered(topic, 10, keys=9, start=90)
    run()

    assert first == [40, 40, 10]
    together = [place for batch in batches for place in batch]
    assert sorted(together) == sorted(
        (queue.queue_id, offset)
        for queue, messages in topics.read(topic).items()
        for offset in range(len(messages))
    )
    for queue in {queue for queue, _ in together}:
        offsets = [offset for number, offset in together if number == queue]
        assert offsets == sorted(offsets)


def test_a_plain_stream_writes_down_where_it_begins_before_it_reads(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], Path]
) -> None:
    """A plain stream has no start file, so its first batch has no rows; then each message is read once, in later runs, too."""
    topic = topics.make()
    topics.numbered(topic, 30)
    where = checkpoint("plain")
    frame = (
        spark.readStream.format("orderlymq")
        .options(bootstrap=topics.bootstrap, topic=topic, maxOffsetsPerTrigger="20")
        .load()
    )
    sizes: list[int] = []

    for more in (7, 0):
        run_through(frame, where, lambda rows, _: sizes.append(rows.count()))
        topics.numbered(topic, more, start=30)

    assert sizes == [0, 20, 10, 7]


def test_a_listener_learns_how_far_a_query_is_behind(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], Path]
) -> None:
    """The lag is given in messages and in seconds since the oldest was stored; other sources have none."""
    topic = topics.make(queues=1)
    topics.numbered(topic, 30)
    where = checkpoint("told")
    said: list[tuple[str, int, float]] = []
    listener = LagListener(
        Connect(topics.bootstrap), lambda name, lag: said.append((name, lag.messages, lag.seconds))
    )
    frame = read_stream(
        spark, where, bootstrap=topics.bootstrap, topic=topic, maxOffsetsPerTrigger=20
    )
    spark.streams.addListener(listener)
    try:
        run_through(frame, where, lambda rows, _: rows.foreach(lambda _: None))
        end = time.monotonic() + 60
        while len(said) < 2 and time.monotonic() < end:
            time.sleep(0.05)
    finally:
        spark.streams.removeListener(listener)

    assert [messages for _, messages, _ in said] == [10, 0]
    assert [seconds > 0 for _, _, seconds in said] == [True, False]
