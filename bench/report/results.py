"""
Results, one JSON object per line.

Recorded results survive an interrupted run, and the next run does not repeat them.
"""

import json
import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from bench.report.figures import Summary, merged


@dataclass(frozen=True, slots=True)
class Line:
    """One work done once by one peer.

    Attributes:
        figures: by key; a list if the work took several samples (kills).
        latencies: bucket counts as in bench/report/figures.py.
        elsewhere: the share of the machine that processes outside the bench used meanwhile.
        at: when it was recorded.
        commit: the measured code.
    """

    scale: str
    peer: str
    work: str
    round: int
    figures: dict[str, float | list[float]]
    latencies: dict[int, int] = field(default_factory=dict)
    elsewhere: float = 0.0
    at: str = ""
    trouble: str = ""
    commit: str = ""

    @property
    def slot(self) -> tuple[str, str, str, int]:
        """The key that must not be measured twice."""
        return self.scale, self.peer, self.work, self.round


class Results:
    """A file of lines that is only appended to. Lines of other commits stay in it and are ignored."""

    def __init__(self, path: Path, commit: str) -> None:
        self._path = path
        self._commit = commit
        found = _read(path) if path.exists() else ()
        self.lines = [line for line in found if line.commit == commit]

    def add(self, line: Line) -> None:
        """Record a line, with the commit and the time."""
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        line = replace(line, at=now, commit=self._commit)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(json.dumps(asdict(line)) + "\n")
        self.lines.append(line)

    def has(self, scale: str, peer: str, work: str, number: int) -> bool:
        """Return whether this was measured successfully."""
        slot = (scale, peer, work, number)
        return any(line.slot == slot and not line.trouble for line in self.lines)


def _read(path: Path) -> Iterator[Line]:
    for text in path.read_text().splitlines():
        # The last line of a killed run may be incomplete.
        try:
            raw: dict[str, Any] = json.loads(text)
        except json.JSONDecodeError:
            continue
        raw["latencies"] = {int(bucket): count for bucket, count in raw["latencies"].items()}
        yield Line(**raw)


def values(lines: Iterable[Line], peer: str, work: str, key: str) -> list[float]:
    """Return every value of a figure, over rounds and samples."""
    found: list[float] = []
    for line in lines:
        if line.peer == peer and line.work == work and not line.trouble:
            value = line.figures.get(key)
            found += value if isinstance(value, list) else [] if value is None else [value]
    return found


def summary(lines: Iterable[Line], peer: str, work: str, key: str) -> Summary | None:
    """Return the minimum, median and maximum of a figure; None if it was never measured."""
    found = [value for value in values(lines, peer, work, key) if not math.isnan(value)]
    return Summary.of(found) if found else None


def latencies(lines: Iterable[Line], peer: str, work: str) -> dict[int, int]:
    """Return the latencies of all rounds combined."""
    return merged(line.latencies for line in lines if line.peer == peer and line.work == work)
