"""
A Spark Connect client that uses our formats and pipelines, in its own process: a process cannot have both kinds of session.

`python -m tests.spark.connect.connected SETTINGS` with {"master", "bootstrap", "topic", "target", "events", "folder"}; prints the results as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from orderlymq_spark.frames import (
    is_remote_session,
    ordered,
    read_batch,
)
from orderlymq_spark.jobs import archive, lag
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.jobs.cdc import job as cdc
from orderlymq_spark.jobs.skew import job as skew
from orderlymq_spark.run.session import start_session
from orderlymq_spark.specs import (
    ArchiveSpec,
    CdcSpec,
    LagSpec,
    OrderAuditSpec,
    SkewSpec,
    Source,
)


def main(settings: dict[str, Any]) -> dict[str, Any]:
    spark = start_session("connected", master=settings["master"])
    folder = Path(settings["folder"])
    bootstrap, topic = settings["bootstrap"], settings["topic"]
    source = Source(bootstrap=bootstrap, topic=topic, options={"maxOffsetsPerTrigger": 25})

    frame = read_batch(spark, bootstrap=bootstrap, topic=topic)
    rows = frame.count()
    sink = {"bootstrap": bootstrap, "topic": settings["target"], "appId": "connected"}
    ordered(frame).write.format("orderlymq").options(**sink, orderBy="queue_offset").mode(
        "append"
    ).save()
    kept = ArchiveSpec(
        type="archive", source=source, checkpoint=folder / "checkpoint", path=folder / "archive"
    )
    archived = archive.run("kept", kept, lambda: spark)
    ways: dict[str, dict[str, Any]] = {
        "topic": {"source": source},
        "archive": {"archive": folder / "archive"},
        "stream": {"source": source, "stream": True, "checkpoint": folder / "audit"},
    }
    audits = {}
    for name, way in ways.items():
        spec = OrderAuditSpec(type="order-audit", sequence_property="n", **way)
        audits[name] = audit.run(name, spec, lambda: spark).data["messages"]
    events = CdcSpec(
        type="cdc-apply",
        source=Source(bootstrap=bootstrap, topic=settings["events"]),
        checkpoint=folder / "changes",
        path=folder / "table",
        format="maxwell",
        keys=["id"],
        errors=folder / "errors",
    )
    applied = cdc.run("applied", events, lambda: spark).data
    return {
        "remote": is_remote_session(spark),
        "rows": rows,
        "filtered": filtered(spark, bootstrap, topic),
        "archived": archived.data["messages"],
        "audits": audits,
        "applied": applied,
        "reports": reports(spark, source),
    }


def filtered(spark: SparkSession, bootstrap: str, topic: str) -> int:
    """Return the number of rows that a filter passes which is pushed down to the source."""
    frame = read_batch(spark, bootstrap=bootstrap, topic=topic, pushFilters=True)
    return frame.where("queue_offset < 3 and sharding_key is not null").count()


def reports(spark: SparkSession, source: Source) -> dict[str, int]:
    """Return the numbers of messages that the reports have counted."""
    loads = SkewSpec(type="skew-report", source=source, capacity_per_queue=100)
    behind = LagSpec(
        type="lag", bootstrap=source.bootstrap, topic=source.topic, groups=["connected"]
    )
    return {
        "skew": skew.run("loads", loads, lambda: spark).data["messages"],
        "lag": sum(each["lag"] for each in lag.run("b", behind, lambda: spark).data["queues"]),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
