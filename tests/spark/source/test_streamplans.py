"""A stream plans its batches when queues come, go or are replaced; with real brokers, without Spark."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from orderlymq.blocking import AdminClient
from orderlymq.message import Message
from orderlymq_spark.errors import DataLost, OptionError, SourceUnavailable
from orderlymq_spark.offsets import QueueRange, from_json, to_json
from orderlymq_spark.options import parse_source
from orderlymq_spark.readers.stream import OrderlyMQStreamReader
from orderlymq_spark.source.queuereader import message_schema
from tests.cluster.processes import Group
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]

EVERYTHING = ReadAllAvailable()


def reader(topics: Topics, topic: str, /, **given: str) -> OrderlyMQStreamReader:
    options = parse_source({"bootstrap": topics.bootstrap, "topic": topic, **given})
    return OrderlyMQStreamReader(options, message_schema(options))


def beginning(topics: Topics, topic: str) -> dict[str, Any]:
    """Return the present beginnings of the queues, as the first batch records them."""
    return reader(topics, topic).latestOffset({}, EVERYTHING)


def planned(
    stream: OrderlyMQStreamReader, start: dict[str, Any], end: dict[str, Any]
) -> list[tuple[int, int, int]]:
    """Return queue, first offset and end of each partition."""
    found = []
    for partition in stream.partitions(start, end):
        part = partition.value
        found.append((part.queue.queue_id, part.start, part.end))
    return found


def some(topics: Topics, topic: str, count: int, queue: int) -> None:
    topics.fill(topic, [Message(topic=topic, body=b"x") for _ in range(count)], queue)


def test_a_queue_that_was_away_goes_on_where_it_was(topics: Topics) -> None:
    """Name servers forgot a broker group for a while; after its return nothing of it is read twice."""
    topic = topics.make(queues=3, ordered=False)
    for queue in range(3):
        some(topics, topic, 4, queue)
    stream = reader(topics, topic, failOnDataLoss="false", retryTimeout="300ms")
    first = stream.latestOffset(beginning(topics, topic), EVERYTHING)

    topics.resize(topic, 2)
    some(topics, topic, 1, 0)
    second = stream.latestOffset(first, EVERYTHING)
    assert planned(stream, first, second) == [(0, 4, 5)]
    assert stream.latestOffset(second, EVERYTHING) == second
    topics.resize(topic, 3)
    some(topics, topic, 2, 2)
    third = stream.latestOffset(second, EVERYTHING)

    assert planned(stream, second, third) == [(2, 4, 6)]


def test_a_queue_that_is_new_is_read_from_its_first_message(topics: Topics) -> None:
    """The queue may have messages before the stream knows it, and the batch with its beginning may be repeated."""
    topic = topics.make(queues=1, ordered=False)
    stream = reader(topics, topic)
    some(topics, topic, 3, 0)
    start = stream.latestOffset(beginning(topics, topic), EVERYTHING)
    topics.resize(topic, 2)
    some(topics, topic, 5, 1)

    end = stream.latestOffset(start, EVERYTHING)
    some(topics, topic, 2, 1)

    assert planned(stream, start, end) == [(1, 0, 5)]
    assert planned(reader(topics, topic), start, end) == [(1, 0, 5)]
    assert planned(stream, end, stream.latestOffset(end, EVERYTHING)) == [(1, 5, 7)]


@pytest.fixture
def passing(tmp_path: Path) -> Iterator[Topics]:
    """Return topics of a broker that keeps little."""
    settings = {"storage": {"retention_size": 20_000}, "timers": {"retention_scan_ms": 50}}
    with (
        Group(tmp_path, 1, overrides=settings) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        yield Topics(group.name_server_address, admin)


def age(topics: Topics, topic: str) -> int:
    """Fill queue 0 until retention removes messages of it; return its first offset then."""
    before = None
    for _ in range(60):
        low: int = beginning(topics, topic)[topic]["g"]["0"]
        if before is not None and low > before:
            break
        before = low
        topics.fill(topic, [Message(topic=topic, body=b"x" * 2_000)] * 10, 0)

    return low


def test_what_retention_took_of_a_new_queue_is_not_skipped_in_silence(
    passing: Topics, tmp_path: Path
) -> None:
    """The stream should read it from 0, so the loss is an error when the end or a batch is planned, or it is recorded."""
    topic = passing.make()
    low, begun = age(passing, topic), {topic: {"g": {"1": 0}}}
    lost, lenient = tmp_path / "lost", {"failOnDataLoss": "false"}
    end = reader(passing, topic, **lenient).latestOffset(begun, EVERYTHING)
    named = rf"{topic} g:0 \[0, {low}\) \({low} messages\)"

    with pytest.raises(DataLost, match=named):
        reader(passing, topic).latestOffset(begun, EVERYTHING)
    with pytest.raises(DataLost, match=named):
        reader(passing, topic).partitions(begun, end)
    stream = reader(passing, topic, dataLossPath=str(lost), **lenient)
    assert planned(stream, begun, end) == [(0, low, end[topic]["g"]["0"])]
    assert [path.name for path in lost.iterdir()] == [f"{topic}-g-0-0-{low}.json"]


def test_a_stream_that_waits_reports_a_loss_once(
    passing: Topics, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Each look finds the loss again, until enough messages for a batch have come."""
    topic = passing.make()
    low, begun = age(passing, topic), {topic: {"g": {"1": 0}}}
    lost = tmp_path / "lost"
    given = {"failOnDataLoss": "false", "dataLossPath": str(lost)}
    stream = reader(passing, topic, minOffsetsPerTrigger="1000", **given)

    assert stream.latestOffset(begun, EVERYTHING) == begun
    (lost / f"{topic}-g-0-0-{low}.json").unlink()
    for _ in range(2):
        assert stream.latestOffset(begun, EVERYTHING) == begun

    assert list(lost.iterdir()) == []
    assert [each.message for each in caplog.records if "data loss" in each.message] == [
        f"data loss: {topic} g:0 [0, {low}) ({low} messages) no longer exists"
    ]


