"""
A driver that `kills` kills: it archives a topic, audits it as a stream, copies it and loads its rows.

`python -m tests.spark.faults.killed SETTINGS` with {"bootstrap", "topic", "target", "loaded", "folder", "master", "closing"}. With
`closing` it also audits the archive and the copy, and writes down the results of the audits. The places at which it may
stop are in `deadly`.
"""

import json
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from orderlymq_spark.datasource import OrderlyMQDataSource, types_of
from orderlymq_spark.frames import ordered, read_stream
from orderlymq_spark.jobs import archive, replay
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.options import SinkOptions, parse_sink
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.run.session import start_session
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.sink.writer import OrderedBatchWriter, OrderedStreamWriter
from orderlymq_spark.specs import ArchiveSpec, OrderAuditSpec, ReplaySpec, Source
from tests.spark.faults import deadly
from tests.spark.faults.aftermath import ALIKE, TIE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: The pipelines that run, in this order, and the folder of each checkpoint.
PIPELINES: Final = ("archive", "audit", "copy", "load")
OUTCOME: Final = "outcome.json"
NOW: Final = "now"  # the name of the present pipeline
_BATCH: Final = 20
_SENDING_MAX_S: Final = 0.02  # within this time a task of this size has sent its rows
_SESSION: Final = {
    # A task may be killed again when it is repeated, and executors may be killed any number of times.
    "spark.task.maxFailures": "8",
    "spark.deploy.maxExecutorRetries": "-1",
    # On a busy machine a Python may take minutes to start, and the query must end only because of a kill.
    "spark.python.authenticate.socketTimeout": "600s",
    # All executors of local-cluster share the same 1024 MiB.
    "spark.executor.memory": "1024m",
}


#: Places where a task of a sink dies, by the sink's appId: before its look-up, during sending, after the last send.
SINK_PLACES: Final = {
    "copied": ("copying", "sending", "copied"),
    "loaded": ("loading", "pouring", "loaded"),
}


def dying(options: SinkOptions, write: Callable[[], WriterCommitMessage]) -> WriterCommitMessage:
    """Let the ordered sink write with deadly places before, during and after its sends."""
    begin, midst, end = SINK_PLACES[options.app_id]
    deadly.reach(begin)
    moment = threading.Timer(Random().uniform(0, _SENDING_MAX_S), deadly.reach, [midst])
    moment.start()
    result = write()
    moment.cancel()
    deadly.reach(end)
    return result


class DyingFrame(OrderedBatchWriter):
    """Writes a frame, as a replay does for each of its batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return dying(self._options, partial(super().write, iterator))


class DyingStream(OrderedStreamWriter):
    """Writes a stream."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return dying(self._options, partial(super().write, iterator))


class DyingSink(OrderlyMQDataSource):
    """The format "orderlymq" with a sink that has deadly places."""

    def writer(self, schema: StructType, overwrite: bool) -> OrderedBatchWriter:
        return DyingFrame(parse_sink(self.options), types_of(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> OrderedStreamWriter:  # noqa: N802 - Spark's name
        return DyingStream(parse_sink(self.options), types_of(schema))


def main(settings: dict[str, Any]) -> None:
    folder = Path(settings["folder"])
    spark = start_session(
        "killed", master=settings["master"], memory="600m", settings=dict(_SESSION)
    )
    spark.dataSource.register(DyingSink)
    topic = Source(
        bootstrap=settings["bootstrap"],
        topic=settings["topic"],
        options={"maxOffsetsPerTrigger": _BATCH},
    )
    targets = settings["target"], settings["loaded"]
    outcomes = {"audit of the stream": run_all(spark, topic, targets, folder)}
    if settings["closing"]:
        copy = Source(bootstrap=settings["bootstrap"], topic=settings["target"])
        for name, said in (
            ("audit of the topic", {"source": topic}),
            ("audit of the archive", {"archive": folder / "files"}),
            ("audit of the copy", {"source": copy}),
        ):
            spec = OrderAuditSpec(type="order-audit", sequence_property="n", **said)
            outcomes[name] = audit.run(name, spec, lambda: spark)
        (folder / OUTCOME).write_text(
            json.dumps({name: [each.passed, each.data] for name, each in outcomes.items()})
        )
    spark.stop()


def run_all(
    spark: "SparkSession", topic: Source, targets: tuple[str, str], folder: Path
) -> Outcome:
    """Run the four pipelines over all available messages; return the audit's results."""
    target, loaded = targets
    (folder / NOW).write_text("archive")
    kept = ArchiveSpec(
        type="archive", source=topic, checkpoint=folder / "archive", path=folder / "files"
    )
    archive.run("kept", kept, lambda: spark)
    (folder / NOW).write_text("audit")
    audited = OrderAuditSpec(
        type="order-audit",
        source=topic,
        sequence_property="n",
        stream=True,
        checkpoint=folder / "audit",
    )
    outcome = audit.run("audited", audited, lambda: spark)
    (folder / NOW).write_text("copy")
    copied = ReplaySpec(type="replay", source=topic, checkpoint=folder / "copy", target=target)
    replay.run("copied", copied, lambda: spark)
    (folder / NOW).write_text("load")
    load(
        spark, copied.model_copy(update={"target": loaded, "checkpoint": location(folder / "load")})
    )
    return outcome


def load(spark: "SparkSession", spec: ReplaySpec) -> None:
    """Send rows without their places, with ties and equal rows, each time in another order and by other tasks."""
    sink = {**spec.target_connect.to_options(), "topic": spec.target, "appId": "loaded"}

    def make() -> DataStreamWriter:
        number = F.col("properties")["n"].cast("int")
        rows = read_stream(spark, spec.checkpoint, **spec.source.all_options()).select(
            "sharding_key",
            F.floor(number / TIE).alias("tie"),
            F.concat_ws("-", F.floor(number / TIE), number % ALIKE).alias("body"),
        )
        shuffled = ordered(rows.mapInArrow(shuffle, rows.schema), tasks=Random().randint(2, 4))
        return shuffled.writeStream.format("orderlymq").options(**sink, orderBy="tie")

    run_stream("loaded", spec, make)


def shuffle(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Return the rows in another order at each call."""
    for batch in batches:
        yield batch.take(pa.array(Random().sample(range(batch.num_rows), batch.num_rows)))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
