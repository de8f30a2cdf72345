"""
A program for spark-submit: it copies a topic into another one and into an archive.

`python submitted.py SETTINGS` with {"bootstrap", "topic", "target", "folder"}; prints the results as JSON.
"""

import json
import sys
from pathlib import Path
from typing import Any

from orderlymq_spark.frames import ordered, read_batch
from orderlymq_spark.jobs import archive
from orderlymq_spark.run.session import start_session
from orderlymq_spark.specs import ArchiveSpec, Source


def main(settings: dict[str, Any]) -> dict[str, Any]:
    spark = start_session("submitted", master="")
    folder = Path(settings["folder"])
    bootstrap, topic = settings["bootstrap"], settings["topic"]
    frame = read_batch(spark, bootstrap=bootstrap, topic=topic)
    sink = {"bootstrap": bootstrap, "topic": settings["target"], "appId": "submitted"}
    ordered(frame).write.format("orderlymq").options(**sink, orderBy="queue_offset").mode(
        "append"
    ).save()
    kept = ArchiveSpec(
        type="archive",
        source=Source(bootstrap=bootstrap, topic=topic),
        checkpoint=folder / "checkpoint",
        path=folder / "archive",
    )
    archived = archive.run("kept", kept, lambda: spark)
    return {"master": spark.sparkContext.master, "archived": archived.data["messages"]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(json.loads(sys.argv[1]))) + "\n")
