"""
The tail of one sender: ``python -m bench.tail [--sends 10000] [--slowest 100] [--write docs/explanation/benchmarks.md]``.

One sender sends to a cluster of three replicas whose loops note the time (`launcher`). Of the slowest sends each is
attributed to the phase that exceeds its usual length most, and the table says whether a collection of garbage or a flush or
compaction of RocksDB ran meanwhile.
"""

import argparse
import gc
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import uvloop
from bench.lanes import form
from bench.tail.client import sends
from tests.cluster.processes import Group

from bench.report import origin, sections
from bench.tail import phases

SIZE: Final = 1024
_WARM: Final = 500


def traced(directory: Path) -> Group:
    """Return a group, not yet started, whose brokers record time stamps."""
    group = Group(directory)
    for node, broker in group.brokers.items():
        module, settings = broker.arguments[1], broker.arguments[2:]
        assert module == "orderlymq_broker", broker.arguments
        broker.arguments = ["-m", "bench.tail.launcher", str(events(directory, node)), *settings]
    return group


def events(directory: Path, node: int) -> Path:
    """Return the file to which a broker writes its time stamps."""
    return directory / f"events-{node}.jsonl"


def run(directory: Path, count: int) -> tuple[list[phases.Stamps], int]:
    """Send the messages; return the client's stamps and the leader's node."""
    group = traced(directory)
    with group:
        leader = group.wait_for_leader()
        found = uvloop.run(sends("127.0.0.1", group.port, _WARM + count, SIZE))
    return found[_WARM:], leader


def section(directory: Path, stamps: Sequence[phases.Stamps], leader: int, slowest: int) -> str:
    """Return the section of the results page, from the stamps of client and brokers."""
    traces = {
        node: phases.Trace.of(events(directory, node).read_text().splitlines())
        for node in (1, 2, 3)
    }
    own = traces.pop(leader)
    found = [each for one in stamps if (each := phases.send(one, own, traces)) is not None]
    offset = time.time_ns() - time.monotonic_ns()
    intervals: Mapping[str, Sequence[tuple[int, int]]] = {
        "collection, client": _collections,
        "collection, leader": own.collections,
        "collection, follower": [each for one in traces.values() for each in one.collections],
        "flush or compaction": [
            job
            for log in directory.glob("node-*/**/LOG")
            for job in phases.jobs(log.read_text(errors="replace").splitlines(), offset)
        ],
    }
    head = (
        f"`make bench-tail`: one sender of 1 KiB; three replicas, {form()}, and the load, in Python too, share {os.cpu_count()} CPUs;"
        f" {origin.commit()}. The stamps themselves cost some microseconds a send. {len(stamps) - len(found)} of {len(stamps):,} sends lack a stamp."
    )
    return "\n".join(
        ["## The tail of one sender", "", head, "", *phases.table(found, slowest, intervals)]
    )


_collections: Final[list[tuple[int, int]]] = []


def _note_collections() -> None:
    began = 0

    def note(phase: str, info: dict[str, int]) -> None:
        nonlocal began
        if phase == "start":
            began = time.monotonic_ns()
        else:
            _collections.append((began, time.monotonic_ns()))

    gc.callbacks.append(note)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m bench.tail",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--sends", type=int, default=10_000)
    parser.add_argument("--slowest", type=int, default=100)
    parser.add_argument("--write", type=Path, help="also write the section into this page")
    given = parser.parse_args()
    _note_collections()
    with tempfile.TemporaryDirectory(prefix="bench-tail-") as folder:
        stamps, leader = run(Path(folder), given.sends)
        text = section(Path(folder), stamps, leader, given.slowest)
    sys.stdout.write(f"{text}\n")
    if given.write is not None:
        sections.put(given.write, "tail", text)


if __name__ == "__main__":
    main()
