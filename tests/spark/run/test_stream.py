"""The end of a stream: by itself, or by a signal."""

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import repeat
from pathlib import Path
from typing import Any, Final, cast
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.readwriter import DataStreamWriter

from orderlymq.errors import OrderlyMQError
from orderlymq_spark.errors import CheckpointInUse, StoreFailed
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.offsets import to_json
from orderlymq_spark.options import START_FILE
from orderlymq_spark.run import stream
from orderlymq_spark.run.checkpoint import Claim, hold_checkpoint
from orderlymq_spark.run.status import Status, kept_status
from orderlymq_spark.run.stream import PipelineFailed, run_stream
from orderlymq_spark.specs import SPECS, ArchiveSpec, CdcSpec, Source, StreamSpec
from tests.ports import free_ports
from tests.spark.s3 import BUCKET, S3, Fate, Request
from tests.spark.topics import Topics


class Query:
    """The query that Spark starts: it reads until a signal stops it."""

    def __init__(self, progress: list[dict[str, Any]]) -> None:
        self.recentProgress = progress
        self._stopped = threading.Event()

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        signal.raise_signal(signal.SIGTERM)
        return self._stopped.wait(10)

    def stop(self) -> None:
        self._stopped.set()


class Writer:
    def __init__(self, query: Query) -> None:
        self._query = query

    def option(self, *_: object) -> "Writer":
        return self

    def trigger(self, **_: object) -> "Writer":
        return self

    def queryName(self, _name: str) -> "Writer":  # noqa: N802 - Spark's name
        return self

    def start(self) -> Query:
        return self._query


class Refused(Writer):
    """Raises the error of Spark for a query that cannot begin."""

    def __init__(self, text: str) -> None:
        super().__init__(Query([]))
        self._text = text

    def start(self) -> Query:
        raise RuntimeError(self._text)


def run_until_signal(
    folder: Path, trigger: str, *progress: dict[str, Any], port: int | None = None
) -> dict[str, Any]:
    """Run a stream that SIGTERM stops; return its status file."""
    source = Source(topic="orders", bootstrap="127.0.0.1:1")
    spec = StreamSpec(
        type="archive",
        source=source,
        checkpoint=location(folder),
        trigger=trigger,
        metrics_port=port,
    )
    writer = cast("DataStreamWriter", Writer(Query([*progress])))
    try:
        run_stream("orders-archive", spec, lambda: writer, counts_offsets=True)
    finally:
        status: dict[str, Any] = json.loads((folder / "status.json").read_text())
    return status


def test_a_signal_is_no_end_of_a_run_that_ends_by_itself(tmp_path: Path) -> None:
    """A drained node stops such a run before its end, so its caller must start it again."""
    with pytest.raises(OrderlyMQError, match="run it again"):
        run_until_signal(tmp_path, "availableNow")

    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["phase"], status["last_error"]) == ("Failed", "stopped by a signal")


def test_a_signal_is_the_end_of_a_stream_that_goes_on(tmp_path: Path) -> None:
    """Such a stream ends only by a signal."""
    status = run_until_signal(tmp_path, "1s")

    assert (status["phase"], status["last_error"]) == ("Finished", None)


def test_a_status_has_offsets_by_queue_alone(tmp_path: Path) -> None:
    """Console and operator read each entry as a queue.

    If a topic was created again, its whole new content is in a batch.
    """
    ends = [{"orders": {"g": {"0": end, "topicId": topic}}} for end, topic in ((30, 7), (40, 8))]
    source = {"startOffset": ends[0], "endOffset": ends[1]}
    progress = {"batchId": 3, "numInputRows": 1, "batchDuration": 9, "sources": [source]}

    status = run_until_signal(tmp_path, "1s", progress)

    assert status["offsets"] == {"orders": {"g": {"0": 40}}}
    assert status["rows"] == 40


@pytest.mark.parametrize(
    ("ends", "rows"),
    [
        ([None, {"0": 40, "1": 3}], 13),
        ([{"0": 30}, {"0": 12}], 12),
        ([{"0": 30, "last": {"0": 1}}, {"0": 30, "last": {"0": 2}}], 30),
        ([{"0": 30, "last": {"0": 1}}, {"0": 30, "last": {"0": 1}}], 0),
    ],
    ids=["first batch", "shorter", "as long", "at rest"],
)
def test_the_rows_of_a_batch_are_what_it_reads(
    tmp_path: Path, ends: list[dict[str, Any] | None], rows: int
) -> None:
    """The start file gives the first batch's beginning, which Spark does not report.

    A replaced queue's batch has all of it.
    """
    begun = {"what was asked for": {}, "where it began": {"orders": {"g": {"0": 30, "1": 0}}}}
    (tmp_path / START_FILE).write_text(json.dumps(begun))
    start, end = (None if each is None else {"orders": {"g": each}} for each in ends)
    source = {"startOffset": start, "endOffset": end}
    progress = {"batchId": 0, "numInputRows": 1, "batchDuration": 9, "sources": [source]}

    assert run_until_signal(tmp_path, "1s", progress)["rows"] == rows


