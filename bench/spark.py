"""
Rows per second from a topic to Spark: to a frame, to Parquet, through the audit; and compaction's bytes per second.

``python -m bench.spark [--rows 2000000] [--size 1024] [--rounds 3] [--write docs/explanation/benchmarks.md]`` starts one broker and
``local[2]`` on this machine; both share its cores, so the CPU time of each side stands beside each rate. Bodies are
text that compresses to a half; the archive is written in four batches. The first round of a JVM that has just begun is
among the rounds.
"""

import argparse
import contextlib
import io
import os
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import psutil
from bench.report.figures import Summary
from pyspark.sql import Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
from tests.cluster.processes import Group
from tests.spark.topics import Topics

from bench.report import sections
from orderlymq.blocking import AdminClient
from orderlymq_spark.frames import read_batch
from orderlymq_spark.jobs import archive, compact
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.run.outcome import Outcome, SparkStarter
from orderlymq_spark.run.session import start_session
from orderlymq_spark.specs import ArchiveSpec, CompactSpec, OrderAuditSpec, Source
from orderlymq_spark.tables.parquet import path_of, published

_BATCHES: Final = 4  # micro-batches of the archive
_MEGA: Final = 1e6
_TEXT: Final = (
    "`make bench-spark`: {rows:,} messages of {size:,} bytes (text that compresses to half its size) and {keys:,} keys in two queues"
    " of one broker, read by Spark in `local[2]` on the same machine. Both share its CPUs; the table has the CPU seconds per second"
    " of each. A cell is *min / **median** / max* over {rounds} rounds, including the one in which the JVM starts."
)


