"""The origin of results: the measured commit and the days of the measurement."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.report.results import Line

#: The folders on which figures depend. A commit that only writes a page does not make results older.
_MEASURED: Final = ("protocol", "broker", "client", "bench", "requirements")


def commit() -> str:
    """Return the last commit of the measured folders, with ``-dirty`` appended if they have uncommitted changes."""
    found = _git("log", "-1", "--format=%h", "--abbrev=12")
    return found + ("-dirty" if found and _git("status", "--porcelain") else "") or "unknown"


def _git(*words: str) -> str:
    command = ["git", *words, "--", *_MEASURED]
    root = Path(__file__).parents[2]
    # Trees without git or without its folder can also be measured.
    try:
        return subprocess.run(
            command, cwd=root, check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def origin(lines: Iterable[Line]) -> str:
    """Return a text with the commits and days of the lines."""
    found = [(line.commit, line.at[:10]) for line in lines]
    commits = ", ".join(f"`{each}`" for each in sorted({each for each, _ in found}))
    days = sorted({day for _, day in found if day})
    return f"commit {commits}, {' to '.join(sorted({days[0], days[-1]})) if days else 'no day'}"
