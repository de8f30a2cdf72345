"""
Flat growth, measured: ``python -m bench.growth [--only NAME ...] [--most N] [--quick] [--write PAGE]``.

Each dimension begins with a fresh group of three replicas and grows by decades. At each of them the same work is done, and
lines are written down as they come, so that a run of the same commit which is cut off goes on where it stopped.
"""

import argparse
import resource
import sys
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import uvloop
from bench.growth.dimensions import DIMENSIONS, Dimension, Growing
from bench.growth.load import QUEUES, TOPIC, Figures, Load, kill_leader, measure, rest
from bench.report.origin import commit
from bench.report.results import Line, Results
from tests.cluster.processes import Group

from bench.growth import page
from bench.report import sections
from orderlymq.admin.client import AdminClient

_HOUR_MS: Final = 3_600_000
#: Time-outs so long that nothing expires during a measurement.
_OVERRIDES: Final[dict[str, Any]] = {
    "timers": {"client_expiry_ms": _HOUR_MS, "transaction_timeout_ms": _HOUR_MS}
}
_QUICK: Final = Load(seconds=1.0)
_QUICK_DECADES: Final = 3


async def grow(
    dimension: Dimension, results: Results, scale: str, load: Load, decades: Sequence[int]
) -> None:
    """Measure a dimension at each decade; print and record each result."""
    if all(results.has(scale, dimension.name, str(each), 0) for each in decades):
        return
    with (
        tempfile.TemporaryDirectory(prefix="growth-") as directory,
        Group(Path(directory) / "group", overrides=_OVERRIDES) as cluster,
    ):
        async with AdminClient(cluster.name_server_address) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES, ordered=True)
            growing = Growing(cluster, admin, load)
            async with growing.stack:
                for old, new in pairwise((0, *decades)):
                    figures = await _decade(dimension, growing, old, new)
                    results.add(Line(scale, dimension.name, str(new), 0, figures))


async def _decade(dimension: Dimension, growing: Growing, old: int, new: int) -> dict[str, Any]:
    say(f"{dimension.title}: {new:,} ...")
    load = await dimension.step(growing, old, new)
    await rest(growing.cluster, load.seconds)
    figures: Figures = await measure(growing.cluster, load)
    figures |= await kill_leader(growing.cluster, load)
    if dimension.per_byte:
        figures["cpu_us_kib"] = figures["cpu_us"] / load.size * 1024
    say("  " + ", ".join(f"{name} {value:,.4g}" for name, value in figures.items()))
    return dict(figures)


def say(text: str) -> None:
    """Print a line immediately."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and run the measurements."""
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    names = [dimension.name for dimension in DIMENSIONS]
    parser.add_argument("--only", nargs="+", choices=names, default=names)
    parser.add_argument("--most", type=int, default=10_000_000, help="leave out larger decades")
    parser.add_argument("--quick", action="store_true", help="three decades, a second of each work")
    parser.add_argument("--results", type=Path, default=Path("build/bench/growth.jsonl"))
    parser.add_argument("--write", type=Path, help="the page to write")
    given = parser.parse_args(arguments)
    # A client and a broker may each need an open file per connection.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    results = Results(given.results, commit())
    load, scale = (_QUICK, "quick") if given.quick else (Load(), "full")
    wanted = {
        dimension: [
            each
            for each in dimension.decades[: _QUICK_DECADES if given.quick else None]
            if each <= given.most
        ]
        for dimension in DIMENSIONS
        if dimension.name in given.only
    }
    if given.write:
        slots = {(line.peer, line.work) for line in results.lines if line.scale == scale}
        slots |= {(each.name, str(n)) for each, decades in wanted.items() for n in decades}
        if found := page.lacking(given.write, slots):
            sys.exit(sections.refusal(given.write, found))
    for dimension, decades in wanted.items():
        uvloop.run(grow(dimension, results, scale, load, decades))
    lines = [line for line in results.lines if line.scale == scale]
    for text in page.verdicts(lines):
        say(text)
    if given.write:
        page.write(given.write, lines)


if __name__ == "__main__":
    main()
