"""Archive, audit, compaction, replay: their laws on a real cluster, under kills and repetitions."""

import json
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError
from pyiceberg.catalog import load_catalog

from orderlymq.errors import TopicNotFound
from orderlymq.message import Message
from orderlymq_spark.errors import (
    CheckpointInUse,
    DataLost,
    OptionError,
    UnorderedRows,
)
from orderlymq_spark.explain.explanation import explain
from orderlymq_spark.frames import ordered, read_batch
from orderlymq_spark.jobs import archive, compact, replay
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.jobs.skew import job as skew
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.run.checkpoint import hold_checkpoint
from orderlymq_spark.run.stream import PipelineFailed
from orderlymq_spark.specs import (
    ArchiveSpec,
    Catalog,
    CompactSpec,
    OrderAuditSpec,
    Pipeline,
    ReplaySpec,
    SkewSpec,
    Source,
)
from orderlymq_spark.tables.iceberg import snapshot_with
from orderlymq_spark.tables.parquet import holes, path_of, published
from tests.spark.topics import Topics, numbers_by_key

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def archive_spec(topics: Topics, topic: str, folder: Path, **options: Any) -> ArchiveSpec:
    return ArchiveSpec(
        type="archive",
        source=Source(bootstrap=topics.bootstrap, topic=topic, options=options),
        checkpoint=folder / "checkpoint",
        path=folder / "archive",
    )


def files(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.glob("*/*/*.parquet"))
    }


def bodies(topics: Topics, topic: str) -> dict[tuple[int, int], bytes]:
    return {
        (queue.queue_id, message.queue_offset): message.body
        for queue, messages in topics.read(topic).items()
        for message in messages
    }


