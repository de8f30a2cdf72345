"""The results of the trials, as docs/evidence/spark-versions.md."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from tests.spark.faults.kills import ROOT

CELLS: Final = (
    "batch source",
    "filters",
    "stream source",
    "limits of a batch",
    "sink, batch",
    "sink, stream",
    "archive, Parquet",
    "archive, Delta",
    "order audit",
)
PAGE: Final = ROOT / "docs" / "evidence" / "spark-versions.md"
_HEAD: Final = """# Versions of Spark

`make spark-versions` makes an environment for each version, with that `pyspark` from PyPI. In it, it runs a small test of
every part, in a classic session and from a Spark Connect client, against a real broker. The programs are in
`tests/spark/versions/trial.py`. It wrote this table on {day}.

* *passed*: each message arrived once, in order, with its content, also after a second run.
* *not run*: the trial was ended before this test.

"""


@dataclass(frozen=True, slots=True)
class Tried:
    """A version in one kind of session."""

    version: str
    session: str
    results: tuple[dict[str, Any], ...]

    @property
    def passed(self) -> bool:
        return len(self.results) == len(CELLS) and all(each["passed"] for each in self.results)

    def __str__(self) -> str:
        lines = [f"Spark {self.version}, {self.session}:"]
        lines += [
            f"  {'passed' if each['passed'] else 'FAILED'}  {each['name']}  {each['said']}"
            for each in self.results
        ]
        return "\n".join(lines)


def page(found: Sequence[Tried], day: date) -> str:
    """Return the page: a column for each version and session, and notes on cells below."""
    notes: dict[str, int] = {}
    columns = [{each["name"]: _cell(each, notes) for each in tried.results} for tried in found]
    heads = [
        f"{each.version} {'Connect' if each.session == 'connect' else ''}".strip() for each in found
    ]
    lines = [f"| | {' | '.join(heads)} |", "|---|" + "---|" * len(found)]
    lines += [
        f"| {name} | {' | '.join(column.get(name, 'not run') for column in columns)} |"
        for name in CELLS
    ]
    lines += ["", *(f"{number}. {note}" for note, number in notes.items()), ""]
    return _HEAD.format(day=day) + "\n".join(lines)


def _cell(result: dict[str, Any], notes: dict[str, int]) -> str:
    word = "passed" if result["passed"] else "**failed**"
    if not result["said"]:
        return word
    return f"{word} ({notes.setdefault(result['said'], len(notes) + 1)})"