class Meter:
    """A meter of wall time, and of the CPU time of the broker and all Spark processes.

    Create it when the broker runs and Spark does not.
    """

    def __init__(self, brokers: Iterable[int]) -> None:
        self._brokers = [psutil.Process(number) for number in brokers]
        self._me = psutil.Process()
        self._not_spark = set(self._me.children(recursive=True))
        self._amounts: dict[str, tuple[float, str]] = {}  # the amounts and their units
        self._rounds: dict[str, list[tuple[float, float, float]]] = defaultdict(list)

    def measure(
        self, name: str, amount: float, unit: str, work: Callable[[], int], messages: int
    ) -> None:
        """Run *work*, which handles *amount* and returns its number of messages.

        Raises:
            RuntimeError: It handled a number other than *messages*, so its rate would be meaningless.
        """
        self._amounts[name] = amount, unit
        with contextlib.redirect_stdout(io.StringIO()):
            began, broker, spark = time.perf_counter(), self._broker_s(), self._spark_s()
            handled = work()
            seconds = time.perf_counter() - began
        if handled != messages:
            raise RuntimeError(
                f"{name}: {handled} of {messages} messages; look for the others before any rate counts"
            )
        spent = self._broker_s() - broker, self._spark_s() - spark
        self._rounds[name].append((seconds, *spent))
        print(
            f"{name}: {amount / seconds:,.0f} {unit}/s in {seconds:.1f} s;"
            f" broker {spent[0]:.1f} s, Spark {spent[1]:.1f} s",
            flush=True,
        )

    def table(self) -> Iterator[str]:
        """Yield the rows: rates as *min / **median** / max*, and CPU seconds per second of each side."""
        yield "| what | rate | broker's CPU | Spark's CPU |"
        yield "|---|---|---|---|"
        for name, rounds in self._rounds.items():
            amount, unit = self._amounts[name]
            rate = Summary.of([amount / seconds for seconds, _, _ in rounds])
            broker, spark = (
                Summary.of([each[side] / each[0] for each in rounds]).median for side in (1, 2)
            )
            yield (
                f"| {name} | {rate.low:,.0f} / **{rate.median:,.0f}** / {rate.high:,.0f} {unit}/s"
                f" | {broker:.0%} | {spark:.0%} |"
            )

    def _broker_s(self) -> float:
        return sum(sum(each.cpu_times()[:2]) for each in self._brokers)

    def _spark_s(self) -> float:
        """Return the CPU time of this process, its JVM and all workers, including ended ones."""
        found = 0.0
        for each in [self._me, *self._me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                if each not in self._not_spark:
                    found += sum(each.cpu_times()[:4])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="one round of 40,000 rows")
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    rows, rounds = (40_000, 1) if given.quick else (given.rows, given.rounds)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        group = Group(folder / "cluster", 1)
        group.start()
        try:
            with AdminClient(group.name_server_address) as admin:
                topics = Topics(group.name_server_address, admin)
                topic = topics.make(queues=2)
                topics.bulk(topic, rows, size=given.size, keys=given.keys // 2, text=True)
                meter = Meter(child.pid for child in group.brokers.values())
                spark = start_session("bench", master="local[2]", memory="2g")
                for number in range(rounds):
                    one_round(meter, spark, topics.bootstrap, topic, rows, folder / str(number))
                    shutil.rmtree(folder / str(number))
                spark.stop()
        finally:
            group.stop()
    table = "\n".join(meter.table())
    print(table)
    if given.write is not None:
        about = _TEXT.format(rows=rows, size=given.size, keys=given.keys, rounds=rounds)
        conditions = f"{os.cpu_count()} CPUs; {time.strftime('%Y-%m-%d', time.gmtime())}."
        sections.put(given.write, "spark", f"## Spark\n\n{about} {conditions}\n\n{table}")


def one_round(
    meter: Meter, spark: SparkSession, bootstrap: str, topic: str, rows: int, folder: Path
) -> None:
    """Run all works once, with a separate archive."""
    most: dict[str, str | int | bool] = {"maxOffsetsPerTrigger": max(20_000, rows // _BATCHES)}
    source = Source(bootstrap=bootstrap, topic=topic, options=most)

    def session() -> SparkSession:
        return spark

    whole = read_batch(spark, bootstrap=bootstrap, topic=topic)
    meter.measure("topic to DataFrame, count", rows, "rows", whole.count, rows)
    seen = Observation()
    thrown = whole.observe(seen, F.count(F.lit(1)).alias("rows")).write.format("noop")

    def throw_away() -> int:
        thrown.mode("overwrite").save()
        return int(seen.get["rows"])

    meter.measure("topic to DataFrame, all columns thrown away", rows, "rows", throw_away, rows)
    spec = ArchiveSpec(
        type="archive", source=source, checkpoint=folder / "checkpoint", path=folder / "archive"
    )
    meter.measure(
        "topic to Parquet (`archive`)",
        rows,
        "rows",
        lambda: messages_of(archive.run("a", spec, session)),
        rows,
    )
    for name, said in (("the topic", {"source": source}), ("the archive", {"archive": spec.path})):
        checked = OrderAuditSpec(type="order-audit", sequence_property="n", **said)
        meter.measure(
            f"`order-audit` of {name}",
            rows,
            "rows",
            partial(_audited, checked, session),
            rows,
        )
    stored = sum(path_of(spec.folder, each).size() for each in published(spec.folder))
    merged = CompactSpec(type="compact", path=spec.path)

    def compacted() -> int:
        compact.run("d", merged, session)
        return sum(each.size for each in published(spec.folder))

    meter.measure("`compact`, bytes of files read", stored / _MEGA, "MB", compacted, rows)


def _audited(spec: OrderAuditSpec, session: SparkStarter) -> int:
    return messages_of(audit.run("b", spec, session))


def messages_of(outcome: Outcome) -> int:
    """Return how many messages a pipeline has handled.

    Raises:
        RuntimeError: The pipeline did not pass.
    """
    if not outcome.passed:
        raise RuntimeError(outcome.text)
    return int(outcome.data["messages"])


if __name__ == "__main__":
    main()
