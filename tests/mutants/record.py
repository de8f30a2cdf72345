"""
Knowledge about mutants: verdicts in ``build/mutants``, explanations and the page in the repository.

A verdict is valid while the mutated function is the same. Mutants that no test notices are tried again in each run,
because a test may have been added. Those in ``explained.json`` are not: no test can notice them, or none should. The
page keeps the lines of a module until it is run again, with the commit of that run.
"""

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.mutants.areas import AREAS
from tests.mutants.mutant import Mutant
from tests.mutants.trials import Verdict

ROOT: Final = Path(__file__).parents[2]
VERDICTS: Final = ROOT / "build" / "mutants" / "verdicts.jsonl"
EXPLAINED: Final = Path(__file__).with_name("explained.json")
PAGE: Final = ROOT / "docs" / "evidence" / "mutants.md"
BEGIN: Final = "<!-- mutants: begin -->"
END: Final = "<!-- mutants: end -->"
NOTICED: Final = ("tests", "seeds", "time", "crash")


@dataclass(frozen=True, slots=True)
class Explanation:
    """The reason why a mutant is not noticed; *equal* if no test could notice it."""

    path: str
    function: str
    change: str
    equal: bool
    reason: str


class Record:
    """The verdicts of all runs so far."""

    def __init__(self) -> None:
        self._verdicts: dict[str, Verdict] = {}
        if VERDICTS.exists():
            for line in VERDICTS.read_text().splitlines():
                verdict = Verdict(**json.loads(line))
                self._verdicts[verdict.key] = verdict
        self._commit, self._date = _commit(), datetime.now(UTC).isoformat()
        known = [Explanation(**each) for each in json.loads(EXPLAINED.read_text())]
        self._explained = {(each.path, each.function, each.change): each for each in known}

    def get(self, mutant: Mutant) -> Verdict | None:
        """Return a mutant's verdict, None if it was not tried."""
        return self._verdicts.get(mutant.key)

    def explanation(self, mutant: Mutant) -> Explanation | None:
        """Return the reason why the mutant is not noticed, None if none is recorded."""
        return self._explained.get((mutant.path, mutant.function, mutant.change))

    def put(self, verdict: Verdict) -> None:
        """Store a verdict immediately, so that an interrupted run can continue."""
        verdict = replace(verdict, commit=self._commit, date=self._date)
        self._verdicts[verdict.key] = verdict
        VERDICTS.parent.mkdir(parents=True, exist_ok=True)
        with VERDICTS.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")

    # -- the page

    def write(self, path: str, mutants: Sequence[Mutant]) -> None:
        """Write the lines of the module of *mutants*, and the total; lines of other modules stay as they are."""
        head, rest = PAGE.read_text().split(BEGIN)
        before, tail = rest.split(END)
        lines = before.splitlines()
        rows: list[str] = []
        survivors: list[str] = []
        for module in (module for area in AREAS for module in area.paths(ROOT)):
            name = str(module.relative_to(ROOT)).removeprefix("broker/")
            if f"broker/{name}" == path:
                rows.append(self._row(name, mutants))
                survivors += self._survivors(name, mutants)
            else:
                rows += [line for line in lines if line.startswith(f"| `{name}` | ")]
                survivors += [line for line in lines if line.startswith(f"| {name} `")]
        text = [
            "| module | mutants | tried | by tests | by seeds | no end or a crash | equal | explained | left | noticed | commit | date |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            _total(rows),
            "",
            "| nobody notices | change | why |",
            "|---|---|---|",
            *survivors,
        ]
        PAGE.write_text("\n".join([f"{head}{BEGIN}", *text, f"{END}{tail}"]))

    def _row(self, name: str, mutants: Sequence[Mutant]) -> str:
        counts = Counter(self._state(mutant) for mutant in mutants)
        tried = len(mutants) - counts["untried"]
        ends = counts["time"] + counts["crash"]
        cells = [len(mutants), tried, counts["tests"], counts["seeds"], ends]
        cells += [counts["equal"], counts["explained"], counts["no"]]
        runs = [(each.date, each.commit) for mutant in mutants if (each := self.get(mutant))]
        date, commit = max(runs, default=("", ""))
        return _line(f"`{name}`", cells, commit, date[:10])

    def _state(self, mutant: Mutant) -> str:
        verdict = self.get(mutant)
        if verdict is None:
            return "untried"
        explained = self.explanation(mutant)
        if verdict.noticed == "no" and explained is not None:
            return "equal" if explained.equal else "explained"
        return verdict.noticed

    def _survivors(self, name: str, mutants: Sequence[Mutant]) -> Iterable[str]:
        for mutant in mutants:
            verdict = self.get(mutant)
            if verdict is None or verdict.noticed != "no":
                continue
            explained = self.explanation(mutant)
            why = f"no test yet, nor {verdict.seeds} seeds"
            if explained is not None:
                why = f"{'equal: ' if explained.equal else ''}{explained.reason}"
            yield f"| {name} `{mutant.function}` | `{mutant.change.replace('|', '¦')}` | {why} |"


def _total(rows: Sequence[str]) -> str:
    cells = [[int(cell) for cell in row.split("|")[2:10]] for row in rows]
    return _line("all", [sum(column) for column in zip(*cells, strict=True)], "", "")


def _line(name: str, cells: Sequence[int], commit: str, date: str) -> str:
    noticed = sum(cells[2:5])
    real = noticed + sum(cells[6:])
    share = f"{100 * noticed / real:.1f} %" if real else ""
    return f"| {name} | {' | '.join(map(str, cells))} | {share} | {commit} | {date} |"


def _commit() -> str:
    """Return the commit of the sources and tests, with a plus sign if they differ from it."""

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    changed = git("status", "--porcelain", "--", "broker", "protocol", "tests/raft", "tests/broker")
    return git("rev-parse", "--short=8", "HEAD") + ("+" if changed else "")
