"""
The search for the seed that catches each defect: ``python -m tests.sim.defects.search`` finds them again.

A defect that is still caught at its recorded seed keeps it, which takes one run. For the others the program tries seeds
one after the other until a law is broken. It immediately writes each result to ``caught.json`` (used by the tests) and to the table
in ``docs/explanation/simulator.md``, so it can be interrupted and resumes where it was. ``--again`` forgets the
records, ``--only TEXT`` selects defects by their names, ``--seeds N`` limits the number of seeds.
"""

import argparse
import json
import os
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from rich.console import Console

from tests.sim.defects.catalogue import DEFECTS
from tests.sim.defects.defect import Defect
from tests.sim.world import simulate

CAUGHT: Final = Path(__file__).with_name("caught.json")
DOCUMENT: Final = Path(__file__).parents[3] / "docs" / "explanation" / "simulator.md"
BEGIN: Final = "<!-- defects: begin -->"
END: Final = "<!-- defects: end -->"


@dataclass(frozen=True, slots=True)
class Catch:
    """The catch of a defect: the check, the seed, and the number of seeds tried from 0 on."""

    name: str
    check: str
    seed: int
    seeds: int


def hunt(name: str, seeds: Iterable[int]) -> Catch | None:
    """Try *seeds* until one catches the defect called *name*."""
    defect = by_name(name)
    with defect.planted():
        for seed in seeds:
            result = simulate(seed, changes=defect.changes)
            if not result.ok:
                return Catch(name, result.check, seed, seed + 1)
    return None


def by_name(name: str) -> Defect:
    """Return the defect with this name."""
    return next(defect for defect in DEFECTS if defect.name == name)


def read_caught() -> dict[str, Catch]:
    """Return the last catches by name."""
    return {each["name"]: Catch(**each) for each in json.loads(CAUGHT.read_text())}


def table(caught: dict[str, Catch]) -> str:
    """Return the table of the document."""
    lines = ["| planted in | defect | law it breaks | caught by | seeds |", "|---|---|---|---|---|"]
    for defect in DEFECTS:
        catch = caught.get(defect.name)
        by, seeds = (catch.check, str(catch.seeds)) if catch else ("nothing yet", "")
        lines.append(f"| {defect.where} | {defect.name} | {defect.law} | {by} | {seeds} |")
    return "\n".join(lines)


def written(text: str, caught: dict[str, Catch]) -> str:
    """Return the document with the table in its place."""
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    return f"{head}{BEGIN}\n{table(caught)}\n{END}{tail}"


def _write(caught: dict[str, Catch]) -> None:
    known = [caught[each.name] for each in DEFECTS if each.name in caught]
    CAUGHT.write_text(json.dumps([asdict(each) for each in known], indent=1) + "\n")
    if DOCUMENT.exists():
        DOCUMENT.write_text(written(DOCUMENT.read_text(), caught))


def main(arguments: Iterable[str] | None = None) -> int:
    """Find all seeds; the exit code is 1 if a defect was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="names that contain this")
    parser.add_argument("--again", action="store_true", help="forget the seeds on record")
    parser.add_argument("--missed", action="store_true", help="only those not caught yet")
    parser.add_argument("--seed", type=int, default=0, help="the first seed to try")
    parser.add_argument("--seeds", type=int, default=400, help="how many seeds to try for each")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args(None if arguments is None else list(arguments))
    console = Console()
    caught = read_caught() if CAUGHT.exists() else {}
    names = [each.name for each in DEFECTS if options.only in each.name]
    if options.missed:
        names = [name for name in names if name not in caught]
    if options.again:
        caught = {name: catch for name, catch in caught.items() if name not in names}
    # Defects that took many seeds come first, so that the other cores are not idle at the end.
    names.sort(key=lambda name: -caught[name].seed if name in caught else -options.seeds)
    missed = 0
    with ProcessPoolExecutor(options.jobs) as pool:
        hunts = {}
        for name in names:
            recorded = [caught[name].seed] if name in caught else []
            seeds = [*recorded, *range(options.seed, options.seed + options.seeds)]
            hunts[pool.submit(hunt, name, seeds)] = name
        for done in as_completed(hunts):
            name, catch = hunts[done], done.result()
            if catch is None:
                missed += 1
                console.print(f"NOT CAUGHT in {options.seeds} seeds: {name}", style="red")
                caught.pop(name, None)
            else:
                caught[name] = catch
                text = f"{catch.seeds:4} seeds  {catch.check:22} {name}"
                console.print(text, highlight=False)
            _write(caught)
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