def test_an_archive_holds_every_offset_once_and_others_can_read_it(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """After small batches and a second run, DuckDB reads each offset once; a repeated commit changes no published file."""
    topic = topics.make()
    topics.numbered(topic, 60)
    spec = archive_spec(topics, topic, tmp_path, maxOffsetsPerTrigger=25)

    first = archive.run("keep", spec, lambda: spark)
    before = files(tmp_path / "archive")
    topics.numbered(topic, 20, start=60)
    archive.run("keep", spec, lambda: spark)

    after = files(tmp_path / "archive")
    assert (first.data["rows"], first.data["batches"]) == (60, 3)
    assert before.items() <= after.items()
    assert holes(published(spec.folder)) == []
    query = f"select queue_id, queue_offset, body from '{spec.path}/*/*/*.parquet'"
    found = duckdb.connect().execute(query).fetchall()
    assert len(found) == 80
    assert {(queue, offset): body for queue, offset, body in found} == bodies(topics, topic)
    for path in (tmp_path / "archive").glob("*/*/*.parquet"):
        offsets = pq.read_table(path).column("queue_offset").to_pylist()
        assert offsets == sorted(offsets)

    forget_last_batch(tmp_path / "checkpoint")
    archive.run("keep", spec, lambda: spark)
    assert files(tmp_path / "archive") == after
    archive.run("keep", spec, lambda: spark)
    assert explain(Pipeline(name="keep", spec=spec)).cost.messages == 0


def forget_last_batch(checkpoint: Path) -> None:
    """Let Spark repeat the last batch, as after a crash before its commit log was written."""
    commits = checkpoint / "spark" / "commits"
    newest = max(commits.glob("[0-9]*"), key=lambda path: int(path.name))
    newest.unlink()
    (newest.parent / f".{newest.name}.crc").unlink()


@pytest.mark.long
def test_an_iceberg_table_holds_every_offset_once_and_others_can_read_it(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """Every offset is in the Iceberg table once; a second run adds columns, and former snapshots stay readable."""
    topic = topics.make()
    topics.numbered(topic, 60)
    properties = {"uri": f"sqlite:///{tmp_path}/lake.db", "warehouse": f"file://{tmp_path}/lake"}

    def spec(**options: Any) -> ArchiveSpec:
        return ArchiveSpec(
            type="archive",
            source=Source(bootstrap=topics.bootstrap, topic=topic, options=options),
            checkpoint=location(tmp_path / "checkpoint"),
            format="iceberg",
            catalog=Catalog(name="lake", properties=properties),
            table="shop.orders",
        )

    first = archive.run(
        "keep", spec(maxOffsetsPerTrigger=25, includeProperties=False), lambda: spark
    )
    topics.numbered(topic, 20, start=60)
    archive.run("keep", spec(), lambda: spark)
    forget_last_batch(tmp_path / "checkpoint")
    archive.run("keep", spec(), lambda: spark)

    assert (first.data["rows"], first.data["batches"]) == (60, 3)
    table = load_catalog("lake", **properties).load_table("shop.orders")
    rows = table.scan().to_arrow()  # DuckDB finds it by its name
    query = "select queue_id, queue_offset, body from rows"
    found = duckdb.connect().execute(query).fetchall()
    assert len(found) == len(rows) == 80
    assert {(queue, offset): body for queue, offset, body in found} == bodies(topics, topic)
    assert rows["properties"].null_count == 60
    assert len(table.snapshots()) == 4
    queue = next(iter(topics.read(topic)))
    then = snapshot_with(table, queue, 0, "keep")
    assert then is not None
    assert len(table.scan(snapshot_id=then.snapshot_id).to_arrow()) == 25


def test_compaction_keeps_rows_and_order(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """There are fewer files with the same rows in the same order; the archive continues after them."""
    topic = topics.make()
    topics.numbered(topic, 60)
    spec = archive_spec(topics, topic, tmp_path, maxOffsetsPerTrigger=20)
    archive.run("small", spec, lambda: spark)
    before = [pq.read_table(path_of(spec.folder, part)) for part in published(spec.folder)]

    outcome = compact.run("c", CompactSpec(type="compact", path=spec.path), lambda: spark)

    parts = published(spec.folder)
    assert (outcome.data["before"], outcome.data["after"]) == (len(before), 2) == (6, 2)
    assert holes(parts) == []
    rows = [row for part in parts for row in pq.read_table(path_of(spec.folder, part)).to_pylist()]
    assert rows == [row for table in before for row in table.to_pylist()]
    topics.numbered(topic, 10, start=60)
    archive.run("small", spec, lambda: spark)
    assert sum(part.size for part in published(spec.folder)) == 70


def test_the_audit_finds_what_is_broken_in_topic_stream_and_archive_alike(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """An intact topic has no findings; gap, repeat and inversion give the same findings in topic, stream and archive."""
    topic = topics.make()
    topics.numbered(topic, 40, keys=4)
    source = Source(bootstrap=topics.bootstrap, topic=topic)
    clean = audit.run(
        "a", OrderAuditSpec(type="order-audit", source=source, sequence_property="n"), lambda: spark
    )
    numbers = [10, 12, 12, 11]
    topics.fill(
        topic,
        [Message(topic=topic, body=b"x", key="key-1", properties={"n": str(n)}) for n in numbers],
    )
    kept = archive_spec(topics, topic, tmp_path, maxOffsetsPerTrigger=15)
    archive.run("audited", kept, lambda: spark)

    found = [
        audit.run(
            "a", OrderAuditSpec(type="order-audit", sequence_property="n", **ways), lambda: spark
        )
        for ways in (
            {"source": source},
            {"archive": kept.path},
            {
                "source": Source(
                    bootstrap=topics.bootstrap, topic=topic, options={"maxOffsetsPerTrigger": 7}
                ),
                "stream": True,
                "checkpoint": tmp_path / "audit",
            },
        )
    ]

    assert (clean.passed, clean.data["defects"], clean.data["messages"]) == (True, {}, 40)
    assert found[0].data == found[1].data == found[2].data
    assert not found[0].passed
    assert [(f["defect"], f["expected"], f["got"]) for f in found[0].data["findings"]] == [
        ("skipped", 11, 12),
        ("duplicated", 13, 12),
        ("reordered", 13, 11),
    ]


@pytest.mark.long
def test_a_replay_keeps_order_and_count_and_repeats_nothing(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    """The copy has another number of queues; a second run without the checkpoint sends nothing twice."""
    origin, target = topics.make(queues=3), topics.make(queues=2)
    topics.numbered(origin, 60, keys=7)

    def run(checkpoint: str) -> None:
        spec = ReplaySpec(
            type="replay",
            source=Source(
                bootstrap=topics.bootstrap, topic=origin, options={"maxOffsetsPerTrigger": 25}
            ),
            checkpoint=tmp_path / checkpoint,
            target=target,
        )
        replay.run("copy", spec, lambda: spark)

    run("a")
    run("b")

    assert numbers_by_key(topics.read(target)) == numbers_by_key(topics.read(origin))


def test_a_frame_is_sent_in_order_to_the_queues_that_java_would_choose(
    spark: "SparkSession", topics: Topics
) -> None:
    """Rows are sent by orderBy, with ties in any order; a repeated load adds nothing, in any order of its rows."""
    topic = topics.make(queues=3)
    rows = [(f"key-{n % 5}", n // 10, f"body-{n}") for n in range(100)]
    options = {"bootstrap": topics.bootstrap, "topic": topic, "appId": "app", "orderBy": "n"}
    columns = "sharding_key string, n int, body string"

    for tasks, given in ((4, rows[:70]), (2, rows[::-1]), (3, rows)):
        frame = spark.createDataFrame(given, columns).repartition(tasks)
        ordered(frame, tasks=tasks).write.format("orderlymq").options(
            **options, runId="tonight"
        ).mode("append").save()

    found = topics.read(topic)
    assert sorted(m.text for each in found.values() for m in each) == sorted(
        body for _, _, body in rows
    )
    steps = {body: n for _, n, body in rows[:70]}
    for key in {key for key, _, _ in rows}:
        mine = [m.text for each in found.values() for m in each if m.key == key]
        first = [steps[body] for body in mine if body in steps]
        assert first == sorted(first)
    # Without a name, each load counts as a new one.
    frame = spark.createDataFrame(rows[:5], columns)
    ordered(frame).write.format("orderlymq").options(**options).mode("append").save()
    assert sum(map(len, topics.read(topic).values())) == 105
    # A producer of the SDK, which hashes as Java does, chooses the same queue.
    topics.fill(topic, [Message(topic=topic, body=b"probe", key="key-3")])
    places = {q for q, messages in topics.read(topic).items() for m in messages if m.key == "key-3"}
    assert len(places) == 1


def test_rows_of_one_key_in_two_tasks_are_refused(spark: "SparkSession", topics: Topics) -> None:
    """Two tasks would send without an order between them, so the sink refuses."""
    frame = spark.range(40).selectExpr("'same' as sharding_key", "cast(id as string) as body")

    with pytest.raises(Exception, match=UnorderedRows.__name__):
        frame.repartition(2).write.format("orderlymq").options(
            bootstrap=topics.bootstrap, topic=topics.make(), appId="x"
        ).mode("append").save()


def test_skew_is_measured_and_the_present_loads_are_simulated_exactly(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    topic = topics.make(queues=3)
    topics.numbered(topic, 90, keys=9)
    spec = SkewSpec(
        type="skew-report",
        source=Source(bootstrap=topics.bootstrap, topic=topic),
        capacity_per_queue=0.5,
        html=tmp_path / "report.html",
    )

    data = skew.run("s", spec, lambda: spark).data

    real = [len(messages) for messages in topics.read(topic).values()]
    assert (data["messages"], data["keys"], data["offHash"]) == (90, 9, 0)
    assert data["simulated"] == real
    assert "<svg" in (tmp_path / "report.html").read_text()


def test_a_topic_without_a_queue_to_write_to_has_no_skew(
    spark: "SparkSession", topics: Topics
) -> None:
    """Law: such a report is refused with the reason, and so is an impossible number of queues."""
    topic = topics.make(ordered=False)
    topics.numbered(topic, 4)
    topics.admin.create_topic(topic, queues=2, perm=4)
    source = Source(bootstrap=topics.bootstrap, topic=topic)
    spec = SkewSpec(type="skew-report", source=source, capacity_per_queue=0.5)

    with pytest.raises(OptionError, match="is read-only"):
        skew.run("s", spec, lambda: spark)
    with pytest.raises(ValidationError):
        SkewSpec(type="skew-report", source=source, capacity_per_queue=0.5, candidates=[0])


# -- bad input and trouble


def test_bad_places_are_clear_errors(spark: "SparkSession", topics: Topics) -> None:
    """Refused are a missing topic, an offset beyond the end, a time after the last message, and a misspelt option."""
    topic = topics.make()
    topics.numbered(topic, 4)
    queue = topics.queues(topic)[0]
    beyond = json.dumps({topic: {queue.broker_name: {"0": 500}}})
    for options, error, text in (
        ({"topic": "no-such-topic"}, TopicNotFound, "no broker has the topic no-such-topic"),
        ({"topic": topic, "startingOffsets": beyond}, OptionError, "is beyond its end"),
        (
            {"topic": topic, "startingTimestamp": "2999-01-01"},
            OptionError,
            "no message that was stored",
        ),
        ({"topic": topic, "startingOffset": "latest"}, OptionError, "did you mean startingOffsets"),
    ):
        with pytest.raises(Exception, match=text) as caught:
            read_batch(spark, bootstrap=topics.bootstrap, **options).collect()
        assert error.__name__ in str(caught.value)


def test_times_words_and_groups_choose_the_same_messages(
    spark: "SparkSession", topics: Topics
) -> None:
    """A time chooses exactly the messages that were stored then or later."""
    topic = topics.make(queues=1)
    topics.numbered(topic, 30)
    messages = next(iter(topics.read(topic).values()))
    moment = messages[17].store_timestamp

    rows = read_batch(
        spark, bootstrap=topics.bootstrap, topic=topic, startingTimestamp=str(moment)
    ).collect()
    before = read_batch(
        spark, bootstrap=topics.bootstrap, topic=topic, endingTimestamp=str(moment)
    ).collect()

    later = [m.queue_offset for m in messages if m.store_timestamp >= moment]
    assert [row.queue_offset for row in rows] == later
    assert [row.queue_offset for row in before] == list(range(later[0]))


def test_tags_are_selected_exactly(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.make()
    topics.numbered(topic, 50)

    rows = read_batch(spark, bootstrap=topics.bootstrap, topic=topic, tags="odd || none").collect()

    assert len(rows) == 25
    assert {row.tags for row in rows} == {"odd"}


def test_one_queue_may_be_cut_for_reading(spark: "SparkSession", topics: Topics) -> None:
    topic = topics.make(queues=1)
    topics.numbered(topic, 50)
    frame = read_batch(spark, bootstrap=topics.bootstrap, topic=topic, minPartitions=5)

    assert frame.rdd.getNumPartitions() == 5
    assert sorted(row.queue_offset for row in frame.collect()) == list(range(50))


def test_two_drivers_on_one_checkpoint_are_refused(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    spec = archive_spec(topics, topics.make(), tmp_path)

    with (
        hold_checkpoint(spec.checkpoint),
        pytest.raises(CheckpointInUse, match="another driver works"),
    ):
        archive.run("second", spec, lambda: spark)


def test_a_stream_says_that_it_runs_before_the_first_message_comes(
    spark: "SparkSession", topics: Topics, tmp_path: Path
) -> None:
    spec = archive_spec(topics, topics.make(), tmp_path).model_copy(update={"trigger": "100ms"})
    status = spec.checkpoint / "status.json"
    said: list[str] = []

    def watch() -> None:
        deadline = time.monotonic() + 120
        while not spark.streams.active and time.monotonic() < deadline:
            time.sleep(0.05)
        try:
            while said[-1:] != ["Running"] and time.monotonic() < deadline:
                with suppress(FileNotFoundError):
                    said.append(json.loads(status.read_text())["phase"])
                time.sleep(0.05)
        finally:
            for query in spark.streams.active:
                query.stop()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    archive.run("idle", spec, lambda: spark)
    watcher.join()

    assert said[-1:] == ["Running"]
    assert json.loads(status.read_text())["phase"] == "Finished"


@pytest.mark.parametrize("count", [5, 40], ids=["shorter", "longer"])
def test_a_topic_that_was_made_again_ends_the_stream(
    spark: "SparkSession", topics: Topics, tmp_path: Path, count: int
) -> None:
    """The error names the place, even if the new topic is longer; an archive refuses other messages at its offsets."""
    topic = topics.make(queues=1)
    topics.numbered(topic, 30)
    spec = archive_spec(topics, topic, tmp_path)
    archive.run("lost", spec, lambda: spark)
    topics.admin.delete_topic(topic)
    topics.admin.create_topic(topic, queues=1, ordered=True)
    topics.numbered(topic, count)

    with pytest.raises(PipelineFailed, match="was created again"):
        archive.run("lost", spec, lambda: spark)

    status = json.loads((spec.checkpoint / "status.json").read_text())
    assert (status["phase"], DataLost.__name__ in status["last_error"]) == ("Failed", False)
    source = spec.source.model_copy(update={"options": {"failOnDataLoss": False}})
    with pytest.raises(PipelineFailed, match="a path and a checkpoint of its own"):
        archive.run("lost", spec.model_copy(update={"source": source}), lambda: spark)


def test_a_stream_that_begins_at_the_end_must_remember_where_that_was(
    spark: "SparkSession", topics: Topics, checkpoint: Callable[[str], Path]
) -> None:
    """Without a start file, Spark would ask for the end again after a crash, and skip messages in between."""
    where = checkpoint("x")
    frame = spark.readStream.format("orderlymq").options(
        bootstrap=topics.bootstrap, topic=topics.make(), startingOffsets="latest"
    )

    query = (
        frame.load()
        .writeStream.format("noop")
        .option("checkpointLocation", str(where))
        .trigger(availableNow=True)
        .start()
    )
    with pytest.raises(Exception, match="needs startPath"):
        query.awaitTermination()