def test_a_stream_at_rest_looks_some_times_a_second(topics: Topics) -> None:
    """Without a trigger, Spark asks every 10 ms, and for the ends in its progress after each look."""
    topic = topics.make(queues=2)
    some(topics, topic, 3, 0)
    stream = reader(topics, topic)
    end = stream.latestOffset(beginning(topics, topic), EVERYTHING)
    began_s = time.monotonic()
    for _ in range(3):
        assert stream.latestOffset(end, EVERYTHING) == end
    lasted_s = time.monotonic() - began_s
    some(topics, topic, 1, 0)

    assert lasted_s >= 0.4
    assert stream.reportLatestOffset() == to_json(from_json(end))
    after = stream.latestOffset(end, EVERYTHING)
    assert stream.reportLatestOffset() == to_json(from_json(after))
    assert planned(stream, end, after) == [(0, 3, 4)]


@pytest.mark.parametrize("large", [0, 1])
def test_a_batch_has_about_the_bytes_that_it_may_have_whatever_a_queue_has(
    topics: Topics, large: int
) -> None:
    """Most messages wait in one queue and others have another size, so a mean over all queues would be far off."""
    topic = topics.make(queues=8, ordered=False)
    sizes = (30_000, 300) if large else (300, 30_000)
    for queue in range(8):
        size, count = (sizes[1], 1) if queue else (sizes[0], 400)
        bodies = (Random(number).randbytes(size) for number in range(count))  # incompressible
        topics.fill(topic, [Message(topic=topic, body=body) for body in bodies], queue)
    stream = reader(topics, topic, maxBytesPerTrigger="600000")
    begun = beginning(topics, topic)

    end = stream.latestOffset(begun, stream.getDefaultReadLimit())

    bytes_ = sum(
        sizes[queue > 0] * (to - start) for queue, start, to in planned(stream, begun, end)
    )
    assert 300_000 < bytes_ < 1_200_000


