"""
Try the mutants of the core: ``python -m tests.mutants``, or ``make mutants``.

A run that was ended goes on where it was. Without --share all mutants are tried; with ``--share 0.1`` every tenth,
always the same ones. The exit code is 1 when less than nine tenths of those that are not equal were noticed.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from tests.mutants.areas import AREAS, Area
from tests.mutants.mutant import Mutant, mutants_of
from tests.mutants.record import NOTICED, ROOT, Record
from tests.mutants.trials import Trials, Verdict

NOTICED_LEAST: Final = 0.9
# Hypothesis draws the same examples then, without a limit of time for each.
os.environ["CI"] = "true"


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules or folders (default: all areas)")
    parser.add_argument("--share", type=float, default=1.0, help="which part is tried")
    parser.add_argument("--seeds", type=int, default=0, help="seeds for what no test notices")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument("--again", action="store_true", help="forget what was noticed before")
    parser.add_argument("--write", action="store_true", help="write docs/evidence/mutants.md")
    options = parser.parse_args(arguments)
    console, record = Console(stderr=True), Record()
    everything: list[Mutant] = []
    for area in AREAS:
        mutants = _mutants(area, [Path(path).resolve() for path in options.paths], options.share)
        everything += mutants
        wanted = [each for each in mutants if options.again or _is_open(record, each)]
        if wanted:
            _run(area, wanted, record, console, options)
    if options.write:
        # All modules have lines on the page, also those that were not tried now.
        record.write([each for area in AREAS for each in _mutants(area, (), 1.0)])
    return _judge(everything, record, console)


def _mutants(area: Area, paths: Sequence[Path], share: float) -> list[Mutant]:
    every = max(1, round(1 / share))
    found = [
        mutant
        for path in area.paths(ROOT)
        if not paths or any(path == each or each in path.parents for each in paths)
        for mutant in mutants_of(path, ROOT)
    ]
    return [each for each in found if int(each.key, 16) % every == 0]


def _is_open(record: Record, mutant: Mutant) -> bool:
    """Return whether a mutant is to be tried: it was not yet, or a test may notice it by now."""
    verdict = record.get(mutant)
    return verdict is None or (verdict.noticed == "no" and record.explanation(mutant) is None)


def _run(
    area: Area,
    mutants: list[Mutant],
    record: Record,
    console: Console,
    options: argparse.Namespace,
) -> None:
    """Try *mutants* with the tests of their area, then with seeds."""
    counts: Counter[str] = Counter()

    def done(mutant: Mutant, verdict: Verdict) -> None:
        record.put(verdict)
        counts[verdict.noticed] += 1
        tried = sum(counts.values())
        if verdict.noticed == "no" or tried % 50 == 0:
            head = f"{tried}/{len(mutants)} {dict(counts)}"
            console.print(f"{head} {verdict.noticed} {mutant.path} {mutant.function}:", end=" ")
            console.print(mutant.change, markup=False, highlight=False)

    def simulate(seed: int) -> str:
        from tests.sim.world import simulate as run_seed  # noqa: PLC0415 - only for who wants seeds

        return run_seed(seed).check

    if options.seeds:
        # Loaded before the forks, not in each child.
        import_module("tests.sim.world")
    trials = Trials(
        mutants, ROOT, jobs=options.jobs, seeds=options.seeds, simulate=simulate, done=done
    )
    switches = [
        "-q",
        "--capture=no",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-o",
        # A busy machine leaves a run in the background little, and the tracer takes more: no rule is broken by that.
        "timeout=600",
    ]
    code = pytest.main([*switches, *area.tests], plugins=[trials])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise SystemExit(f"pytest ended with {code!r}")


def _judge(mutants: Sequence[Mutant], record: Record, console: Console) -> int:
    verdicts = [(mutant, record.get(mutant)) for mutant in mutants]
    found = sum(1 for _, verdict in verdicts if verdict and verdict.noticed in NOTICED)
    left = [
        mutant
        for mutant, verdict in verdicts
        if verdict and verdict.noticed == "no" and record.explanation(mutant) is None
    ]
    equal = [
        mutant
        for mutant, verdict in verdicts
        if verdict
        and verdict.noticed == "no"
        and (explained := record.explanation(mutant)) is not None
        and explained.equal
    ]
    missed = sum(1 for _, verdict in verdicts if verdict and verdict.noticed == "no") - len(equal)
    share = found / max(1, found + missed)
    console.print(
        f"{len(mutants)} mutants: {found} noticed, {len(equal)} equal, {missed} not noticed, "
        f"{len(left)} of them without an explanation: {100 * share:.1f} % noticed",
        highlight=False,
    )
    return 0 if share >= NOTICED_LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
