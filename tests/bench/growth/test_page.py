"""The page of growth: which commit and day it is of, and which steps are growth."""

from pathlib import Path

import pytest
from bench.report.results import Line

from bench.growth import page

COLUMNS = ("cpu_us", "rate", "p50_ms", "p99_ms", "idle_percent", "rss_mib", "failover_s", "start_s")


def line(work: int, cpu_us: float, *, failover_s: float = 0.2) -> Line:
    """Return a decade of topics."""
    figures: dict[str, float | list[float]] = dict.fromkeys(COLUMNS, 1.0)
    figures |= {"cpu_us": cpu_us, "failover_s": failover_s}
    at, commit = "2026-11-02T10:00:00Z", "c0ffee"
    return Line("full", "topics", str(work), 0, figures, at=at, commit=commit)


def written(path: Path, lines: list[Line]) -> str:
    page.write(path / "growth.md", lines)
    return (path / "growth.md").read_text()


def test_the_commit_and_the_day_are_those_of_the_lines(tmp_path: Path) -> None:
    """A page that is written a week later is of the same results."""
    assert "image (commit `c0ffee`, 2026-11-02)." in written(tmp_path, [line(10, 100.0)])


def test_a_part_of_the_decades_does_not_replace_the_page(tmp_path: Path) -> None:
    """A run of one dimension would drop the tables of all others."""
    before = written(tmp_path, [line(10, 100.0), line(1_000, 100.0)])

    with pytest.raises(ValueError, match="lose them: topics 1000"):
        page.write(tmp_path / "growth.md", [line(10, 90.0)])
    assert (tmp_path / "growth.md").read_text() == before
