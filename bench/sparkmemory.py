"""
The memory that Spark's processes take for a topic that is much larger than they are.

``python -m bench.sparkmemory [--gib 10] [--size 32768] [--worker 1g] [--write docs/explanation/benchmarks.md]`` fills a broker of one replica on this
machine, reads all of it as a stream in batches of limited size, and prints what each kind of process had resident at
most. Three ways: all columns through Spark (counted), the archive, whose tasks read for themselves, and a topic of small
messages through Spark. Bodies do not compress. Python workers are limited by Spark's own ``spark.executor.pyspark.memory``
(RLIMIT_AS of each, which counts more than what is resident), the JVM by its heap.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import psutil
from tests.cluster.processes import Group
from tests.spark.topics import Topics

from bench.report import sections
from orderlymq.blocking import AdminClient, LoopThread
from orderlymq.message import Message
from orderlymq.producer.producer import Producer
from orderlymq_spark.frames import read_stream
from orderlymq_spark.jobs import archive
from orderlymq_spark.run.session import start_session
from orderlymq_spark.specs import ArchiveSpec, Source
from orderlymq_spark.tables.parquet import published_sizes

MIB: Final = 1 << 20
#: Bytes to leave free on the disk. A broker stores a body once, plus a third for the data around it.
SPARE_BYTES: Final = 15 << 30
STORED_PER_BODY: Final = 1.4
ARCHIVED_PER_BODY: Final = 1.0
BATCH_BYTES: Final = 256 * MIB  # bytes of one micro-batch, in all queues
_SEND_BYTES: Final = 1 << 20
_AT_ONCE: Final = 64  # the number of different bodies from which batches are made
_SAMPLE_S: Final = 0.1
_SMALL_BYTES: Final = 1024
_SMALL_PART: Final = 10  # the topic of small messages has a tenth of the bytes
_TEXT: Final = (
    "`make bench-spark-memory`: a topic of {gib:.4g} GiB in messages of {size:,} bytes, and a topic of a tenth of that size in messages"
    " of 1 KiB. Spark in `local[2]` reads both to the end, in batches of at most 256 MiB. A Python worker may have at most"
    " {worker} (`spark.executor.pyspark.memory`, a limit on its address space), and the JVM has 1 GiB of heap. The memory"
    " is the maximum of the resident memory."
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=32 << 10)
    parser.add_argument("--worker", default="1g")
    parser.add_argument("--quick", action="store_true", help="0.25 GiB")
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    wanted = int((0.25 if given.quick else given.gib) * (1 << 30))
    with tempfile.TemporaryDirectory(prefix="memory-") as directory:
        folder = Path(directory)
        room = shutil.disk_usage(folder).free - SPARE_BYTES
        per_body = STORED_PER_BODY * (1 + 1 / _SMALL_PART) + ARCHIVED_PER_BODY
        total = min(wanted, int(room / per_body))
        if total < wanted:
            print(f"The disk has room for {total / (1 << 30):.1f} GiB.")
        with (
            Group(folder / "cluster", 1) as group,
            AdminClient(group.name_server_address) as admin,
        ):
            topics = Topics(group.name_server_address, admin)
            large, small = topics.make(queues=4), topics.make(queues=4)
            began = time.perf_counter()
            fill(topics, large, total, given.size)
            fill(topics, small, total // _SMALL_PART, _SMALL_BYTES)
            seconds = time.perf_counter() - began
            print(
                f"filled with {total * (1 + 1 / _SMALL_PART) / (1 << 30):.2f} GiB in {seconds:.0f} s"
            )
            lines = list(measure(topics, large, small, folder, given.worker))
    if given.write is not None:
        about = _TEXT.format(
            gib=total / (1 << 30), size=given.size, worker=given.worker.replace("g", " GiB")
        )
        table = "\n".join(lines)
        sections.put(given.write, "spark-memory", f"## Spark's memory\n\n{about}\n\n{table}")


def fill(topics: Topics, topic: str, total: int, size: int) -> None:
    """Send *total* bytes of bodies, equal amounts to each queue; nothing is kept in memory."""
    thread = LoopThread()
    chance = Random(0)
    bodies = [chance.randbytes(size) for _ in range(_AT_ONCE)]
    per_send = max(1, min(_AT_ONCE, _SEND_BYTES // size))

    async def send() -> None:
        async with Producer("bench", topics.bootstrap) as producer:
            queues = await producer.queues(topic)
            for number in range(total // size // per_send):
                messages = [
                    Message(topic=topic, body=bodies[(number + each) % _AT_ONCE], key=f"k{each}")
                    for each in range(per_send)
                ]
                await producer.send_batch(messages, queue=queues[number % len(queues)])

    thread.run(send())
    thread.close()


@dataclass
class Watch:
    """A sampler of the resident memory of Spark's processes; a context manager."""

    peaks: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    limited: int = 0  # samples of workers that had a memory limit
    _stop: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Watch":
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_SAMPLE_S):
            for kind, resident, limit in _processes():
                self.peaks[kind] = max(self.peaks[kind], resident / MIB)
                self.limited += kind == "worker" and limit != psutil.RLIM_INFINITY

    def cells(self) -> str:
        """Return the memory cells of a table row."""
        return " | ".join(f"{self.peaks[kind]:,.0f}" for kind in ("JVM", "worker", "driver"))