def test_a_batch_that_takes_a_topic_in_has_no_rows_of_it(tmp_path: Path) -> None:
    """That batch only records where the topic begins (Spark 4.2); earlier messages, removed by retention, were never read."""
    ends: list[dict[str, Any]] = [{"orders": {"g": {"0": 30}}}]
    ends.append({"orders": {"g": {"0": 40}, "h": {"0": 5000}}, "bills": {"g": {"0": 900}}})
    source = {"startOffset": ends[0], "endOffset": ends[1]}
    progress = {"batchId": 3, "numInputRows": 1, "batchDuration": 9, "sources": [source]}

    assert run_until_signal(tmp_path, "1s", progress)["rows"] == 10


@pytest.mark.parametrize(
    ("raised", "told"),
    [
        (
            ": java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
            "Spark lacks the jars for the address of its checkpoint",
        ),
        (
            ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "gs"',
            "Spark lacks the jars for the address of its checkpoint",
        ),
        ("orderlymq_spark.errors.OptionError: there is no column", "there is no column"),
        (": java.lang.IllegalStateException: busy", "java.lang.IllegalStateException: busy"),
    ],
)
def test_a_query_that_cannot_begin_has_failed_with_the_cure(
    tmp_path: Path, raised: str, told: str
) -> None:
    """The command prints one sentence, and the status says that the query will not begin."""
    source = Source(topic="orders", bootstrap="127.0.0.1:1")
    spec = StreamSpec(type="archive", source=source, checkpoint=location(tmp_path))
    writer = cast(
        "DataStreamWriter", Refused(f"An error occurred while calling o1.start.\n{raised}\n\tat x")
    )

    with pytest.raises(PipelineFailed, match=told):
        run_stream("orders-archive", spec, lambda: writer)

    status = json.loads((tmp_path / "status.json").read_text())
    assert status["phase"] == "Failed"
    assert status["last_error"].startswith(told)


class Late(Query):
    """Ends first as Spark ends a query whose Python started too late, and later by itself."""

    def __init__(self, late: Iterator[bool]) -> None:
        super().__init__([])
        self._late = late

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        if next(self._late, False):
            raise StreamingQueryException("Python worker failed to connect back. SQLSTATE: XXKST")
        return True


@pytest.mark.parametrize(("late", "phase"), [(3, "Finished"), (1000, "Failed")])
def test_a_query_whose_python_started_late_begins_again(
    tmp_path: Path, late: int, phase: str
) -> None:
    """Spark waits 10 s for it, whatever its settings say; a busy machine takes longer, but the attempts are limited."""
    source = Source(topic="orders", bootstrap="127.0.0.1:1")
    spec = StreamSpec(type="archive", source=source, checkpoint=location(tmp_path))
    writer = cast("DataStreamWriter", Writer(Late(repeat(True, late))))

    with nullcontext() if phase == "Finished" else pytest.raises(PipelineFailed, match="connect"):
        run_stream("orders-archive", spec, lambda: writer)

    status = json.loads((tmp_path / "status.json").read_text())
    assert (status["phase"], status["last_error"] is None) == (phase, phase == "Finished")


class Watched(Query):
    """Reads while *step* is called, and ends when it returns true."""

    def __init__(self, step: Callable[[], bool]) -> None:
        super().__init__([])
        self._step = step
        self.stopped = False

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        return self._step()

    def stop(self) -> None:
        self.stopped = True


@pytest.mark.parametrize("ends_by", ["looking", "its end", "an error"])
def test_a_driver_leaves_the_status_to_the_one_after_it(s3: S3, ends_by: str) -> None:
    """Law: only the driver that holds the checkpoint writes the status; others end with an error that says so."""
    place = location(f"s3a://{BUCKET}/{uuid4().hex}")
    source = Source(topic="orders", bootstrap="127.0.0.1:1")
    spec = StreamSpec(type="archive", source=source, checkpoint=place)

    def begin_another() -> bool:
        with hold_checkpoint(place) as claim:
            Status("orders-archive", "archive", phase="Running", rows=7).write(claim)
        if ends_by == "an error":
            raise StreamingQueryException("the other driver has committed the batch")
        return ends_by == "its end"

    query = Watched(begin_another)

    with pytest.raises(CheckpointInUse, match="another driver has begun"):
        run_stream("orders-archive", spec, lambda: cast("DataStreamWriter", Writer(query)))

    kept = kept_status(place)
    assert (kept["phase"], kept["rows"], kept["last_error"]) == ("Running", 7, None)
    assert query.stopped


