"""
Rows per second from a topic to Spark: to a frame, to Parquet, through the audit; and compaction's bytes per second.

``python -m bench.spark [--rows 2000000] [--size 1024] [--quick]`` starts one broker and ``local[2]`` on this
machine; both share its cores, so the CPU seconds of the broker stand beside each rate. Bodies are text that
compresses to a half; the archive is written in four batches.
"""

import argparse
import contextlib
import io
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from tests.cluster.processes import Group
from tests.spark.topics import Topics

from orderlymq.blocking import AdminClient
from orderlymq_spark import archive, audit, compact
from orderlymq_spark.archivefiles import published
from orderlymq_spark.frames import read_batch
from orderlymq_spark.session import start_session
from orderlymq_spark.specs import ArchiveSpec, CompactSpec, OrderAuditSpec, Source


class Meter:
    """Measures wall time and the CPU time of the broker."""

    def __init__(self, group: Group) -> None:
        self._brokers = [psutil.Process(child.pid) for child in group.brokers.values()]

    def cpu_s(self) -> float:
        """Return the CPU time that the brokers have used."""
        return sum(sum(each.cpu_times()[:2]) for each in self._brokers)

    def row(self, name: str, amount: float, unit: str, work: Callable[[], Any]) -> None:
        """Do *work* and print its row."""
        with contextlib.redirect_stdout(io.StringIO()):
            began, cpu = time.perf_counter(), self.cpu_s()
            work()
            seconds = time.perf_counter() - began
        broker = (self.cpu_s() - cpu) / seconds
        print(
            f"| {name} | {amount / seconds:,.0f} {unit}/s | {seconds:.1f} s | {broker:.0%} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--quick", action="store_true")
    given = parser.parse_args()
    rows = 40_000 if given.quick else given.rows
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        group = Group(folder / "cluster", 1)
        group.start()
        try:
            with AdminClient(group.name_server_address) as admin:
                topics = Topics(group.name_server_address, admin)
                topic = topics.make(queues=2)
                topics.bulk(topic, rows, size=given.size, keys=given.keys // 2, text=True)
                measure(Meter(group), topics, topic, rows, folder)
        finally:
            group.stop()


def measure(meter: Meter, topics: Topics, topic: str, rows: int, folder: Path) -> None:
    """Print the table."""
    spark = start_session("bench", master="local[2]", memory="2g")
    source = Source(
        bootstrap=topics.bootstrap,
        topic=topic,
        options={"maxOffsetsPerTrigger": max(20_000, rows // 4)},
    )
    read_batch(spark, bootstrap=topics.bootstrap, topic=topic, columns="queue_id").count()  # warm
    print("| what | rate | time | broker's CPU |\n|---|---|---|---|")
    whole = read_batch(spark, bootstrap=topics.bootstrap, topic=topic)
    meter.row(
        "topic to frame, all columns",
        rows,
        "rows",
        lambda: whole.write.format("noop").mode("overwrite").save(),
    )
    meter.row("topic to frame, count", rows, "rows", whole.count)
    spec = ArchiveSpec(
        type="archive", source=source, checkpoint=folder / "checkpoint", path=folder / "archive"
    )
    meter.row(
        "topic to Parquet (archive)", rows, "rows", lambda: archive.run("a", spec, lambda: spark)
    )
    checked = OrderAuditSpec(type="order-audit", source=source, sequence_property="n")
    meter.row(
        "order audit of the topic", rows, "rows", lambda: audit.run("b", checked, lambda: spark)
    )
    kept = OrderAuditSpec(type="order-audit", archive=spec.path, sequence_property="n")
    meter.row(
        "order audit of the archive", rows, "rows", lambda: audit.run("c", kept, lambda: spark)
    )
    bodies = sum(each.size for each in published(spec.path)) * 1024
    meter.row(
        "compaction, bytes of bodies",
        bodies,
        "B",
        lambda: compact.run("d", CompactSpec(type="compact", path=spec.path), lambda: spark),
    )
    spark.stop()


if __name__ == "__main__":
    main()
