"""
The order audit over a large archive with planted defects: whether all are found, at which rate, in which memory.

``python -m bench.sparkaudit [--keys 1000000] [--rounds 100] [--write docs/explanation/benchmarks.md]`` writes the files of an archive without a
broker, publishes them as the archive does, and audits them in ``local[2]``. Each of the keys has a message in each round, so
there are keys times rounds messages in 100 files. Of a thousand keys one skips a number, one repeats one, and one has two
in the wrong order. The findings must be those, no more and no less.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from bench.sparkmemory import Watch

from bench.report import sections
from orderlymq.oracle.verdict import Defect
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_spark.columns import COLUMNS
from orderlymq_spark.jobs.audit import job as audit
from orderlymq_spark.jobs.audit.order import Break
from orderlymq_spark.jobs.audit.states import name_of
from orderlymq_spark.locations.addresses import location
from orderlymq_spark.locations.location import Location
from orderlymq_spark.run.session import start_session
from orderlymq_spark.source.batches import ARROW_TYPES
from orderlymq_spark.specs import OrderAuditSpec
from orderlymq_spark.tables.parquet import PartFile, parts_folder, publish

_APP: Final = "bench"
_TOPIC: Final = "orders"
_QUEUES: Final = 4
_ROUNDS_PER_FILE: Final = 4
_KEYS_PER_DEFECT: Final = 1000
_SCHEMA: Final = pa.schema(
    [
        pa.field(name, ARROW_TYPES[COLUMNS[name]])
        for name in (
            "topic",
            "broker",
            "queue_id",
            "queue_offset",
            "sharding_key",
            "seq",
            "store_ts",
        )
    ]
)
_TEXT: Final = (
    "`make bench-spark-audit`: an archive of {rows:,} messages and {keys:,} keys in {files} files of four queues, audited by Spark in `local[2]`"
    " with 1 GiB of heap. {defects:,} defects were planted, and the audit found exactly these. The memory is the maximum of the resident memory."
)


@dataclass(frozen=True)
class QueueOfBench:
    """One queue: key *k* has its message of round *r* at offset *r* times *keys* plus *k*.

    Attributes:
        defects: how many keys have each of the three defects.
    """

    number: int
    keys: int
    rounds: int
    defects: int

    @property
    def queue(self) -> MessageQueue:
        """The name of the queue."""
        return MessageQueue(_TOPIC, "g", self.number)

    @cached_property
    def _planted(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The keys with each defect, and the rounds in which they have it.

        A round with a defect has at least one round before it and two after it.
        """
        chance = np.random.default_rng(self.number)
        shape = 3, self.defects
        keys = chance.choice(self.keys, 3 * self.defects, replace=False).reshape(shape)
        return keys, chance.integers(1, self.rounds - 2, shape)

    def sequences(self, turn: int) -> npt.NDArray[np.int64]:
        """Return the sequence number of each key in a round."""
        found = np.full(self.keys, turn, np.int64)
        (skips, repeats, swaps), (skipped, repeated, swapped) = self._planted
        found[skips[skipped <= turn]] += 1
        found[repeats[repeated <= turn]] -= 1
        found[swaps[swapped == turn]] += 1
        found[swaps[swapped == turn - 1]] -= 1
        return found

    def expected(self) -> Iterator[Break]:
        """Yield the breaks that the audit must find."""
        name = name_of(self.queue)

        def found(defect: Defect, key: int, turn: int, expected: int, got: int) -> Break:
            return Break(name, turn * self.keys + key, defect, self.key(key), expected, got)

        (skips, repeats, swaps), turns = (each.tolist() for each in self._planted)
        for key, turn in zip(skips, turns[0], strict=True):
            yield found(Defect.SKIPPED, key, turn, turn, turn + 1)
        for key, turn in zip(repeats, turns[1], strict=True):
            yield found(Defect.DUPLICATED, key, turn, turn, turn - 1)
        for key, turn in zip(swaps, turns[2], strict=True):
            yield found(Defect.SKIPPED, key, turn, turn, turn + 1)
            yield found(Defect.REORDERED, key, turn + 1, turn + 2, turn)

    def key(self, number: int) -> str:
        """Return the name of a key."""
        return f"customer-{self.number}-{number}"

    def rows(self, turn: int, names: pa.Array) -> pa.RecordBatch:
        """Return the rows of a round; *names* are the names of the keys."""
        offsets = np.arange(turn * self.keys, (turn + 1) * self.keys)
        columns: list[Any] = [
            pa.repeat(_TOPIC, self.keys),
            pa.repeat("g", self.keys),
            pa.repeat(pa.scalar(self.number, pa.int32()), self.keys),
            pa.array(offsets),
            names,
            pa.array(self.sequences(turn)),
            pa.array(offsets).cast(_SCHEMA.field("store_ts").type),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=_SCHEMA)


