"""
A driver that is to be killed: archives a topic and copies it, pausing where it is told to.

`python -m tests.spark.killed SETTINGS` with {"bootstrap", "topic", "target", "folder", "stage", "skip"}: the
process ends itself with SIGKILL at the stage, after letting it pass *skip* times; without a stage it runs to
the end. Stages: wrote (one task of a batch is done), publishing, published (before Spark notes it), copying (one
task of a copy has sent).
"""

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from orderlymq_spark import archive, archivesink, replay
from orderlymq_spark.session import start_session
from orderlymq_spark.sink import OrderedStreamWriter
from orderlymq_spark.source import OrderlyMQDataSource
from orderlymq_spark.specs import ArchiveSpec, ReplaySpec, Source

SESSION = {"spark.task.maxFailures": "1"}


class Deadly:
    """Kills the whole process group at the n-th passage, also across processes: a file counts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._counter = Path(settings["folder"]) / "passages"
        self._stage = settings["stage"]
        self._skip = settings["skip"]
        self._driver = settings["driver"]

    def at(self, stage: str) -> None:
        if stage != self._stage:
            return
        with self._counter.open("a") as file:
            file.write("x")
        if self._counter.stat().st_size > self._skip:
            # Spark's workers have a group of their own; theirs goes last, this process is in it.
            for group in {self._driver: None, os.getpgrp(): None}:
                os.killpg(group, signal.SIGKILL)


class DyingWriter(archivesink.ArchiveWriter):
    """The archive's writer, with deadly places."""

    deadly: Deadly

    def write(self, iterator: Any) -> Any:
        result = super().write(iterator)
        self.deadly.at("wrote")
        return result

    def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803 - Spark's name
        self.deadly.at("publishing")
        super().commit(messages, batchId)
        self.deadly.at("published")


class DyingSource(archivesink.ArchiveDataSource):
    """Makes dying writers; goes to Spark's processes by value."""

    settings: dict[str, Any]

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        made = super().streamWriter(schema, overwrite)
        made.__class__ = DyingWriter
        made.deadly = Deadly(self.settings)  # type: ignore[attr-defined]  # the class was changed above
        return made


class DyingCopier(OrderedStreamWriter):
    """The ordered sink, with a deadly place."""

    deadly: Deadly

    def write(self, iterator: Any) -> Any:
        result = super().write(iterator)
        self.deadly.at("copying")
        return result


class DyingSink(OrderlyMQDataSource):
    """The format "orderlymq" with a dying sink."""

    settings: dict[str, Any]

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802 - Spark's name
        made = super().streamWriter(schema, overwrite)
        made.__class__ = DyingCopier
        made.deadly = Deadly(self.settings)  # type: ignore[attr-defined]  # the class was changed above
        return made


def main(settings: dict[str, Any]) -> None:
    folder = Path(settings["folder"])
    spark = start_session("killed", master="local[2]", memory="600m", settings=SESSION)
    DyingSource.settings = DyingSink.settings = {**settings, "driver": os.getpgrp()}
    spark.dataSource.register(DyingSource)
    spark.dataSource.register(DyingSink)
    source = Source(
        bootstrap=settings["bootstrap"],
        topic=settings["topic"],
        options={"maxOffsetsPerTrigger": 40},
    )
    archive.run(
        "kept",
        ArchiveSpec(
            type="archive", source=source, checkpoint=folder / "a", path=folder / "archive"
        ),
        lambda: spark,
    )
    replay.run(
        "copied",
        ReplaySpec(
            type="replay", source=source, checkpoint=folder / "b", target=settings["target"]
        ),
        lambda: spark,
    )
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
