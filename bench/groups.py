"""
More than one core: the same load on one, two and four raft groups of this machine, and a model of what larger clusters take.

``python -m bench.groups [--quick] [--rounds 3] [--write docs/explanation/benchmarks.md]``. Each group has three replicas, a process each;
all are of one cluster with one name server. The 64 senders take the groups in turn. Rounds are interleaved.
"""

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import uvloop
from bench.lanes import form
from bench.report.figures import shown
from bench.sends import Round, measure
from tests.cluster.processes import Group

from bench.report import origin, scaling, sections

GROUPS: Final = (1, 2, 4)
SENDERS: Final = 64
SIZE: Final = 1024
_WARM_S: Final = 1.0

Rounds = Mapping[int, Sequence[Round]]


@contextmanager
def cluster(directory: Path, count: int) -> Iterator[list[Group]]:
    """Run a cluster with this many raft groups."""
    with ExitStack() as stack:
        groups: list[Group] = []
        for number in range(count):
            overrides: dict[str, Any] = {"group": f"g{number}"}
            if groups:
                overrides["name_servers"] = groups[0].settings(1)["name_servers"]
            group = Group(directory / f"g{number}", overrides=overrides)
            groups.append(stack.enter_context(group))
        yield groups


def table(rounds: Rounds) -> Iterator[str]:
    """Yield the lines of the table: medians, and rates relative to one group."""
    yield "| groups | rounds | messages/s | to one group | p50, ms | p99, ms | CPU per message, µs | of it leaders |"
    yield "|---|---|---|---|---|---|---|---|"
    one = statistics.median(each.rate for each in rounds[GROUPS[0]])
    for count, found in rounds.items():
        rate = statistics.median(each.rate for each in found)
        figures = [
            statistics.median(getattr(each, name) for each in found)
            for name in ("p50_ms", "p99_ms", "cpu_us", "leader_us")
        ]
        cells = (f"{rate:,.0f}", f"{rate / one:.2f}", *map(shown, figures))
        yield f"| {count} | {len(found)} | {' | '.join(cells)} |"


def costs(rounds: Sequence[Round]) -> scaling.Costs:
    """Return the cost of a message in a raft group, from the rounds with one group."""
    every = statistics.median(each.cpu_us for each in rounds)
    leader = statistics.median(each.leader_us for each in rounds)
    return scaling.Costs(leader, (every - leader) / 2, SIZE)


def section(rounds: Rounds, form: str, of: str) -> str:
    """Return the section of the results page."""
    head = (
        f"`make bench-groups`: {SENDERS} senders of 1 KiB send to the groups in turn. Three replicas per group, {form}, and the load, which is in"
        f" Python too, share {os.cpu_count()} CPUs. The figures are medians; {of}."
    )
    model = scaling.lines(costs(rounds[GROUPS[0]]))
    return "\n".join(["## Several groups", "", head, "", *table(rounds), "", *model])


async def _round(directory: Path, count: int, seconds: float) -> Round:
    with cluster(directory, count) as groups:
        await measure(groups, SENDERS, _WARM_S, SIZE)
        return await measure(groups, SENDERS, seconds, SIZE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="one round of two seconds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--write", type=Path, help="also write the section into this page")
    given = parser.parse_args()
    number, seconds = (1, 2.0) if given.quick else (given.rounds, given.seconds)
    rounds: dict[int, list[Round]] = {count: [] for count in GROUPS}
    for _ in range(number):
        for count, found in rounds.items():
            with tempfile.TemporaryDirectory(prefix="bench-groups-") as directory:
                found.append(uvloop.run(_round(Path(directory), count, seconds)))
            print(f"{count} groups: {found[-1].rate:,.0f} messages/s", file=sys.stderr, flush=True)
    text = section(rounds, form(), origin.commit())
    print(text)
    if given.write is not None:
        sections.put(given.write, "groups", text)


if __name__ == "__main__":
    main()
