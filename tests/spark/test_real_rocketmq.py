"""
Apache RocketMQ 4.9.7, a name server and a broker from Maven Central, used by the format "orderlymq".

It lacks our brokers' extensions of the protocol: pulls return at most 32 messages, nothing is fenced, and a message that
is sent twice is stored twice. Reading, its offsets and the ordered sink's use of the index must work without them.
"""

from collections.abc import Callable, Iterator
from json import loads
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from bench.peers.rocketmq import LIBRARY
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench import fetch
from orderlymq.blocking import AdminClient
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.frames import ordered, read_batch, read_stream
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect, parse_source
from orderlymq_spark.readers.stream import OrderlyMQStreamReader
from orderlymq_spark.source.queuereader import message_schema, read_range
from tests.clients.programs import missing
from tests.spark.rocketmq import RocketMQ
from tests.spark.streams import run_through
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.java, pytest.mark.long, pytest.mark.timeout(900)]

KEYS = 9


@pytest.fixture(scope="module")
def apache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RocketMQ]:
    """Return the real RocketMQ; its jars are fetched the first time."""
    reason = missing("java") or (None if LIBRARY.exists() else missing("mvn"))
    if reason:
        pytest.skip(reason)
    fetch.peers(["rocketmq"])
    assert LIBRARY.exists(), "RocketMQ could not be fetched from Maven Central"
    with RocketMQ(tmp_path_factory.mktemp("rocketmq")) as found:
        yield found


@pytest.fixture(scope="module")
def topics(apache: RocketMQ) -> Iterator[Topics]:
    """Return a helper that makes topics there and fills them."""
    with AdminClient(apache.bootstrap) as admin:
        yield Topics(apache.bootstrap, admin)


@pytest.fixture(scope="module")
def filled(topics: Topics) -> str:
    """Return a topic with 360 messages of nine keys in three queues."""
    topic = topics.make(queues=3)
    topics.numbered(topic, 360, keys=KEYS)
    return topic


def places(rows: list[Any]) -> list[tuple[int, int]]:
    return [(row.queue_id, row.queue_offset) for row in rows]


def test_a_frame_holds_what_a_real_broker_has(
    spark: "SparkSession", topics: Topics, filled: str
) -> None:
    """`spark.read.format("orderlymq")` returns every row once, and each column equals the SDK's pull consumer's."""
    expected = {
        (queue.queue_id, message.queue_offset): (
            *(queue.broker_name, message.message_id, message.key, list(message.keys)),
            *(message.tags, message.body, message.store_timestamp, message.properties["n"]),
        )
        for queue, messages in topics.read(filled).items()
        for message in messages
    }

    rows = (
        spark.read.format("orderlymq")
        .options(bootstrap=topics.bootstrap, topic=filled, sequenceProperty="n")
        .load()
        .selectExpr("*", "unix_millis(store_ts) as stored")
        .collect()
    )

    assert len(rows) == 360
    assert {
        (row.queue_id, row.queue_offset): (
            *(row.broker, row.message_id, row.sharding_key, row["keys"]),
            *(row.tags, bytes(row.body), row.stored, str(row.seq)),
        )
        for row in rows
    } == expected
    for key in range(KEYS):
        mine = [(row.queue_offset, row.seq) for row in rows if row.sharding_key == f"key-{key}"]
        assert [seq for _, seq in sorted(mine)] == list(range(360 // KEYS))


def test_a_stream_of_a_real_broker_reads_every_offset_once_in_order(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], Path]
) -> None:
    """availableNow in two batches, a restart and two more leave no gap and repeat nothing; the group shows the progress."""
    topic = topics.make(queues=3)
    topics.numbered(topic, 180, keys=KEYS)
    where = checkpoint("real")
    batches: list[list[tuple[int, int]]] = []

    def run() -> None:
        frame = read_stream(
            spark,
            where,
            bootstrap=topics.bootstrap,
            topic=topic,
            maxOffsetsPerTrigger=100,
            reportGroup="reporting",
        )
        run_through(frame, where, lambda rows, _: batches.append(places(rows.collect())))

    run()
    topics.numbered(topic, 120, keys=KEYS, start=180)
    run()

    assert [len(batch) for batch in batches] == [100, 80, 100, 20]
    together = [place for batch in batches for place in batch]
    for queue, messages in topics.read(topic).items():
        offsets = [offset for number, offset in together if number == queue.queue_id]
        assert offsets == list(range(len(messages)))
    # The end of a batch is reported when the next one is made.
    shown = topics.admin.progress("reporting")
    assert sum(each.consumer_offset for each in shown.values()) == 280


