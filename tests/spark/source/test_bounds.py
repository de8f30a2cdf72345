"""Reads that begin and end at times, with a real broker, without Spark."""

import json
import threading
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from orderlymq.blocking import AdminClient
from orderlymq.message import Message
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.record import StoredMessage
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.cluster.expansions import Expansion
from orderlymq_spark.errors import OptionError, QueueListChanged, SourceUnavailable
from orderlymq_spark.offsets import from_json, to_json
from orderlymq_spark.options import Connect, parse_source
from orderlymq_spark.readers.stream import OrderlyMQStreamReader
from orderlymq_spark.source.bounds import (
    check_one_list,
    chosen_queues,
    first_offsets,
    has_two_lists,
    kept_offsets,
    resolve,
)
from orderlymq_spark.source.queuereader import message_schema
from tests.cluster.processes import Group
from tests.spark.growing import Growing
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]

OLD, NEW = MessageQueue("orders", "b", 0), MessageQueue("orders", "b", 8)


def message(offset: int, stored_ms: int) -> StoredMessage:
    """Return a message with this place and time."""
    host = ("192.0.2.1", 1)
    return StoredMessage(
        *("orders", 0, 0, offset, 0, 0, 0, host, stored_ms, host, 0, 0, b"", b"", 0)
    )


@pytest.mark.parametrize("barriers", [{}, {"b": {0: 7}}], ids=["by time", "by offset"])
@pytest.mark.parametrize(
    ("starts", "first", "refused"),
    [
        ({OLD: 0}, {OLD: message(7, 1001), NEW: message(0, 1002)}, True),
        ({OLD: 0, NEW: 0}, {OLD: message(6, 999), NEW: message(0, 1002)}, True),
        ({OLD: 7, NEW: 0}, {OLD: message(7, 1001), NEW: message(0, 1000)}, False),
        ({OLD: 7, NEW: 0}, {OLD: None, NEW: None}, False),
    ],
    ids=["began before it grew", "reads what is older", "begins behind", "nothing there yet"],
)
def test_a_read_across_an_expansion_is_known(
    starts: dict[MessageQueue, int],
    first: dict[MessageQueue, StoredMessage | None],
    barriers: dict[str, dict[int, int]],
    *,
    refused: bool,
) -> None:
    """The list grew at 1000 ms: a moved key's offsets before and after the expansion have no common order."""
    assert has_two_lists(starts, first, Expansion(1000, {"b": 9}, 9, barriers)) is refused


def test_clocks_that_differ_move_no_barrier() -> None:
    """A group with a slow clock stores messages of the present list under earlier times than other groups report."""
    expansion = Expansion(1000, {"b": 9}, 9, {"b": {0: 7}})

    found = [expansion.is_behind(message(*each), OLD) for each in ((6, 1001), (7, 999))]

    assert found == [False, True]


def test_a_topic_that_never_grew_is_read(topics: Topics, tmp_path: Path) -> None:
    topic = topics.make(queues=3)
    topics.numbered(topic, 9)
    given = {"bootstrap": topics.bootstrap, "topic": topic, "startPath": str(tmp_path / "start")}
    options = parse_source(given)
    access = access_to(options.connect)

    check_one_list(access, options)
    # A plain stream from the earliest message keeps no start file; its check needs none.
    check_one_list(access, parse_source({"bootstrap": topics.bootstrap, "topic": topic}))
    assert access.expansion(topic) is None


def test_two_streams_of_one_query_do_not_share_a_start_file(topics: Topics, tmp_path: Path) -> None:
    """The second stream would begin where the first one did, in queues that it does not read."""
    first, second = topics.make(queues=1), topics.make(queues=1)

    def begin(file: str, **given: str) -> dict[str, dict[str, object]]:
        path = str(tmp_path / file)
        options = parse_source({"bootstrap": topics.bootstrap, "startPath": path, **given})
        return first_offsets(access_to(options.connect), options)

    begun = begin("start", topic=first)

    for given in ({"topic": second}, {"topicsPattern": f"{second}|other"}):
        with pytest.raises(OptionError, match="its own startPath"):
            begin("start", **given)
    assert begin("start", topic=first, topics=second) == begun
    assert begin("start", topicsPattern=f"{first}.*") == begun
    assert second in begin("another", topic=second)


