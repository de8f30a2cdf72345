"""An explanation states the work, cost and guarantees of a pipeline before it runs; with real brokers, without Spark."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from orderlymq_spark.cluster.access import access_to
from orderlymq_spark.explain.explanation import Explanation, explain
from orderlymq_spark.explain.rates import START_S
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import QueueRange, to_json
from orderlymq_spark.options import START_FILE, Connect, parse_source
from orderlymq_spark.source.bounds import first_offsets
from orderlymq_spark.specs import SPECS, parse_pipeline
from orderlymq_spark.tables.parquet import PartFile, parts_folder, publish
from tests.spark.topics import Topics

pytestmark = [pytest.mark.cluster]


@pytest.fixture(scope="module")
def topic(topics: Topics) -> str:
    name = topics.make(queues=3)
    topics.numbered(name, 60)
    return name


def manifest(kind: str, **spec: Any) -> Any:
    return parse_pipeline(
        {"kind": "Pipeline", "metadata": {"name": "nightly"}, "spec": {"type": kind, **spec}}
    )


def source(topics: Topics, topic: str, **options: Any) -> dict[str, Any]:
    return {"bootstrap": topics.bootstrap, "topic": topic, "options": options}


def cdc(topics: Topics, topic: str, folder: Path, **more: Any) -> Any:
    return manifest(
        "cdc-apply",
        source=source(topics, topic),
        checkpoint=str(folder / "checkpoint"),
        path=str(folder / "table"),
        format="debezium",
        keys=["id"],
        **more,
    )


def test_an_archive_is_reported_with_what_waits_and_how_long_it_takes(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Messages, bytes, tasks, batches and seconds describe the topic at this moment; nothing is written."""
    pipeline = manifest(
        "archive",
        source=source(topics, topic, maxOffsetsPerTrigger=25),
        checkpoint=str(tmp_path / "checkpoint"),
        path=str(tmp_path / "archive"),
    )

    found = explain(pipeline)

    queues = [messages for messages in topics.read(topic).values() if messages]
    stored = [message for messages in queues for message in messages]
    assert found.cost.messages == len(stored) == 60
    assert found.cost.tasks == len(queues)
    assert found.cost.batches == 3
    assert found.cost.size_bytes > sum(len(message.body) for message in stored)
    assert found.cost.seconds == pytest.approx(START_S, abs=0.1)
    assert found.warnings == ()
    assert "every offset is archived once" in found.guarantees[0]
    assert str(tmp_path / "archive") in " ".join(found.plan)
    assert list(tmp_path.iterdir()) == []
    assert json.loads(json.dumps(found.data()))["cost"]["messages"] == 60
    assert all(part in found.text() for part in ("60 messages", "3 batches", *found.plan))