def write(root: Location, queues: list[QueueOfBench]) -> int:
    """Write the archive; return its number of files."""
    names = [pa.array([each.key(number) for number in range(each.keys)]) for each in queues]
    files = 0
    for batch, begin in enumerate(range(0, queues[0].rounds, _ROUNDS_PER_FILE)):
        parts = []
        for each, keys in zip(queues, names, strict=True):
            path = parts_folder(root, _APP, batch) / f"{each.number}.part"
            file = PartFile(path, each.queue, _SCHEMA, "zstd")
            for turn in range(begin, min(begin + _ROUNDS_PER_FILE, each.rounds)):
                file.write(each.rows(turn, keys), f"{path} is not in offset order")
            parts.append(file.close())
        publish(root, _APP, batch, parts)
        files += len(parts)
    return files


def check(data: dict[str, Any], queues: list[QueueOfBench]) -> int:
    """Compare the findings with the planted defects; return the number of findings.

    Raises:
        RuntimeError: They differ.
    """
    expected: dict[str, Any] = {
        "messages": sum(each.keys * each.rounds for each in queues),
        "keys": sum(each.keys for each in queues),
        "missing": sum(each.defects for each in queues),
        "undecided": 0,
        "findings": [
            audit.finding_facts(each) for each in sorted(b for q in queues for b in q.expected())
        ],
    }
    wrong = [name for name, value in expected.items() if data[name] != value]
    if wrong:
        raise RuntimeError(
            f"the audit is wrong about {', '.join(wrong)}; it has to find what was planted"
        )
    return len(expected["findings"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--quick", action="store_true", help="2 million messages of 20,000 keys")
    parser.add_argument("--write", type=Path, help="also write the table into this page")
    given = parser.parse_args()
    keys = (20_000 if given.quick else given.keys) // _QUEUES
    queues = [
        QueueOfBench(number, keys, given.rounds, max(1, keys // _KEYS_PER_DEFECT))
        for number in range(_QUEUES)
    ]
    rows = sum(each.keys * each.rounds for each in queues)
    with tempfile.TemporaryDirectory(prefix="audit-") as directory:
        root = location(Path(directory) / "archive")
        began = time.perf_counter()
        files = write(root, queues)
        print(f"{rows:,} rows in {files} files in {time.perf_counter() - began:.0f} s", flush=True)
        spark = start_session("audit", master="local[2]", memory="1g")
        spec = OrderAuditSpec(type="order-audit", archive=root, findings_max=rows)
        began = time.perf_counter()
        with Watch() as watch:
            outcome = audit.run("audit", spec, lambda: spark)
        seconds = time.perf_counter() - began
        spark.stop()
    defects = check(outcome.data, queues)
    table = (
        "| rows | findings | seconds | rows/s | JVM, MiB | largest worker, MiB | driver's Python, MiB |\n"
        "|---|---|---|---|---|---|---|\n"
        f"| {rows:,} | {defects:,} | {seconds:.0f} | {rows / seconds:,.0f} | {watch.cells()} |"
    )
    print(table)
    if given.write is not None:
        about = _TEXT.format(rows=rows, keys=keys * _QUEUES, files=files, defects=defects)
        conditions = f"{os.cpu_count()} CPUs; {time.strftime('%Y-%m-%d', time.gmtime())}."
        text = f"## Spark's audit\n\n{about} {conditions}\n\n{table}"
        sections.put(given.write, "spark-audit", text)


if __name__ == "__main__":
    main()
