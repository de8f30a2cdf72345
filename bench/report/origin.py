"""Where results come from: the commit that was measured, and the days on which it was."""

import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from bench.report.results import Line

#: What a figure depends on. A commit that writes a page makes no result an older one.
_MEASURED: Final = ("protocol", "broker", "client", "bench", "requirements")


def commit() -> str:
    """Return the last commit of what is measured, with ``-dirty`` behind it where the folders have other files than that."""
    found = _git("log", "-1", "--format=%h", "--abbrev=12")
    return found + ("-dirty" if found and _git("status", "--porcelain") else "") or "unknown"


def _git(*words: str) -> str:
    command = ["git", *words, "--", *_MEASURED]
    root = Path(__file__).parents[2]
    # A tree without git, or without its folder, is measured as well.
    try:
        return subprocess.run(
            command, cwd=root, check=True, capture_output=True, text=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def origin(lines: Iterable[Line]) -> str:
    """Say of which commit lines are, and of which days."""
    found = [(line.commit, line.at[:10]) for line in lines]
    commits = ", ".join(f"`{each}`" for each in sorted({each for each, _ in found}))
    days = sorted({day for _, day in found if day})
    return f"commit {commits}, {' to '.join(sorted({days[0], days[-1]})) if days else 'no day'}"