def test_a_mark_proves_nothing_when_retention_has_taken_its_message(passing: Topics) -> None:
    """Messages that were read may be removed: only another message at the last one's offset proves another topic."""
    topic = passing.make(queues=1)
    low, (queue,) = age(passing, topic), passing.queues(topic)
    gone, there = (to_json({queue: at}, marks={queue: 1}) for at in (low, low + 1))

    end = reader(passing, topic).latestOffset(gone, EVERYTHING)
    assert planned(reader(passing, topic), gone, end) == [(0, low, end[topic]["g"]["0"])]
    with pytest.raises(DataLost, match="was wiped or restored"):
        reader(passing, topic).latestOffset(there, EVERYTHING)


@pytest.mark.parametrize("least", ["", "1000"])
def test_a_topic_that_a_stream_takes_in_begins_at_its_first_message(
    passing: Topics, least: str
) -> None:
    """Earlier losses of the topic do not count. Its beginnings are recorded first; a later loss is reported."""
    old, topic = passing.make(queues=1), passing.make(queues=1)
    low, begun = age(passing, topic), {old: {"g": {"0": 0}}}
    given = {"minOffsetsPerTrigger": least} if least else {}

    entered = reader(passing, old, topics=topic, **given).latestOffset(begun, EVERYTHING)
    assert from_json(entered) == from_json({**begun, topic: {"g": {"0": low}}})
    stream = reader(passing, old, topics=topic)
    end = stream.latestOffset(entered, EVERYTHING)
    assert planned(stream, entered, end) == [(0, low, end[topic]["g"]["0"])]

    later = age(passing, topic)
    assert planned(stream, begun, entered) == []
    with pytest.raises(DataLost, match=rf"{topic} g:0 \[{low}, "):
        stream.partitions(entered, end)
    assert later > low


def test_what_a_first_batch_lost_before_it_is_repeated_is_not_skipped_in_silence(
    passing: Topics,
) -> None:
    """Without a start file, Spark asks for the beginning again, and the earliest offset may have changed."""
    topic = passing.make(queues=1)
    low = age(passing, topic)
    stream = reader(passing, topic)
    ends = [stream.initialOffset()]
    for _ in range(2):
        ends.append(stream.latestOffset(ends[-1], EVERYTHING))
    age(passing, topic)

    again = [reader(passing, topic).initialOffset(), *ends[1:]]
    assert planned(stream, *again[:2]) == []
    with pytest.raises(DataLost, match=rf"{topic} g:0 \[{low}, "):
        stream.partitions(*again[1:])


