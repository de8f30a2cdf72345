"""
The work of a Spark Connect client with our formats and pipelines, in a process of its own: a session of either kind excludes the other.

`python -m tests.spark.connect.connected SETTINGS` with {"master", "bootstrap", "topic", "target", "events", "folder"}; prints what came of it as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from orderlymq_spark.frames import is_remote_session, ordered, read_batch
from orderlymq_spark.jobs import archive
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.jobs.cdc import job as cdc
from orderlymq_spark.run.session import start_session
from orderlymq_spark.specs import ArchiveSpec, CdcSpec, OrderAuditSpec, Source


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
        "archived": archived.data["messages"],
        "audits": audits,
        "applied": applied,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
