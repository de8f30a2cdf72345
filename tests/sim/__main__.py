"""
Run the simulator: ``python -m tests.sim --seed 7`` one seed, ``--seeds 300`` many.

``--replay`` prints everything that happened in one seed, ``--steps`` ends it after so many events. The exit
code is 1 when a law was broken, or when so many seeds as `make sim` runs never came to a situation that matters.
"""

import argparse
import sys
from collections.abc import Sequence
from itertools import count, islice

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from tests.sim.coverage import SEEDS_ENOUGH, missing
from tests.sim.runner import Summary, run_seeds
from tests.sim.world import Result, plan_of, simulate


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the simulator as the command line says and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the seed, or the first of --seeds")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds (default: 1)")
    parser.add_argument("--steps", type=int, help="end a single seed after so many events")
    parser.add_argument("--replay", action="store_true", help="print all that happens")
    parser.add_argument("--jobs", type=int, help="processes (default: one per core)")
    parser.add_argument(
        "--lanes", action="store_true", help="pass over seeds without a consumer group by key"
    )
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    if options.seeds == 1:
        result = simulate(
            options.seed,
            steps=options.steps,
            trace=print if options.replay else None,
        )
        _show(console, result)
        return 0 if result.ok else 1
    chosen = filter(_has_lanes, count(options.seed)) if options.lanes else count(options.seed)
    summary = _many(console, list(islice(chosen, options.seeds)), options.jobs)
    _show_summary(console, summary)
    is_broad = options.seeds >= SEEDS_ENOUGH and not options.lanes
    return 1 if summary.failed or (is_broad and missing(summary.coverage)) else 0


def _has_lanes(seed: int) -> bool:
    return plan_of(seed).lanes > 0


def _many(console: Console, seeds: Sequence[int], jobs: int | None) -> Summary:
    summary = Summary()
    columns = (
        TextColumn("simulating"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[failed]} broken"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("", total=len(seeds), failed=0)
        for result in run_seeds(seeds, jobs):
            summary.add(result)
            if not result.ok:
                _show(progress.console, result)
            progress.update(task, advance=1, failed=len(summary.failed))
    return summary


def _show(console: Console, result: Result) -> None:
    speed = result.simulated_s / result.took_s
    head = (
        f"seed {result.seed}: {result.simulated_s:.1f} s simulated in {result.took_s:.2f} s "
        f"({speed:.0f} times real time), {result.steps} events, digest {result.digest}"
    )
    console.print(head, highlight=False)
    if result.ok:
        console.print("  all laws held", style="green")
        return
    console.print(f"  broken: {result.check}", style="red")
    console.print(f"  {result.text}", highlight=False, markup=False)
    if result.trace:
        console.print(result.trace, highlight=False, markup=False)
    console.print(f"  again: python -m tests.sim --seed {result.seed} --replay", highlight=False)


def _show_summary(console: Console, summary: Summary) -> None:
    table = Table("reached", "times", title="coverage")
    for name, number in sorted(summary.coverage.items()):
        table.add_row(name, str(number))
    console.print(table)
    for name in missing(summary.coverage):
        console.print(f"never reached: {name}", style="yellow")
    console.print(
        f"{summary.seeds} seeds, {summary.simulated_s:.0f} s simulated, "
        f"{summary.simulated_s / summary.took_s:.0f} times real time on each core, "
        f"{summary.steps} events, {summary.counts['ack']} sends acknowledged, "
        f"{summary.counts['deliver']} deliveries, {len(summary.failed)} broken",
        highlight=False,
    )


if __name__ == "__main__":
    sys.exit(main())