def test_an_archive_in_a_table_of_a_catalogue_names_the_table(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Such an archive has no path that could be shown."""
    pipeline = manifest(
        "archive",
        source=source(topics, topic),
        checkpoint=str(tmp_path / "checkpoint"),
        format="iceberg",
        catalog={"name": "lake"},
        table="shop.orders",
    )

    assert "the Iceberg table shop.orders in one commit" in explain(pipeline).text()


def test_what_a_checkpoint_has_done_does_not_wait(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Waiting messages count from the last batch that Spark has ended, or, before the first one, from the stream's start."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    pipeline = manifest(
        "replay", source=source(topics, topic), checkpoint=str(checkpoint), target="copy"
    )
    ends = {queue: len(messages) for queue, messages in topics.read(topic).items()}
    begun = {queue: each - 1 if each else 0 for queue, each in ends.items()}
    started_at = {"startingOffsets": json.dumps(to_json(begun))}
    place = {"startPath": str(checkpoint / START_FILE)}
    options = parse_source({"bootstrap": topics.bootstrap, "topic": topic, **place, **started_at})
    first_offsets(access_to(options.connect), options)
    # A run that found no new messages has left a status without offsets.
    (checkpoint / "status.json").write_text(json.dumps({"offsets": None}))

    started = explain(pipeline)
    for batch, offsets in enumerate((begun, ends, dict.fromkeys(ends, 0))):
        plan(checkpoint / "spark", batch, to_json(offsets))
    end(checkpoint / "spark", 0)
    end(checkpoint / "spark", 1)
    done = explain(pipeline)
    plan(checkpoint / "spark", 1, to_json(ends, {(topic, "g"): 1 << 40}))
    again = explain(pipeline)

    assert started.cost.messages == sum(each > 0 for each in ends.values())
    assert done.cost.messages == 0
    assert done.cost.batches == 0
    assert "where the checkpoint ends" in done.reads
    assert "was created again" in again.warnings[0]
    assert again.cost.messages == 60


def test_a_checkpoint_of_another_cluster_is_reported_as_refused(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """A cluster that was wiped assigns the same ids, but its messages have other marks; another cluster has other brokers."""
    checkpoint = tmp_path / "checkpoint"
    pipeline = manifest(
        "archive",
        source=source(topics, topic),
        checkpoint=str(checkpoint),
        path=str(tmp_path / "archive"),
    )
    stored = {queue: messages for queue, messages in topics.read(topic).items() if messages}
    queue = next(iter(stored))
    begun = dict.fromkeys(topics.queues(topic), 0) | {queue: 1}

    def told(offsets: dict[str, Any]) -> Explanation:
        plan(checkpoint / "spark", 0, offsets)
        end(checkpoint / "spark", 0)
        return explain(pipeline)

    same = told(to_json(begun, marks=access_to(Connect(topics.bootstrap)).marks({queue: 1})))
    wiped = told(to_json(begun, marks={queue: 1}))
    other = told(to_json({queue._replace(broker_name="elsewhere"): 7}))

    assert (same.warnings, same.cost.messages) == ((), 59)
    (warning,) = wiped.warnings
    assert f"{queue.broker_name}:{queue.queue_id} [1, 1) was created again" in warning
    assert "its cluster was wiped or restored" in warning
    assert warning.endswith("the run ends with an error")
    assert wiped.cost.messages == 60
    assert other.warnings == (
        f"the queue {topic} elsewhere:{queue.queue_id} was removed: the run ends with an error",
    )


def plan(spark: Path, batch: int, offsets: dict[str, Any]) -> None:
    """Record the end of a batch as Spark does when it plans it."""
    (spark / "offsets").mkdir(parents=True, exist_ok=True)
    (spark / "offsets" / str(batch)).write_text(f'v1\n{{"conf":{{}}}}\n{json.dumps(offsets)}')


def end(spark: Path, batch: int) -> None:
    """Record that a batch is done, as Spark does."""
    (spark / "commits").mkdir(parents=True, exist_ok=True)
    (spark / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')


def test_what_voids_a_guarantee_is_a_warning(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Cut queues, tags and tolerated losses are each reported once."""
    options = {"minPartitions": 8, "tags": "odd", "failOnDataLoss": False}

    found = explain(
        manifest("skew-report", source=source(topics, topic, **options), capacityPerQueue=100)
    )

    assert found.cost.tasks >= 8
    assert [text.partition(" ")[0] for text in found.warnings] == [
        "minPartitions",
        "tags",
        "failOnDataLoss=false:",
    ]


def test_tasks_are_those_that_the_options_cut(topics: Topics, topic: str) -> None:
    """The number of tasks equals that of Spark's plan."""
    options = {"maxRecordsPerPartition": 7}
    sizes = [len(messages) for messages in topics.read(topic).values()]

    found = explain(
        manifest("skew-report", source=source(topics, topic, **options), capacityPerQueue=100)
    )

    assert found.cost.tasks == sum(-(-size // 7) for size in sizes)


@pytest.mark.parametrize("kind", ["dead-letters", "redrive"])
def test_a_group_without_dead_letters_has_nothing_that_waits(
    topics: Topics, tmp_path: Path, kind: str
) -> None:
    """As in a run: the topic of dead letters is created with the first one."""
    more = {"plan": str(tmp_path / "plan")} if kind == "redrive" else {}

    found = explain(manifest(kind, bootstrap=topics.bootstrap, group="spotless", **more))

    assert (found.cost.messages, found.reads) == (0, "no dead letters: spotless has had none")


@pytest.mark.parametrize("errors", ["bad", None])
def test_an_event_that_cannot_be_read_is_said_to_end_the_run_without_a_folder(
    topics: Topics, topic: str, tmp_path: Path, errors: str | None
) -> None:
    """Without a folder such an event has no place, so the explanation says that it ends the run."""
    found = explain(cdc(topics, topic, tmp_path, errors=errors))

    assert found.plan[0].endswith(
        "one that cannot be read " + (f"goes to {errors}" if errors else "ends the run")
    )


def test_files_of_an_archive_are_counted(topics: Topics, topic: str, tmp_path: Path) -> None:
    """Compaction counts bytes, the audit of an archive counts rows."""
    root = location(tmp_path / "archive")
    queue = topics.queues(topic)[0]
    rows = pa.RecordBatch.from_pydict({"queue_offset": list(range(7)), "body": [b"x"] * 7})
    part = PartFile(parts_folder(root, "nightly", 0) / "a.part", queue, rows.schema, "zstd")
    part.write(rows, "")
    written = part.close()
    publish(root, "nightly", 0, [written])

    compact = explain(manifest("compact", path=str(root)))
    audit = explain(manifest("order-audit", archive=str(root)))

    assert written.part == QueueRange(queue, 0, 7)
    assert (compact.cost.messages, compact.cost.size_bytes) == (7, written.size_bytes)
    assert "1 files with 7 offsets" in audit.reads


def test_a_type_whose_speed_was_not_measured_has_no_time(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """A missing time is better than a guessed one."""
    found = explain(cdc(topics, topic, tmp_path))

    assert found.cost.seconds is None
    assert "its speed was not measured" in found.text()


def test_a_replay_with_a_pace_has_no_time_by_the_rate_of_one_without(
    topics: Topics, topic: str, tmp_path: Path
) -> None:
    """Batches of a paced replay wait until they are due, and are small."""
    given = {"source": source(topics, topic), "checkpoint": str(tmp_path), "target": "copy"}

    fast, paced = (
        explain(manifest("replay", **given)),
        explain(manifest("replay", **given, speed=2)),
    )

    assert fast.cost.seconds is not None
    assert paced.cost.seconds is None
    assert "at 2 times the speed at which it was stored" in paced.text()


def test_a_topic_that_is_not_there_is_an_error(topics: Topics, tmp_path: Path) -> None:
    """A run has the same error."""
    with pytest.raises(Exception, match="absent"):
        explain(
            manifest(
                "archive",
                source=source(topics, "absent"),
                checkpoint=str(tmp_path),
                path=str(tmp_path),
            )
        )


@pytest.mark.parametrize("kind", list(SPECS))
def test_every_type_has_a_plan(topics: Topics, topic: str, tmp_path: Path, kind: str) -> None:
    """Every pipeline that a manifest can describe can be explained."""
    topics.admin.create_topic("%DLQ%billing", queues=1)
    everything = {
        "source": source(topics, topic),
        "bootstrap": topics.bootstrap,
        "topic": topic,
        "groups": [],
        "group": "billing",
        "checkpoint": str(tmp_path / "checkpoint"),
        "path": str(tmp_path / "path"),
        "plan": str(tmp_path / "plan.json"),
        "target": "copy",
        # The same cluster under another name: a mirror has no work there.
        "targetBootstrap": topics.bootstrap.replace("127.0.0.1", "localhost"),
        "capacityPerQueue": 1,
        "format": "debezium" if kind == "cdc-apply" else "parquet",
        "keys": ["id"],
    }
    fields = {field.alias or name for name, field in SPECS[kind].model_fields.items()}

    found = explain(manifest(kind, **{k: v for k, v in everything.items() if k in fields}))

    assert found.plan
    assert found.guarantees