@pytest.mark.parametrize("after", [0, 1])
def test_a_driver_whose_store_is_away_has_failed(s3: S3, after: int) -> None:
    """Law: a query ends with its driver's claim to the checkpoint, and no status says Running of a query that has ended."""
    place = location(f"s3a://{BUCKET}/{uuid4().hex}")
    source = Source(topic="orders", bootstrap="127.0.0.1:1")
    spec = StreamSpec(type="archive", source=source, checkpoint=place)
    refused = ("GET", "PUT")[after == 0]
    left = [1]

    def away(request: Request) -> Fate:
        return "refused" if request.method == refused and left and left.pop() else "served"

    def lose_the_store() -> bool:
        s3.decide = away
        return False

    query = Watched(lose_the_store)

    class Starting(Writer):
        def start(self) -> Query:
            if not after:
                s3.decide = away
            return query

    with pytest.raises(StoreFailed):
        run_stream("orders-archive", spec, lambda: cast("DataStreamWriter", Starting(query)))

    kept = kept_status(place)
    assert kept["phase"] == "Failed"
    assert "the object store did not" in kept["last_error"]
    assert query.stopped


def test_a_lag_that_no_broker_reports_is_no_number(tmp_path: Path) -> None:
    """0 would mean that no messages wait, while the brokers only do not answer."""
    offsets = {"orders": {"g": {"0": 40}}}
    source = {"startOffset": {"orders": {"g": {"0": 30}}}, "endOffset": offsets}
    progress = {"batchId": 3, "numInputRows": 1, "batchDuration": 9, "sources": [source]}

    status = run_until_signal(tmp_path, "1s", progress, port=free_ports(1)[0])

    shown = {
        name: REGISTRY.get_sample_value(
            f"orderlymq_pipeline_{name}", {"pipeline": "orders-archive"}
        )
        for name in ("lag", "lag_seconds", "rows")
    }
    assert status["lag"] is None
    assert shown == pytest.approx(
        {"lag": math.nan, "lag_seconds": math.nan, "rows": 10}, nan_ok=True
    )


class Stuck(Query):
    """Works on a long batch while messages arrive."""

    def __init__(self, come: Callable[[], None]) -> None:
        super().__init__([])
        self._steps = iter((come, lambda: None))

    def awaitTermination(self, _seconds: int) -> bool:  # noqa: N802 - Spark's name
        step = next(self._steps, None)
        if step is not None:
            step()
        return step is None


