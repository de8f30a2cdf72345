"""
Knowledge about mutants: verdicts in ``build/mutants``, explanations and the page in the repository.

A verdict counts as long as the mutated function is the same. Mutants that nobody notices are tried again on each
run, for a test may have come; those in ``explained.json`` are not: nothing can notice them, or nothing should.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

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
    """The reason why a mutant is not noticed; *equal* when nothing could."""

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
        known = [Explanation(**each) for each in json.loads(EXPLAINED.read_text())]
        self._explained = {(each.path, each.function, each.change): each for each in known}

    def get(self, mutant: Mutant) -> Verdict | None:
        """Return what became of a mutant, None when nobody has tried it."""
        return self._verdicts.get(mutant.key)

    def explanation(self, mutant: Mutant) -> Explanation | None:
        """Return why nobody notices it."""
        return self._explained.get((mutant.path, mutant.function, mutant.change))

    def put(self, verdict: Verdict) -> None:
        """Keep a verdict, immediately: a run that is ended goes on where it was."""
        self._verdicts[verdict.key] = verdict
        VERDICTS.parent.mkdir(parents=True, exist_ok=True)
        with VERDICTS.open("a") as file:
            file.write(json.dumps(asdict(verdict)) + "\n")

    # -- the page

    def write(self, mutants: Sequence[Mutant]) -> None:
        """Write the page's table and list of survivors; a module without a verdict here keeps its lines."""
        head, rest = PAGE.read_text().split(BEGIN)
        before, tail = rest.split(END)
        by_path: dict[str, list[Mutant]] = {}
        for mutant in mutants:
            by_path.setdefault(mutant.path, []).append(mutant)
        rows: list[str] = []
        survivors: list[str] = []
        for path, found in by_path.items():
            name = f"`{path.removeprefix('broker/')}`"
            old = [line for line in before.splitlines() if line.startswith(f"| {name} |")]
            if old and all(self.get(mutant) is None for mutant in found):
                rows += old
                mark = f"| {Path(path).name} `"
                survivors += [line for line in before.splitlines() if line.startswith(mark)]
            else:
                rows.append(_row(name, Counter(self._state(mutant) for mutant in found)))
                survivors += self._survivors(found)
        total = _total(rows)
        text = [
            f"Last run: {datetime.now(UTC):%Y-%m-%d}, {total.split()[3]} of {len(mutants)} mutants tried.",
            "",
            "| module | mutants | tests | seeds | no end or a crash | equal | not noticed | noticed |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            total,
            "",
            "| nobody notices | change | why |",
            "|---|---|---|",
            *survivors,
        ]
        PAGE.write_text("\n".join([f"{head}{BEGIN}", *text, f"{END}{tail}"]))

    def _state(self, mutant: Mutant) -> str:
        verdict = self.get(mutant)
        if verdict is None:
            return "untried"
        explained = self.explanation(mutant)
        if verdict.noticed == "no" and explained is not None and explained.equal:
            return "equal"
        return verdict.noticed

    def _survivors(self, mutants: Sequence[Mutant]) -> Iterable[str]:
        for mutant in mutants:
            verdict = self.get(mutant)
            if verdict is None or verdict.noticed != "no":
                continue
            explained = self.explanation(mutant)
            why = f"no test yet, nor {verdict.seeds} seeds"
            if explained is not None:
                why = f"{'equal: ' if explained.equal else ''}{explained.reason}"
            where = f"{mutant.path.rsplit('/', 1)[1]} `{mutant.function}`"
            yield f"| {where} | `{mutant.change.replace('|', '¦')}` | {why} |"


def _row(name: str, counts: Counter[str]) -> str:
    tried = sum(counts.values()) - counts["untried"] - counts["void"]
    ends = counts["time"] + counts["crash"]
    return _line(
        name, [tried, counts["tests"], counts["seeds"], ends, counts["equal"], counts["no"]]
    )


def _total(rows: Sequence[str]) -> str:
    cells = [[int(cell) for cell in row.split("|")[2:8]] for row in rows]
    return _line("all", [sum(column) for column in zip(*cells, strict=True)])


def _line(name: str, cells: Sequence[int]) -> str:
    found = sum(cells[1:4])
    real = found + cells[5]
    share = f"{100 * found / real:.1f} %" if real else ""
    return f"| {name} | {' | '.join(map(str, cells))} | {share} |"