def test_a_read_of_a_real_broker_begins_where_its_option_says(
    spark: "SparkSession", topics: Topics, apache: RocketMQ, filled: str
) -> None:
    """Checked are startingOffsets earliest, as JSON and of a group, startingTimestamp, endingOffsets and tags."""
    stored = topics.read(filled)
    first, second, third = sorted(stored)
    moment = stored[second][len(stored[second]) // 2].store_timestamp
    json = f'{{"{filled}": {{"{apache.broker_name}": {{"0": 10, "1": -1, "2": 20}}}}}}'
    access_to(Connect(topics.bootstrap)).commit("starting", {first: 30, second: 5, third: 0})

    def read(**options: Any) -> list[tuple[int, int]]:
        frame = read_batch(
            spark, bootstrap=topics.bootstrap, topic=filled, includeBody=False, **options
        )
        return sorted(places(frame.collect()))

    def those(wanted: Callable[[MessageQueue, ReceivedMessage], bool]) -> list[tuple[int, int]]:
        return [
            (queue.queue_id, message.queue_offset)
            for queue in sorted(stored)
            for message in stored[queue]
            if wanted(queue, message)
        ]

    begins = {first: 10, second: len(stored[second]), third: 20}
    shown = {first: 30, second: 5, third: 0}
    assert read(startingOffsets="earliest") == those(lambda *_: True)
    assert read(startingOffsets=json) == those(lambda q, m: m.queue_offset >= begins[q])
    assert read(endingOffsets=json) == those(lambda q, m: m.queue_offset < begins[q])
    assert read(startingOffsets="group", group="starting") == those(
        lambda q, m: m.queue_offset >= shown[q]
    )
    later = {"startingTimestamp": moment, "startingTimestampStrategy": "latest"}
    assert read(**later) == those(lambda _, m: m.store_timestamp >= moment)
    assert read(tags="odd") == those(lambda _, m: m.tags == "odd")


def test_rows_that_are_sent_again_to_a_real_broker_add_nothing(
    spark: "SparkSession", topics: Topics, filled: str
) -> None:
    """The ordered sink finds stored messages by the broker's index; keys keep their queues and their order."""
    target = topics.make(queues=3)
    rows = read_batch(spark, bootstrap=topics.bootstrap, topic=filled, sequenceProperty="n")

    for _ in range(2):
        (
            ordered(rows, tasks=2)
            .write.format("orderlymq")
            .options(bootstrap=topics.bootstrap, topic=target, appId="copy", orderBy="seq")
            .mode("append")
            .save()
        )

    def keyed(topic: str) -> dict[tuple[int, str | None], list[str]]:
        found: dict[tuple[int, str | None], list[str]] = {}
        for queue, messages in topics.read(topic).items():
            for each in messages:
                found.setdefault((queue.queue_id, each.key), []).append(each.properties["n"])
        return found

    assert keyed(target) == keyed(filled)


def test_a_name_server_that_begins_again_ends_no_stream(topics: Topics, apache: RocketMQ) -> None:
    """Until its broker registers again, it denies the topic; the stream knows the topic and waits."""
    topic = topics.make(queues=2)
    topics.numbered(topic, 10)
    options = parse_source({"bootstrap": topics.bootstrap, "topic": topic})
    stream = OrderlyMQStreamReader(options, message_schema(options))
    start = stream.latestOffset({}, ReadAllAvailable())
    end = stream.latestOffset(start, ReadAllAvailable())

    apache.restart_name_server()

    assert stream.latestOffset(end, ReadAllAvailable()) == end
    parts = stream.partitions(start, end)
    rows = [batch.num_rows for part in parts for batch in stream.read(part)]
    assert sum(rows) == 10


def test_what_a_real_broker_has_lost_is_named(
    spark: "SparkSession", topics: Topics, apache: RocketMQ, tmp_path: Path
) -> None:
    """The broker's first file has aged out and a later one is missing: rows and missing ranges have every offset once.

    The broker skips the offsets of the later one without a report.
    """
    topic = topics.make(queues=1)
    topics.bulk(topic, 4000)
    apache.stop_broker()
    files = sorted(apache.commit_log.iterdir())
    files[0].unlink()
    files[2].unlink()
    apache.start_broker()
    (queue,) = topics.queues(topic)
    low = access_to(Connect(topics.bootstrap)).bounds([queue])[0][queue]
    json = f'{{"{topic}": {{"{apache.broker_name}": {{"0": 0}}}}}}'
    options = {"bootstrap": topics.bootstrap, "topic": topic}

    with pytest.raises(Exception, match=rf"\[0, {low}\).*no longer exists"):
        read_batch(spark, **options, startingOffsets=json).count()
    with pytest.raises(Exception, match=r"messages\) no longer exists; to go on without it"):
        read_batch(spark, **options, startingOffsets="earliest").count()
    rows = read_batch(
        spark, **options, startingOffsets=json, failOnDataLoss=False, dataLossPath=tmp_path
    ).collect()

    lost = [loads(path.read_text()) for path in tmp_path.glob("*.json")]
    assert len(lost) == 2
    read = places(rows)
    assert read == sorted(read)
    together = [offset for _, offset in read]
    for each in lost:
        together += range(each["start"], each["end"])
    assert sorted(together) == list(range(4000))
    # A task whose range was planned before the loss finds the same.
    late = parse_source({**options, "failOnDataLoss": "false"})
    batches = list(read_range(late, message_schema(late), QueueRange(queue, 0, 4000)))
    assert [n for each in batches for n in each.column("queue_offset").to_pylist()] == [
        offset for _, offset in read
    ]
