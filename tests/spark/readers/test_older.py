"""A stream as Spark 4.0 and 4.1 request it; with real brokers, without Spark."""

import threading
from pathlib import Path
from typing import Any

import pytest

from orderlymq.blocking import AdminClient
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.errors import DataLost
from orderlymq_spark.offsets import from_json, to_json
from orderlymq_spark.options import parse_source
from orderlymq_spark.readers.older import OlderStreamReader
from orderlymq_spark.source.queuereader import message_schema
from tests.cluster.processes import Group
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


def reader(topics: Topics, topic: str, /, **given: str) -> OlderStreamReader:
    options = parse_source({"bootstrap": topics.bootstrap, "topic": topic, **given})
    return OlderStreamReader(options, message_schema(options))


def count(stream: OlderStreamReader, start: dict[str, Any], end: dict[str, Any]) -> int:
    return sum(part.value.size for part in stream.partitions(start, end))


def test_the_first_batch_of_a_run_has_everything_and_the_next_ones_keep_the_limit(
    topics: Topics,
) -> None:
    """availableNow makes a single batch there, so the first must not be limited; nothing is left out or read twice."""
    topic = topics.make()
    topics.numbered(topic, 30)
    stream = reader(topics, topic, maxOffsetsPerTrigger="10")

    start, first = stream.initialOffset(), stream.latestOffset()
    topics.numbered(topic, 15, start=30)
    second, third, fourth = (stream.latestOffset() for _ in range(3))

    assert count(stream, start, first) == 30
    assert count(stream, first, second) == 10
    assert count(stream, second, third) == 5
    assert fourth == third


def test_a_wait_for_more_gives_the_same_end_again(topics: Topics) -> None:
    """Spark makes no batch if the end does not move."""
    topic = topics.make()
    topics.numbered(topic, 5)
    stream = reader(topics, topic, minOffsetsPerTrigger="3")

    first = stream.latestOffset()
    topics.numbered(topic, 2, start=5)
    waiting = stream.latestOffset()
    topics.numbered(topic, 1, start=7)

    assert waiting == first
    assert count(stream, first, stream.latestOffset()) == 3


def test_what_is_gone_since_the_last_run_is_reported_when_the_batch_is_planned(
    topics: Topics,
) -> None:
    """Reported are a queue that is gone, and one whose end is below the offset that was read."""
    topic = topics.make()
    topics.numbered(topic, 10)
    end = reader(topics, topic).latestOffset()
    removed = {**from_json(end), MessageQueue(topic, "another", 0): 7}
    again = {queue: offset + 5 for queue, offset in from_json(end).items()}

    for start in (removed, again):
        with pytest.raises(DataLost):
            reader(topics, topic).partitions(to_json(start), end)

    lenient = reader(topics, topic, failOnDataLoss="false")
    assert count(lenient, to_json(removed), end) == 0
    assert count(lenient, to_json(again), end) == 10


def test_a_topic_that_a_run_takes_in_is_read_by_its_first_batch(topics: Topics) -> None:
    """availableNow makes no other batch."""
    old, topic = topics.make(), topics.make()
    start = reader(topics, old).latestOffset()
    topics.numbered(topic, 10)
    stream = reader(topics, old, topics=topic)

    assert count(stream, start, stream.latestOffset()) == 10


def test_a_topic_that_was_created_again_is_reported_when_the_batch_is_planned(
    topics: Topics,
) -> None:
    """The new topic may have any length, and is read from its beginning if that is allowed."""
    topic = topics.make()
    topics.numbered(topic, 10)
    start = reader(topics, topic).latestOffset()
    topics.admin.delete_topic(topic)
    topics.admin.create_topic(topic, queues=2, ordered=True)
    topics.numbered(topic, 30)
    end = reader(topics, topic).latestOffset()

    with pytest.raises(DataLost, match="was created again"):
        reader(topics, topic).partitions(start, end)
    assert count(reader(topics, topic, failOnDataLoss="false"), start, end) == 30


@pytest.mark.parametrize("filled", [5, 8], ids=["as long", "longer"])
def test_a_cluster_that_was_wiped_and_filled_again_is_reported_by_the_first_batch(
    tmp_path: Path, filled: int
) -> None:
    """The present cluster's topics have the same ids; none of its messages is skipped."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=1)
        topics.numbered(topic, 5)
        start = reader(topics, topic).latestOffset()

        group.wipe()
        admin.create_topic(topic, queues=1, ordered=True)
        topics.numbered(topic, filled)

        strict, lenient = reader(topics, topic), reader(topics, topic, failOnDataLoss="false")
        with pytest.raises(DataLost, match="was wiped or restored"):
            strict.partitions(start, strict.latestOffset())
        assert count(lenient, start, lenient.latestOffset()) == filled


def test_a_run_waits_for_the_queues_that_the_stream_began_with(
    topics: Topics, tmp_path: Path
) -> None:
    """After a restart, a name server learns of its brokers one after the other."""
    topic = topics.make(ordered=False)
    topics.numbered(topic, 10)
    given = {"startPath": str(tmp_path / "start.json")}
    start = reader(topics, topic, **given).initialOffset()
    topics.admin.delete_topic(topic)
    back = threading.Timer(1, topics.admin.create_topic, [topic], {"queues": 2})
    back.start()

    end = reader(topics, topic, **given).latestOffset()

    back.join()
    assert from_json(end).keys() == from_json(start).keys()