def test_two_streams_of_one_topic_do_not_share_a_start_file(topics: Topics, tmp_path: Path) -> None:
    """The second stream would begin at the first one's start; a stream with the same request begins there."""
    topic = topics.make(queues=2)
    topics.numbered(topic, 9)
    by_topic = {"bootstrap": topics.bootstrap, "topic": topic}
    one_queue = {"bootstrap": topics.bootstrap, "queues": f'{{"{topic}": {{"g": [1]}}}}'}
    one_offset = json.dumps({topic: {"g": {"0": 1}}})

    def begin(path: Path, given: dict[str, str]) -> dict[str, object]:
        options = parse_source({**given, "startPath": str(path)})
        check_one_list(access_to(options.connect), options)
        return first_offsets(access_to(options.connect), options)

    for number, (one, another) in enumerate(
        [
            (by_topic | {"startingOffsets": "latest"}, by_topic),
            (by_topic | {"startingOffsets": one_offset}, by_topic),
            (by_topic, by_topic | {"startingOffsets": "group", "group": "billing"}),
            (by_topic | {"startingTimestamp": "1"}, by_topic | {"startingTimestamp": "2"}),
            (by_topic, one_queue),
        ]
    ):
        path = tmp_path / str(number)
        begun = begin(path, one)
        with pytest.raises(OptionError, match="its own startPath"):
            begin(path, another)
        assert begin(path, one) == begun


def test_a_queue_that_a_stream_has_been_reading_is_waited_for(
    topics: Topics, tmp_path: Path
) -> None:
    """Law: only a queue that was given can be wrong; a name server that lost its disk learns of its brokers one by one."""
    topic = topics.make(queues=2, ordered=False)
    given = {
        "bootstrap": topics.bootstrap,
        "queues": json.dumps({topic: {"g": [1]}}),
        "startPath": str(tmp_path / "start"),
    }
    options = parse_source(given)
    access = access_to(options.connect)
    check_one_list(access, options)
    topics.resize(topic, 1)

    impatient = parse_source({**given, "retryTimeout": "300ms"})
    with pytest.raises(SourceUnavailable, match=r"which does not exist.*retryTimeout"):
        check_one_list(access_to(impatient.connect), impatient)
    fresh = parse_source({**given, "startPath": str(tmp_path / "another")})
    with pytest.raises(OptionError, match="which does not exist"):
        check_one_list(access, fresh)
    back = threading.Timer(1, topics.admin.create_topic, [topic], {"queues": 2})
    back.start()
    check_one_list(access, options)
    back.join()


def test_a_stream_of_one_list_ends_at_an_expansion_and_a_later_one_that_is_given_up_refuses_nothing(
    topics: Topics, tmp_path: Path
) -> None:
    """No batch has messages of two lists; a stream from after the expansion continues while some queues are not writable."""
    growing = Growing(topics, topics.make(queues=2))
    given = {"bootstrap": topics.bootstrap, "topic": growing.topic}

    def check(name: str) -> None:
        options = parse_source({**given, "startPath": str(tmp_path / name)})
        check_one_list(access_to(options.connect), options)

    topics.numbered(growing.topic, 4)
    check("before")
    options = parse_source({**given, "startPath": str(tmp_path / "before"), "oneQueueList": "true"})
    stream = OrderlyMQStreamReader(options, message_schema(options))
    start = stream.initialOffset()
    first = stream.latestOffset(start, ReadAllAvailable())
    assert stream.partitions(start, first)
    growing.grow(4)
    end = stream.latestOffset(first, ReadAllAvailable())
    with pytest.raises(QueueListChanged, match="startingTimestamp"):
        stream.partitions(first, end)
    options = parse_source(
        {**given, "startPath": str(tmp_path / "behind"), "startingOffsets": "latest"}
    )
    first_offsets(access_to(options.connect), options)
    topics.numbered(growing.topic, 9)

    check("behind")
    with pytest.raises(QueueListChanged, match="startingTimestamp"):
        check("before")
    growing.step("fence", attempt=2, total=8, queues=8, limitMillis=60_000)
    growing.until("fenced", 8)
    check("behind")
    growing.step("abort", attempt=2)
    growing.until("open", 4)
    check("behind")


# The broker keeps little.
PASSING: Final = {"storage": {"retention_size": 20_000}, "timers": {"retention_scan_ms": 50}}