def _processes() -> Iterator[tuple[str, int, int]]:
    """Yield the kind, resident bytes and address space limit of each process."""
    me = psutil.Process()
    yield "driver", me.memory_info().rss, psutil.RLIM_INFINITY
    for child in me.children(recursive=True):
        try:
            command, resident = " ".join(child.cmdline()), child.memory_info().rss
            limit = child.rlimit(psutil.RLIMIT_AS)[0]
        except psutil.Error:
            continue
        if child.name() == "java":
            yield "JVM", resident, limit
        # While a JVM starts a Python process, it appears twice for a moment, under the name of a thread.
        elif " -m pyspark." in command:
            yield "worker", resident, limit


def measure(topics: Topics, large: str, small: str, folder: Path, worker: str) -> Iterator[str]:
    """Print the table and yield its lines.

    Raises:
        RuntimeError: No worker had a memory limit.
    """
    spark = start_session(
        "memory",
        master="local[2]",
        memory="1g",
        settings={"spark.executor.pyspark.memory": worker},
    )
    for line in (
        "| what | rows | GiB | batches | seconds | JVM, MiB | largest worker, MiB | driver's Python, MiB |",
        "|---|---|---|---|---|---|---|---|",
    ):
        print(line, flush=True)
        yield line

    def counted(topic: str) -> Callable[[], tuple[int, int, int]]:
        found = [0, 0, 0]

        def add(frame: Any, _batch: int) -> None:
            rows, size = frame.selectExpr("count(*)", "coalesce(sum(length(body)), 0)").first()
            found[0], found[1], found[2] = found[0] + rows, found[1] + size, found[2] + 1

        def work() -> tuple[int, int, int]:
            checkpoint = folder / f"counted-{topic}"
            options = {"bootstrap": topics.bootstrap, "topic": topic}
            frame = read_stream(spark, checkpoint, **options, maxBytesPerTrigger=str(BATCH_BYTES))
            query = frame.writeStream.foreachBatch(add).trigger(availableNow=True)
            query.option("checkpointLocation", str(checkpoint / "spark")).start().awaitTermination()
            return found[0], found[1], found[2]

        return work

    def archived() -> tuple[int, int, int]:
        limits: dict[str, str | int | bool] = {"maxBytesPerTrigger": BATCH_BYTES}
        source = Source(bootstrap=topics.bootstrap, topic=large, options=limits)
        spec = ArchiveSpec(
            type="archive", source=source, checkpoint=folder / "kept", path=folder / "archive"
        )
        data = archive.run("kept", spec, lambda: spark).data
        size = sum(published_sizes(spec.folder).values())
        shutil.rmtree(str(spec.path))
        return data["rows"], size, data["batches"]

    for name, work in (
        ("large messages, all columns through Spark", counted(large)),
        ("small messages, all columns through Spark", counted(small)),
        ("large messages, archive (read by the tasks)", archived),
    ):
        began = time.perf_counter()
        with Watch() as watch:
            rows, size, batches = work()
        seconds = time.perf_counter() - began
        line = f"| {name} | {rows:,} | {size / (1 << 30):.2f} | {batches} | {seconds:.0f} | {watch.cells()} |"
        print(line, flush=True)
        yield line
        if not watch.limited:
            raise RuntimeError("no worker had a limit in force: this shows nothing")
    spark.stop()


if __name__ == "__main__":
    main()
