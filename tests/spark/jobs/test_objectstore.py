"""Pipelines on an object store: archive, audit, compaction and reports, read by Arrow's own S3 client."""

from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow.dataset as ds
import pytest
from pyarrow import fs

from orderlymq_spark.errors import CheckpointInUse
from orderlymq_spark.jobs import archive, compact
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.run.checkpoint import hold_checkpoint
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.run.stream import PipelineFailed
from orderlymq_spark.specs import ArchiveSpec, CompactSpec, OrderAuditSpec, Source
from tests.spark.s3 import BUCKET, S3, Fate, Request
from tests.spark.topics import Topics

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def read_by_arrow(port: int, folder: str) -> dict[tuple[int, int], bytes]:
    """Return the rows that a reader finds which uses neither our layer nor its library; each row once."""
    store = fs.S3FileSystem(
        access_key="testing1",
        secret_key="testing1",
        region="us-east-1",
        endpoint_override=f"127.0.0.1:{port}",
        scheme="http",
    )
    rows = ds.dataset(f"{BUCKET}/{folder}", filesystem=store, format="parquet").to_table()
    names = ("queue_id", "queue_offset", "body")
    triples = list(zip(*(rows.column(name).to_pylist() for name in names), strict=True))
    found = {(queue, offset): body for queue, offset, body in triples}
    assert len(found) == len(triples)
    return found


@pytest.mark.spark
@pytest.mark.timeout(600)
def test_pipelines_work_on_an_object_store_that_is_busy_and_loses_answers(
    spark: "SparkSession", topics: Topics, tmp_path: Path, s3: S3
) -> None:
    """One of ten requests is refused, slow, or carried out without an answer; the archive is complete all the same."""
    topic = topics.make()
    topics.numbered(topic, 60)
    base = uuid4().hex
    address = f"s3a://{BUCKET}/{base}"

    def trouble(request: Request) -> Fate:
        fates: dict[int, Fate] = {3: "busy", 5: "answer lost", 7: "slow"}
        return fates.get(len(s3.seen) % 10, "served")

    def run(name: str, *, app: str = "", offsets: int = 25) -> Outcome:
        options = {"maxOffsetsPerTrigger": offsets}
        spec = ArchiveSpec(
            type="archive",
            source=Source(bootstrap=topics.bootstrap, topic=topic, options=options),
            checkpoint=tmp_path / name,
            path=f"{address}/files",
        )
        return archive.run(app or name, spec, lambda: spark)

    s3.decide = trouble
    first = run("kept")
    compact.run("c", CompactSpec(type="compact", path=f"{address}/files"), lambda: spark)
    topics.numbered(topic, 20, start=60)
    run("kept")
    judged = audit.run(
        "a",
        OrderAuditSpec(
            type="order-audit",
            archive=f"{address}/files",
            sequence_property="n",
            findings=f"{address}/findings.jsonl",
        ),
        lambda: spark,
    )
    # The file of a refused part stays, and the next commit removes it.
    assert list(location(f"{address}/files/_parts").files()) == []
    with pytest.raises(PipelineFailed, match="from another checkpoint"):
        run("another", app="kept", offsets=45)
    s3.reset()

    bodies = {
        (queue.queue_id, message.queue_offset): message.body
        for queue, messages in topics.read(topic).items()
        for message in messages
    }
    assert (first.data["rows"], first.data["messages"], len(bodies)) == (60, 60, 80)
    assert read_by_arrow(s3.port, f"{base}/files/{topic}") == bodies
    assert (judged.passed, judged.data["messages"]) == (True, 80)
    assert location(f"{address}/findings.jsonl").read_text() == ""


def test_of_two_drivers_on_a_checkpoint_in_a_store_the_first_is_refused(s3: S3) -> None:
    """A store cannot show that a process has died, so the driver that begins later continues."""
    checkpoint = location(f"s3a://{BUCKET}/{uuid4().hex}/checkpoint")

    with hold_checkpoint(checkpoint) as first:
        first.check()
        with hold_checkpoint(checkpoint) as second:
            second.check()
            with pytest.raises(CheckpointInUse, match="another driver has begun"):
                first.check()
        with hold_checkpoint(checkpoint) as third:
            third.check()
            for other in (first, second):
                with pytest.raises(CheckpointInUse, match="another driver has begun"):
                    other.check()
    assert len((checkpoint / "drivers").names()) == 1