def test_a_name_server_that_is_gone_for_a_while_is_waited_for(tmp_path: Path) -> None:
    """Reading continues with known brokers; after retryTimeout the error names the missing name server."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=2)
        some(topics, topic, 6, 0)
        stream = reader(topics, topic)
        start = beginning(topics, topic)
        end = stream.latestOffset(start, EVERYTHING)
        group.name_server.kill()

        with pytest.raises(SourceUnavailable, match=rf"{group.name_server_address}.*retryTimeout"):
            reader(topics, topic, retryTimeout="300ms").latestOffset({}, EVERYTHING)
        (task,) = [
            InputPartition(QueueRange(queue, 0, 6))
            for queue in from_json(end)
            if queue.queue_id == 0
        ]
        assert sum(batch.num_rows for batch in stream.read(task)) == 6
        back = threading.Timer(1, group.name_server.start)
        back.start()
        assert stream.latestOffset(end, EVERYTHING) == end
        assert planned(stream, start, end) == [(0, 0, 6)]
        back.join()


def test_a_queue_that_is_away_is_an_error_unless_that_is_allowed(
    topics: Topics, tmp_path: Path
) -> None:
    """Messages that the queue still holds are not silently skipped; with failOnDataLoss=false they are recorded."""
    topic = topics.make(queues=2, ordered=False)
    some(topics, topic, 4, 1)
    strict = reader(topics, topic, retryTimeout="300ms")
    start = beginning(topics, topic)
    end = strict.latestOffset(start, EVERYTHING)
    topics.resize(topic, 1)

    with pytest.raises(DataLost, match=rf"the queue {topic} g:1 was removed"):
        strict.latestOffset(end, EVERYTHING)
    with pytest.raises(DataLost, match=rf"the queue {topic} g:1 was removed"):
        strict.partitions(start, end)
    lenient = reader(
        *(topics, topic),
        failOnDataLoss="false",
        dataLossPath=str(tmp_path),
        retryTimeout="300ms",
    )
    assert planned(lenient, start, end) == []
    assert {path.name for path in tmp_path.iterdir()} == {
        f"{topic}-g-1-0-0.json",
        f"{topic}-g-1-0-4.json",
    }


def test_a_queue_that_is_back_in_time_is_no_loss(topics: Topics) -> None:
    """Name servers learn of their brokers one after the other; retryTimeout limits the wait."""
    topic = topics.make(queues=2, ordered=False)
    some(topics, topic, 4, 1)
    strict = reader(topics, topic)
    start = beginning(topics, topic)
    end = strict.latestOffset(start, EVERYTHING)

    def available_now() -> None:
        run = reader(topics, topic)
        run.prepareForTriggerAvailableNow()
        assert run.latestOffset(end, EVERYTHING) == end

    for look in (
        available_now,
        lambda: strict.latestOffset(end, EVERYTHING),
        lambda: strict.partitions(start, end),
    ):
        topics.resize(topic, 1)
        back = threading.Timer(1, topics.admin.create_topic, [topic], {"queues": 2})
        back.start()

        look()

        back.join()


def test_the_end_of_a_batch_that_is_not_there_any_more_is_named(
    topics: Topics, tmp_path: Path
) -> None:
    """The queue is shorter than when the batch was planned; later messages at these offsets are other ones."""
    topic = topics.make(queues=1, ordered=False)
    some(topics, topic, 10, 0)
    strict = reader(topics, topic)
    end = strict.latestOffset(beginning(topics, topic), EVERYTHING)
    start = {topic: {"g": {"0": 3}}}
    topics.admin.delete_topic(topic)
    topics.admin.create_topic(topic, queues=1)
    some(topics, topic, 7, 0)

    # As of a broker that does not distinguish a topic from its predecessor.
    end = to_json(from_json(end))

    with pytest.raises(DataLost, match=rf"{topic} g:0 \[7, 10\) \(3 messages\)"):
        strict.partitions(start, end)
    lenient = reader(topics, topic, failOnDataLoss="false", dataLossPath=str(tmp_path))
    assert planned(lenient, start, end) == [(0, 3, 7)]
    (written,) = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert (written["start"], written["end"]) == (7, 10)


def again(topics: Topics, topic: str, count: int) -> None:
    """Create a topic again, with this many messages in its queue 0."""
    topics.admin.delete_topic(topic)
    topics.admin.create_topic(topic, queues=1)
    some(topics, topic, count, 0)


@pytest.mark.parametrize("count", [20, 30, 40], ids=["shorter", "as long", "longer"])
def test_a_topic_that_was_created_again_is_read_from_its_beginning(
    topics: Topics, tmp_path: Path, count: int
) -> None:
    """The new topic may have any length; reading it is an error unless allowed; a repeated batch has the same ranges."""
    topic = topics.make(queues=1, ordered=False)
    some(topics, topic, 30, 0)
    begun = beginning(topics, topic)
    end = reader(topics, topic).latestOffset(begun, EVERYTHING)
    again(topics, topic, count)
    lenient = {"failOnDataLoss": "false", "dataLossPath": str(tmp_path)}

    with pytest.raises(DataLost, match=rf"{topic} g:0.*was created again"):
        reader(topics, topic).latestOffset(end, EVERYTHING)
    stream = reader(topics, topic, **lenient)
    after = stream.latestOffset(end, EVERYTHING)
    assert planned(stream, end, after) == [(0, 0, count)]
    some(topics, topic, 25, 0)
    assert planned(reader(topics, topic, **lenient), end, after) == [(0, 0, count)]
    following = stream.latestOffset(after, EVERYTHING)
    assert planned(stream, after, following) == [(0, count, count + 25)]
    assert [path.name for path in tmp_path.iterdir()] == [f"{topic}-g-0-30-30.json"]


def test_a_batch_of_a_topic_that_was_created_again_reads_none_of_the_present_one(
    topics: Topics, tmp_path: Path
) -> None:
    """The batch's messages are gone, and others may have their offsets; the next batch begins the present topic."""
    topic = topics.make(queues=1, ordered=False)
    some(topics, topic, 30, 0)
    start = reader(topics, topic, startPath=str(tmp_path / "start")).initialOffset()
    end = reader(topics, topic).latestOffset(start, EVERYTHING)
    again(topics, topic, 40)

    begun = reader(topics, topic, startPath=str(tmp_path / "start")).initialOffset()
    assert begun == start
    with pytest.raises(DataLost, match=rf"{topic} g:0 \[0, 30\) \(30 messages\)"):
        reader(topics, topic).partitions(start, end)
    stream = reader(topics, topic, failOnDataLoss="false")
    assert planned(stream, start, end) == []
    assert planned(stream, end, stream.latestOffset(end, EVERYTHING)) == [(0, 0, 40)]


