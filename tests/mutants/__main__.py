"""
Try the mutants of the core: ``python -m tests.mutants``, or ``make mutants``.

A run that was ended goes on where it was. It goes from module to module, in the order of the paths, and writes the
page after each. Without --share all mutants are tried; with ``--share 0.1`` every tenth, always the same ones. The exit
code is 1 when less than nine tenths of those that are not equal were noticed.
"""

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Final

import pytest
from rich.console import Console

from tests.mutants.areas import AREAS, Area
from tests.mutants.baseline import Baseline
from tests.mutants.mutant import Mutant, mutants_of
from tests.mutants.record import NOTICED, ROOT, Record
from tests.mutants.trials import Trials, Verdict

NOTICED_LEAST: Final = 0.9
# With this, Hypothesis draws the same examples and sets no time limit for each.
os.environ["CI"] = "true"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("paths", nargs="*", help="modules or folders (default: all areas)")
    parser.add_argument("--share", type=float, default=1.0, help="which part is tried")
    parser.add_argument(
        "--seeds",
        type=int,
        default=0,
        help="seeds for what no test notices, after tests that play histories at random",
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes")
    parser.add_argument(
        "--tests", nargs="+", help="judge by these alone; what they do not notice is tried again"
    )
    parser.add_argument("--again", action="store_true", help="forget what was noticed before")
    parser.add_argument("--write", action="store_true", help="write docs/evidence/mutants.md")
    options = parser.parse_args(arguments)
    console, record = Console(stderr=True), Record()
    made: dict[str, list[Mutant]] = {}
    paths = [Path(path).resolve() for path in options.paths]
    for area in sorted(AREAS, key=lambda each: _place(each.paths(ROOT), paths)):
        _run(area, paths, made, record, console, options)
    if options.write:
        for path, mutants in made.items():
            record.write(path, mutants)
    return _judge([each for mutants in made.values() for each in mutants], record, console)


def _place(modules: Sequence[Path], paths: Sequence[Path]) -> int:
    """Return the position in *paths* of the first that holds one of *modules*."""
    held = (
        number
        for number, path in enumerate(paths)
        if any(path == each or path in each.parents for each in modules)
    )
    return next(held, len(paths))


# The options of pytest in addition to the tests of an area.
_SWITCHES = (
    "-q",
    "--capture=no",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:xdist",
    "-o",
    # A busy machine leaves little time to a run in the background, and the tracer takes more; no rule
    # is broken by that.
    "timeout=600",
)


def _is_open(record: Record, mutant: Mutant) -> bool:
    """Return whether a mutant is to be tried: it was not yet, or a test may notice it by now."""
    verdict = record.get(mutant)
    return verdict is None or (verdict.noticed == "no" and record.explanation(mutant) is None)


def _simulate(seed: int) -> str:
    from tests.sim.world import simulate as run_seed  # noqa: PLC0415 - only for who wants seeds

    return run_seed(seed).check


def _run(
    area: Area,
    paths: Sequence[Path],
    made: dict[str, list[Mutant]],
    record: Record,
    console: Console,
    options: argparse.Namespace,
) -> None:
    """Try the mutants of an area with its tests, then with seeds; *made* collects all mutants."""
    counts: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    every = max(1, round(1 / options.share))

    def wanted() -> Iterator[Mutant]:
        # Made module by module, because making them takes longer than many a trial.
        for path in sorted(area.paths(ROOT), key=lambda each: _place([each], paths)):
            if paths and _place([path], paths) == len(paths):
                continue
            mutants = list(mutants_of(path, ROOT))
            if not mutants:
                continue
            made[mutants[0].path] = mutants
            found = [
                each
                for each in mutants
                if int(each.key, 16) % every == 0 and (options.again or _is_open(record, each))
            ]
            waiting.update(each.path for each in found)
            yield from found

    def done(mutant: Mutant, verdict: Verdict) -> None:
        record.put(verdict)
        waiting[mutant.path] -= 1
        if options.write and not waiting[mutant.path]:
            record.write(mutant.path, made[mutant.path])
        counts[verdict.noticed] += 1
        tried = sum(counts.values())
        if verdict.noticed == "no" or tried % 50 == 0:
            head = f"{tried} {dict(counts)}"
            console.print(
                f"{head} {verdict.noticed} {mutant.path} {mutant.function}:",
                end=" ",
                soft_wrap=True,
            )
            console.print(mutant.change, markup=False, highlight=False, soft_wrap=True)

    if options.seeds:
        # Loaded before the forks, not in each child.
        import_module("tests.sim.world")
    mutants = wanted()
    first = next(mutants, None)
    if first is None:
        return
    trials = Trials(
        chain([first], mutants),
        ROOT,
        jobs=options.jobs,
        seeds=options.seeds,
        simulate=_simulate,
        baseline=Baseline(ROOT),
        explained=lambda mutant: record.explanation(mutant) is not None,
        done=done,
    )
    left_out = () if options.seeds else (f"--ignore={path}" for path in area.random)
    code = pytest.main([*_SWITCHES, *left_out, *(options.tests or area.tests)], plugins=[trials])
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
