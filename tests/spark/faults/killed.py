"""
A driver that is to be killed: archives a topic, audits it as a stream and copies it; `kills` kills it.

`python -m tests.spark.faults.killed SETTINGS` with {"bootstrap", "topic", "target", "folder", "master", "closing"}. With
`closing` it audits the archive and the copy as well and writes down what the audits said. Where it may stand still
stands in `deadly`.
"""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from orderlymq_spark.datasource import OrderlyMQDataSource
from orderlymq_spark.jobs import archive, replay
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.options import parse_sink
from orderlymq_spark.run.outcome import Outcome
from orderlymq_spark.run.session import start_session
from orderlymq_spark.sink.writer import OrderedStreamWriter
from orderlymq_spark.specs import ArchiveSpec, OrderAuditSpec, ReplaySpec, Source
from tests.spark.faults import deadly

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: What runs, in this order, and the folder of each checkpoint.
PIPELINES: Final = ("archive", "audit", "copy")
OUTCOME: Final = "outcome.json"
NOW: Final = "now"  # names the pipeline that runs
_BATCH: Final = 20
_SENDING_MAX_S: Final = 0.02  # a task of this size is through by then
_SESSION: Final = {
    # A task may be killed again while it is tried again, and an executor as often as anybody likes.
    "spark.task.maxFailures": "8",
    "spark.deploy.maxExecutorRetries": "-1",
    # A Python that starts beside other work may take minutes, and the query would end for that and not for a kill.
    "spark.python.authenticate.socketTimeout": "600s",
    # All executors of local-cluster are made of the same 1024 MiB.
    "spark.executor.memory": "1024m",
}


class DyingCopier(OrderedStreamWriter):
    """The ordered sink, with deadly places around its work and at some moment of it."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        deadly.reach("copying")
        moment = threading.Timer(Random().uniform(0, _SENDING_MAX_S), deadly.reach, ["sending"])
        moment.start()
        result = super().write(iterator)
        moment.cancel()
        deadly.reach("copied")
        return result


class DyingSink(OrderlyMQDataSource):
    """The format "orderlymq" with a dying sink."""

    def streamWriter(self, schema: StructType, overwrite: bool) -> OrderedStreamWriter:  # noqa: N802 - Spark's name
        return DyingCopier(parse_sink(self.options), schema.names)


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
    outcomes = {"audit of the stream": run_all(spark, topic, settings["target"], folder)}
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


def run_all(spark: "SparkSession", topic: Source, target: str, folder: Path) -> Outcome:
    """Run the three pipelines through what there is; return what the audit says."""
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
    return outcome


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