def test_a_cluster_that_was_wiped_and_filled_again_is_distinguished_from_the_one_before(
    tmp_path: Path,
) -> None:
    """Topics have the same ids and messages the same offsets, but the mark of the last message read differs."""
    with (
        Group(tmp_path, 1) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=1)
        begun = beginning(topics, topic)
        some(topics, topic, 5, 0)
        first = reader(topics, topic).latestOffset(begun, EVERYTHING)
        assert planned(reader(topics, topic), begun, first) == [(0, 0, 5)]

        group.wipe()
        admin.create_topic(topic, queues=1, ordered=True)
        some(topics, topic, 8, 0)

        with pytest.raises(DataLost, match=rf"{topic} g:0 .*was wiped or restored"):
            reader(topics, topic).latestOffset(first, EVERYTHING)
        with pytest.raises(DataLost, match=rf"{topic} g:0"):
            planned(reader(topics, topic), begun, first)
        lenient = reader(topics, topic, failOnDataLoss="false")
        second = lenient.latestOffset(first, EVERYTHING)
        assert (from_json(second), first[topic]["g"]["topicId"]) == (
            dict.fromkeys(topics.queues(topic), 8),
            second[topic]["g"]["topicId"],
        )
        for repeated in (lenient, reader(topics, topic, failOnDataLoss="false")):
            assert planned(repeated, first, second) == [(0, 0, 8)]
        with pytest.raises(DataLost, match=rf"{topic} g:0 .*was wiped or restored"):
            planned(reader(topics, topic), first, second)