def test_a_stream_that_keeps_no_start_ends_at_an_expansion_when_nothing_older_is_left(
    tmp_path: Path,
) -> None:
    """Retention has removed all messages of the former list, so only queues that the stream did not know are left."""
    with (
        Group(tmp_path, 1, overrides=PASSING) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        topics = Topics(group.name_server_address, admin)
        growing = Growing(topics, topics.make(queues=2))
        given = {"bootstrap": topics.bootstrap, "topic": growing.topic, "failOnDataLoss": "false"}
        options = parse_source({**given, "oneQueueList": "true"})

        def begin() -> tuple[OrderlyMQStreamReader, dict[str, Any], dict[str, Any]]:
            stream = OrderlyMQStreamReader(options, message_schema(options))
            entered = stream.latestOffset({}, ReadAllAvailable())
            return stream, entered, stream.latestOffset(entered, ReadAllAvailable())

        topics.numbered(growing.topic, 8)
        stream, entered, read = begin()
        assert stream.partitions(entered, read)
        growing.grow(4)
        before = from_json(read)
        for _ in range(60):
            topics.fill(
                growing.topic,
                [Message(topic=growing.topic, body=b"x" * 2_000, key=str(n)) for n in range(20)],
            )
            lows, _ = access_to(options.connect).bounds(before)
            if all(lows[queue] >= end for queue, end in before.items()):
                break

        assert all(lows[queue] >= end for queue, end in before.items())
        with pytest.raises(QueueListChanged, match="startingTimestamp"):
            stream.partitions(read, stream.latestOffset(read, ReadAllAvailable()))
        behind, entered, read = begin()
        assert behind.partitions(entered, read)


def test_a_stream_may_begin_while_a_new_list_settles(topics: Topics, tmp_path: Path) -> None:
    """Law: if it begins at the switch, it reads the new list alone and completely, once all clients may write as before."""
    growing = Growing(topics, topics.make(queues=2))
    topics.numbered(growing.topic, 30, keys=40)
    growing.step("fence", attempt=1, total=4, queues=4, limitMillis=60_000)
    growing.step("switch", attempt=1, total=4, queues=4)
    growing.declare(4)
    access = access_to(Connect(topics.bootstrap))
    expansion = access.expansion(growing.topic)
    assert expansion is not None
    topics.numbered(growing.topic, 40, keys=40, start=30)
    options = parse_source(
        {
            "bootstrap": topics.bootstrap,
            "topic": growing.topic,
            "startPath": str(tmp_path / "start"),
            "startingTimestamp": str(expansion.at_ms),
            "startingTimestampStrategy": "latest",
        }
    )
    check_one_list(access, options)
    growing.step("publish", total=4, settleMillis=1)
    growing.until("open", 4)

    check_one_list(access, options)
    assert access.expansion(growing.topic) == expansion
    _, highs = access.bounds(access.queues([growing.topic]))
    starts = from_json(kept_offsets(options))
    assert sum(highs[queue] - start for queue, start in starts.items()) == 40


def test_what_retention_takes_ends_no_look_at_times(tmp_path: Path) -> None:
    """The first remaining message counts, however old a known offset is; after the end there is none."""
    with (
        Group(tmp_path, 1, overrides=PASSING) as group,
        AdminClient(group.name_server_address) as admin,
    ):
        topics = Topics(group.name_server_address, admin)
        topic = topics.make(queues=1)
        access = access_to(Connect(topics.bootstrap))
        (queue,) = access.queues([topic])
        for _ in range(60):
            topics.fill(topic, [Message(topic=topic, body=b"x" * 2_000)] * 10)
            low, high = (found[queue] for found in access.bounds([queue]))
            if low > 0:
                break
        left = {m.queue_offset: m.store_timestamp for m in topics.read(topic)[queue]}

        assert low > 0
        assert access.stored_at(queue, 0) in left.values()
        assert access.stored_at(queue, high - 1) == left[high - 1]
        assert [access.stored_at(queue, place) for place in (high, high + 5)] == [None, None]


def test_each_queue_begins_and_ends_at_a_time_of_its_own(topics: Topics) -> None:
    """A queue begins at its first message from the time on; one without a time is read whole; otherwise by strategy."""
    topic = topics.make(queues=3, ordered=False)
    for number in range(30):
        topics.fill(topic, [Message(topic=topic, body=b"x")], number % 3)
    stored = {
        queue: [message.store_timestamp for message in messages]
        for queue, messages in sorted(topics.read(topic).items())
    }
    first, second, third = stored
    times = {first: stored[first][4], second: stored[second][7]}

    def bounds(side: str, **more: str) -> list[int]:
        given = {"bootstrap": topics.bootstrap, "topic": topic, **more}
        options = parse_source({f"{side}OffsetsByTimestamp": json.dumps(to_json(times)), **given})
        access = access_to(options.connect)
        bound = options.start if side == "starting" else options.end
        found = resolve(access, options, bound, side, chosen_queues(access, options))
        return [found[queue] for queue in (first, second, third)]

    # Several messages may have the same millisecond.
    expected = [stored[queue].index(moment) for queue, moment in times.items()]
    assert bounds("starting") == [*expected, 0]
    assert bounds("ending") == [*expected, 10]
    times[first] = stored[first][-1] + 1
    assert bounds("ending")[0] == 10
    assert bounds("starting", startingTimestampStrategy="latest")[0] == 10
    with pytest.raises(OptionError, match="has no message that was stored then or later"):
        bounds("starting")
    del times[first]
    times[first._replace(queue_id=9)] = 1
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp names"):
        bounds("starting")
