"""
Pipeline archive: topics into files that hold every offset once, in order.

The work is the source's and the archive sink's; here they are put together, and the archive is checked by its
names at the end. Spark carries ranges of queues; the tasks that write read the messages (`source.queuereader`).
"""

import json

from orderlymq_spark.frames import read_stream
from orderlymq_spark.offsets import describe_missing
from orderlymq_spark.options import parse_source
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.stream import run_stream
from orderlymq_spark.specs import ArchiveSpec
from orderlymq_spark.tables.archive import check_place
from orderlymq_spark.tables.manifests import settled
from orderlymq_spark.tables.parquet import holes, published


def run(name: str, spec: ArchiveSpec, spark: SparkStarter) -> Outcome:
    """Archive until the trigger's end."""
    session = spark()
    options = spec.source.all_options()
    check_place(parse_source(options).columns)

    status = run_stream(
        name,
        spec,
        lambda: (
            read_stream(session, spec.checkpoint, **options, rangesOnly=True)
            .writeStream.format("orderlymq_archive")
            .option("path", str(spec.path))
            .option("appId", name)
            .option("format", spec.format)
            .option("codec", spec.codec)
            .option("source", json.dumps(options))
            .outputMode("append")
        ),
        counts_offsets=True,
    )
    data = {"rows": status.rows, "batches": status.batches, "path": str(spec.path)}
    text = f"{status.rows} messages in {status.batches} batches archived to {spec.path}"
    if spec.format == "parquet":
        found = settled(spec.path, lambda: published(spec.path))
        missing = holes(found)
        data |= {"files": len(found), "messages": sum(each.size for each in found)}
        text += f"; {len(found)} files hold {data['messages']} offsets"
        if missing:
            # A tag filter leaves holes on purpose; without one they were reported as lost.
            data["holes"] = [str(each) for each in missing]
            text += f"; not in it: {describe_missing(missing)}"
    return Outcome(text, data)