def test_a_cluster_that_was_filled_again_with_as_many_messages_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    """No offset shows it, so a run compares the marks of the last messages when it begins."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=1)
        some(topics, topic, 5, 0)
        first = reader(topics, topic).latestOffset(beginning(topics, topic), EVERYTHING)

        group.wipe()
        admin.create_topic(topic, queues=1, ordered=True)
        some(topics, topic, 5, 0)

        strict = reader(topics, topic)
        strict.prepareForTriggerAvailableNow()
        with pytest.raises(DataLost, match=rf"{topic} g:0 .*was wiped or restored"):
            strict.latestOffset(first, EVERYTHING)
        lenient = {"failOnDataLoss": "false"}
        least = {"minOffsetsPerTrigger": "1000", "maxTriggerDelay": "1ms"}
        waiting = reader(topics, topic, **lenient, **least)
        assert waiting.latestOffset(first, EVERYTHING) == first
        second = waiting.latestOffset(first, EVERYTHING)
        assert (from_json(second), second == first) == (from_json(first), False)
        for repeated in (waiting, reader(topics, topic, **lenient)):
            assert planned(repeated, first, second) == [(0, 0, 5)]
        with pytest.raises(DataLost, match=rf"{topic} g:0 .*was wiped or restored"):
            planned(reader(topics, topic), first, second)
        some(topics, topic, 3, 0)
        third = reader(topics, topic).latestOffset(second, EVERYTHING)
        assert planned(reader(topics, topic), second, third) == [(0, 5, 8)]
        # A batch whose limit ends it at the offset that was read before.
        limited = reader(topics, topic, maxOffsetsPerTrigger="5", **lenient)
        second = limited.latestOffset(first, limited.getDefaultReadLimit())
        assert (from_json(second), second == first) == (from_json(first), False)
        assert planned(limited, first, second) == [(0, 0, 5)]


def test_a_batch_from_before_a_wipe_reads_nothing_of_a_cluster_that_is_shorter(
    tmp_path: Path,
) -> None:
    """No message exists at its end that could differ; the next batch reads each present message once."""
    with Group(tmp_path, 1) as group, AdminClient(group.name_server_address) as admin:
        topics = Topics(group.name_server_address, admin)
        topic, ends = topics.make(queues=1), []
        at = beginning(topics, topic)
        for _ in range(2):
            some(topics, topic, 5, 0)
            at = reader(topics, topic).latestOffset(at, EVERYTHING)
            ends.append(at)

        group.wipe()
        admin.create_topic(topic, queues=1, ordered=True)
        some(topics, topic, 7, 0)

        stream = reader(topics, topic, failOnDataLoss="false")
        assert planned(stream, *ends) == []
        assert planned(stream, at, stream.latestOffset(at, EVERYTHING)) == [(0, 0, 7)]
        with pytest.raises(DataLost, match=rf"{topic} g:0 \[5, 10\)"):
            planned(reader(topics, topic), *ends)


def test_a_target_of_a_run_that_is_not_reached_any_more_ends_it_at_the_present_end(
    topics: Topics,
) -> None:
    """The topic was created again after the run had begun."""
    topic = topics.make(queues=1, ordered=False)
    some(topics, topic, 30, 0)
    stream = reader(topics, topic, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    stream.prepareForTriggerAvailableNow()
    first = stream.latestOffset(beginning(topics, topic), stream.getDefaultReadLimit())
    again(topics, topic, 5)

    assert planned(stream, first, stream.latestOffset(first, EVERYTHING)) == [(0, 0, 5)]


@pytest.mark.parametrize("offsets", [{"0": -1, "1": 0}, {"0": 0, "1": -2}, {"0": 0}])
def test_a_beginning_that_would_be_another_one_is_refused(
    topics: Topics, tmp_path: Path, offsets: dict[str, int]
) -> None:
    """Offsets of -1 and -2 move, and an unnamed queue counts as -2; a repeated first batch asks for its beginning again."""
    topic = topics.make(queues=2, ordered=False)
    given = {"startingOffsets": json.dumps({topic: {"g": offsets}})}

    with pytest.raises(OptionError, match="needs startPath"):
        reader(topics, topic, **given).initialOffset()
    kept = {**given, "startPath": str(tmp_path / "start")}
    start = reader(topics, topic, **kept).initialOffset()
    some(topics, topic, 3, 0)
    assert reader(topics, topic, **kept).initialOffset() == start
