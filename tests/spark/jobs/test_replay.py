"""A replay refuses some settings before it starts Spark, and keeps the order of each key; with real brokers."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from orderlymq_spark.errors import OptionError
from orderlymq_spark.jobs import replay
from orderlymq_spark.options import parse_source
from orderlymq_spark.specs import ReplaySpec, Source
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.cluster]


@pytest.mark.parametrize(
    ("target", "where"),
    [
        ("first", {}),
        ("second", {}),
        ("first", {"targetBootstrap": "{here}"}),
        ("first", {"targetBootstrap": "127.0.0.1:1;{here}"}),
    ],
)
def test_no_topic_is_copied_into_itself(
    topics: Topics, tmp_path: Path, target: str, where: dict[str, str]
) -> None:
    """The copies would be copied again without end; other spellings of the topic or its name servers are recognised."""
    names = {"first": topics.make(), "second": topics.make()}
    options: dict[str, Any] = {"topics": names["second"]}
    spec = ReplaySpec(
        type="replay",
        source=Source(bootstrap=topics.bootstrap, topic=names["first"], options=options),
        checkpoint=tmp_path / "checkpoint",
        target=names[target],
        **{name: text.format(here=topics.bootstrap) for name, text in where.items()},
    )

    with pytest.raises(OptionError, match=f"copy {names[target]} into itself"):
        replay.run("copy", spec, lambda: pytest.fail("Spark is not needed to see that"))


def test_a_replay_with_a_pace_has_small_batches(tmp_path: Path) -> None:
    """A large batch would send nothing before its last message is due."""

    def limits(speed: float | None, **options: Any) -> tuple[int | None, int | None]:
        source = Source(topic="orders", options=options)
        spec = ReplaySpec(
            type="replay", source=source, checkpoint=tmp_path, target="copy", speed=speed
        )
        found = parse_source(spec.read_options())
        return found.offsets_max, found.bytes_max

    assert limits(None) == (None, None)
    assert limits(1) == (1000, None)
    assert limits(1, maxOffsetsPerTrigger=7) == limits(1, maxoffsetspertrigger=7) == (7, None)
    assert limits(1, maxBytesPerTrigger=9) == (None, 9)


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_replay_with_a_pace_reads_each_message_once(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """The replay reads the times of a batch before it sends it, without reading messages twice."""
    topic, target = topics.make(queues=2), topics.make(queues=2)
    topics.numbered(topic, 60)
    spec = ReplaySpec(
        type="replay",
        source=Source(bootstrap=topics.bootstrap, topic=topic),
        checkpoint=tmp_path / "checkpoint",
        target=target,
        speed=1e9,
    )

    outcome = replay.run("paced", spec, lambda: spark)

    assert outcome.data["rows"] == 60
    assert sum(map(len, topics.read(target).values())) == 60


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_key_that_is_in_several_topics_keeps_the_order_of_each(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """All rows of a key are sent by one task, so the key's order in each topic is kept."""
    first, second, target = topics.make(queues=2), topics.make(queues=3), topics.make(queues=2)
    topics.numbered(first, 30)
    topics.numbered(second, 30, start=30)
    spec = ReplaySpec(
        type="replay",
        source=Source(bootstrap=topics.bootstrap, topic=first, options={"topics": second}),
        checkpoint=tmp_path / "checkpoint",
        target=target,
    )

    replay.run("copy", spec, lambda: spark)

    found: dict[tuple[str | None, bool], list[int]] = {}
    for messages in topics.read(target).values():
        for message in messages:
            number = json.loads(message.body)["number"]
            found.setdefault((message.key, number < 30), []).append(number)
    assert len(found) == 10
    assert all(numbers == sorted(numbers) for numbers in found.values())
    assert sum(map(len, found.values())) == 60


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_clock_that_was_set_back_does_not_turn_a_queue_around(spark: "SparkSession") -> None:
    """RocketMQ's store times may go back; a queue's own order still holds, and two queues stay side by side."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        ("a", "g", queue, offset, "k", begin + timedelta(seconds=second))
        for queue, offset, second in (
            (0, 5, 9),
            (0, 6, 1),
            (0, 7, 2),
            (0, 8, 12),
            (1, 0, 5),
            (1, 1, 10),
        )
    ]
    columns = "topic string, broker string, queue_id int, queue_offset long, sharding_key string, store_ts timestamp"
    frame = spark.createDataFrame(rows, columns)

    sent = replay.in_order(frame, "T").orderBy(*replay.ORDER.split(",")).collect()

    assert [(row["queue_id"], row["queue_offset"]) for row in sent] == [
        *((1, 0), (0, 5), (0, 6), (0, 7), (1, 1), (0, 8)),
    ]