@pytest.mark.cluster
def test_the_lag_grows_while_a_batch_lasts(
    topics: Topics, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lag also grows during the first batch of a run: the checkpoint says how far the stream has read."""
    topic = topics.make(queues=1)
    topics.numbered(topic, 3)
    for log, text in (("offsets", to_json({topics.queues(topic)[0]: 2})), ("commits", {})):
        (tmp_path / "spark" / log).mkdir(parents=True)
        (tmp_path / "spark" / log / "0").write_text(f"v1\n{{}}\n{json.dumps(text)}")
    monkeypatch.setattr(stream, "_LAG_EVERY_MS", 0)
    writer = cast("DataStreamWriter", Writer(Stuck(lambda: topics.numbered(topic, 4))))
    spec = StreamSpec(
        type="archive",
        source=Source(topic=topic, bootstrap=topics.bootstrap),
        checkpoint=location(tmp_path),
    )

    status = run_stream("orders-archive", spec, lambda: writer)

    assert status.offsets == {topic: {"g": {"0": 2}}}
    assert status.lag == 5
    assert status.lag_seconds is not None
    assert status.lag_seconds > 0


CDC: Final = {"type": "cdc-apply", "path": "/a", "format": "debezium"}


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ({"path": "/a"}, {"path": "/b"}, "path"),
        ({"path": "/a"}, {"path": "/a", "format": "delta"}, "format"),
        ({"path": "/a"}, {"path": "/a", "topic": "payments"}, "source.topic"),
        ({"path": "/a"}, {"type": "replay", "target": "b"}, "format"),
        ({"type": "replay", "target": "a"}, {"type": "replay", "target": "b"}, "target"),
        (
            {"type": "replay", "target": "a"},
            {"type": "replay", "target": "a", "target_bootstrap": "127.0.0.1:2"},
            "targetBootstrap",
        ),
        (
            {"format": "iceberg", "table": "lake.orders", "catalog": {"name": "one"}},
            {"format": "iceberg", "table": "lake.orders", "catalog": {"name": "two"}},
            "catalog",
        ),
        (CDC | {"keys": ["id"]}, CDC | {"keys": ["tenant", "id"]}, "keys"),
    ],
)
def test_the_checkpoint_of_another_pipeline_is_refused(
    tmp_path: Path, old: dict[str, Any], new: dict[str, Any], name: str
) -> None:
    """The pipeline would begin at the other one's offsets and miss all before; the other pipeline can still continue."""

    def run(values: dict[str, Any], called: str) -> Status:
        more = {"type": "archive", **values}
        source = Source(topic=more.pop("topic", "orders"), bootstrap="127.0.0.1:1")
        given = {"source": source, "checkpoint": str(tmp_path / "one"), **more}
        spec = SPECS[more["type"]].model_validate(given)
        assert isinstance(spec, StreamSpec)
        writer = cast("DataStreamWriter", Writer(Late(repeat(False))))
        return run_stream(called, spec, lambda: writer)

    run(old, "first")
    plan_a_batch(tmp_path / "one")

    with pytest.raises(
        CheckpointInUse, match=rf"the pipeline first, whose {name} is .* of its own"
    ):
        run(new, "second")
    assert run(old, "first").phase == "Finished"


def test_the_checkpoint_of_a_mirror_is_refused(tmp_path: Path) -> None:
    """The mirror's status says which source was copied; a mirror without it would accept another source as the same."""
    kept = Status("dr", "mirror", source={"orders": {"g": {"0": 9}}})
    kept.write(Claim(location(tmp_path)))

    with pytest.raises(CheckpointInUse, match=r"belongs to the mirror dr; give .* of its own"):
        finish(tmp_path, "/a")

    assert kept_status(location(tmp_path))["source"] == kept.source


def plan_a_batch(checkpoint: Path) -> None:
    """Write the files that Spark writes when it has planned its first batch."""
    (checkpoint / "spark" / "offsets").mkdir(parents=True)
    (checkpoint / "spark" / "offsets" / "0").write_text("v1\n{}\n{}")


def finish(folder: Path, path: str, topic: str = "orders") -> Status:
    """Run an archive with the checkpoint *folder* to its end."""
    source = Source(topic=topic, bootstrap="127.0.0.1:1")
    spec = ArchiveSpec(type="archive", source=source, checkpoint=location(folder), path=path)
    writer = cast("DataStreamWriter", Writer(Late(repeat(False))))
    return run_stream("orders-archive", spec, lambda: writer)


def test_a_checkpoint_belongs_to_a_pipeline_from_the_first_batch_on(tmp_path: Path) -> None:
    """Law: a run that has read nothing, as of a wrong topic, does not block a corrected one, nor decide where that begins."""
    finish(tmp_path, "/a", topic="ordres")
    (tmp_path / START_FILE).write_text("{}")

    assert finish(tmp_path, "/a").phase == "Finished"
    assert not (tmp_path / START_FILE).exists()
    (tmp_path / START_FILE).write_text("{}")
    assert finish(tmp_path, "/a").phase == "Finished"
    assert (tmp_path / START_FILE).exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("s3a://lake/orders/", "s3://lake/orders"),
        ("s3://lake/orders", "s3a://lake/orders"),
        ("{}/orders/", "{}//./orders"),
        ("{}/orders", "{}/link/orders"),
    ],
)
def test_one_place_in_two_spellings_is_one_place(tmp_path: Path, old: str, new: str) -> None:
    """Law: locations that are known to be the same cause no refusal; for others the error says what to do."""
    (tmp_path / "link").symlink_to(tmp_path)
    one = tmp_path / "one"
    finish(one, old.format(tmp_path))
    plan_a_batch(one)

    assert finish(one, new.format(tmp_path)).phase == "Finished"
    with pytest.raises(
        CheckpointInUse, match=r"by two mounts, write .* into about of \S+/status\.json"
    ):
        finish(one, "/mnt/orders")


def test_a_checkpoint_of_before_says_nothing_of_keys(tmp_path: Path) -> None:
    """Checkpoints of earlier versions lack only the keys: the run continues and records the present ones."""
    given = CDC | {"source": {"topic": "changes"}, "checkpoint": str(tmp_path), "keys": ["id"]}
    spec = CdcSpec.model_validate(given)
    about = {name: value for name, value in spec.about.items() if name != "keys"}
    kept = {"name": "customers", "type": "cdc-apply", "about": about}
    (tmp_path / "status.json").write_text(json.dumps(kept))
    plan_a_batch(tmp_path)
    writer = cast("DataStreamWriter", Writer(Late(repeat(False))))

    assert run_stream("customers", spec, lambda: writer).about == spec.about


def test_a_checkpoint_of_before_says_nothing_of_its_pipeline(tmp_path: Path) -> None:
    """The status file of an earlier version lacks the field, and the run continues."""
    spec = StreamSpec(type="archive", source=Source(topic="orders"), checkpoint=location(tmp_path))
    (tmp_path / "status.json").write_text(json.dumps({"name": "x", "type": "archive"}))
    writer = cast("DataStreamWriter", Writer(Late(repeat(False))))

    assert run_stream("x", spec, lambda: writer).phase == "Finished"
