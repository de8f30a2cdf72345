"""The page of growth: its commit and day, and the steps that count as growth."""

from dataclasses import replace
from pathlib import Path

import pytest
from bench.report.results import Line

from bench.growth import page

COLUMNS = ("cpu_us", "rate", "p50_ms", "p99_ms", "idle_percent", "rss_mib", "failover_s", "start_s")


def line(work: int, cpu_us: float, *, failover_s: float = 0.2) -> Line:
    """Return the result line of a decade of topics."""
    figures: dict[str, float | list[float]] = dict.fromkeys(COLUMNS, 1.0)
    figures |= {"cpu_us": cpu_us, "failover_s": failover_s}
    at, commit = "2026-11-02T10:00:00Z", "c0ffee"
    return Line("full", "topics", str(work), 0, figures, at=at, commit=commit)


def written(path: Path, lines: list[Line]) -> str:
    path.mkdir(exist_ok=True)
    page.write(path / "growth.md", lines)
    return (path / "growth.md").read_text()


def test_the_commit_and_the_day_are_those_of_the_lines(tmp_path: Path) -> None:
    """A page that is written a week later names the day of the measurement."""
    assert "image (commit `c0ffee`, 2026-11-02)." in written(tmp_path, [line(10, 100.0)])


def test_a_part_of_the_decades_does_not_replace_the_page(tmp_path: Path) -> None:
    """A run of one dimension would remove the tables of all others."""
    before = written(tmp_path, [line(10, 100.0), line(1_000, 100.0)])

    with pytest.raises(ValueError, match="lose them: topics 1000"):
        page.write(tmp_path / "growth.md", [line(10, 90.0)])
    assert (tmp_path / "growth.md").read_text() == before


def test_a_step_that_the_next_decade_takes_back_is_noise_and_any_other_is_growth(
    tmp_path: Path,
) -> None:
    """Each decade is measured once, so only the next decade can show that a step was noise; the last step counts."""
    costs = {10: 100.0, 100: 130.0, 1_000: 105.0, 10_000: 120.0, 100_000: 125.0, 1_000_000: 140.0}
    lines = [line(*each) for each in costs.items()]
    text = written(tmp_path, lines)

    assert list(page.verdicts(lines)) == [
        "Topics of four queues: **1.14x from 1,000 to 10,000**, **1.12x from 100,000 to 1,000,000**; taken back: 1.30x"
        " from 10 to 100; 100 µs per message at 10, 140 µs at 1,000,000."
    ]
    assert "| 100 | 130 (1.30x, taken back) |" in text
    assert "| 1,000 | 105 |" in text
    assert "| 10,000 | **120 (1.14x)** |" in text
    assert "| 100,000 | 125 |" in text
    assert "| 1,000,000 | **140 (1.12x)** |" in text


def test_dimensions_that_grow_come_before_flat_ones() -> None:
    """A large step that the next decade reverses does not push growth down the page."""
    flat = [
        replace(line(work, cost), peer="keys")
        for work, cost in ((10, 1.0), (100, 9.0), (1_000, 1.0))
    ]

    found = list(page.verdicts([*flat, line(10, 100.0), line(100, 112.0)]))

    assert [text.partition(":")[0] for text in found] == [
        "Topics of four queues",
        "Sharding keys in use",
    ]
    assert found[1].startswith("Sharding keys in use: flat; taken back: 9.00x from 10 to 100;")


def test_kills_that_took_longer_than_the_aim_are_named(tmp_path: Path) -> None:
    """The terms are named if they were recorded: more than one means an election without a result."""
    slow = line(1_000, 100.0, failover_s=0.39)
    slow.figures["terms"] = 2.0
    lines = [line(10, 100.0), line(100, 100.0, failover_s=0.42), slow]

    assert "Kills above 0.25 s: 0.42 s at 100, 0.39 s at 1,000 (2 terms)." in written(
        tmp_path, lines
    )
    assert "Kills above" not in written(tmp_path / "other", lines[:1])
