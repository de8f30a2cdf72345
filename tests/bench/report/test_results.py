import re
from dataclasses import replace
from pathlib import Path

from bench.report.figures import Summary
from bench.report.origin import origin
from bench.report.results import Line, Results, latencies, summary, values


def untimed(results: Results) -> list[Line]:
    """Return the lines of a file without their times."""
    return [replace(line, at="", commit="") for line in results.lines]


def line(number: int, rate: float | list[float], trouble: str = "") -> Line:
    return Line("quick", "nats", "send", number, {"rate": rate}, {3: number}, 0.1, "", trouble)


def test_what_is_written_down_is_read_back(tmp_path: Path) -> None:
    """A later run reads every line of an earlier one unchanged."""
    path = tmp_path / "build" / "results.jsonl"
    written = Results(path, "c0ffee")
    written.add(line(0, 5.0))
    written.add(line(1, [1.0, 2.0]))

    assert untimed(Results(path, "c0ffee")) == [line(0, 5.0), line(1, [1.0, 2.0])]


def test_half_a_line_is_as_none(tmp_path: Path) -> None:
    """A run that is killed during a write loses only that line."""
    path = tmp_path / "results.jsonl"
    Results(path, "c0ffee").add(line(0, 5.0))
    with path.open("a") as file:
        file.write('{"scale": "quick", "peer"')

    assert untimed(Results(path, "c0ffee")) == [line(0, 5.0)]


def test_lines_of_another_commit_are_as_none(tmp_path: Path) -> None:
    """Results of older code are ignored, so that a page has one commit."""
    path = tmp_path / "results.jsonl"
    Results(path, "c0ffee").add(line(0, 5.0))
    newer = Results(path, "decade")

    assert not newer.has("quick", "nats", "send", 0)
    newer.add(line(0, 7.0))
    assert untimed(Results(path, "decade")) == [line(0, 7.0)]
    assert untimed(Results(path, "c0ffee")) == [line(0, 5.0)]


def test_a_line_says_when_and_of_which_commit_it_is(tmp_path: Path) -> None:
    """The writer adds both, so a page names the days of measuring and not that of writing."""
    results = Results(tmp_path / "results.jsonl", "c0ffee")
    results.add(line(0, 5.0))
    (found,) = results.lines

    assert origin([found]) == f"commit `c0ffee`, {found.at[:10]}"
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", found.at[:10])
    older = replace(found, at="2026-11-02T10:00:00Z", commit="decade")
    newer = replace(found, at="2026-11-03T10:00:00Z", commit="decade")
    assert origin([newer, older]) == "commit `decade`, 2026-11-02 to 2026-11-03"


def test_work_that_was_done_is_not_done_again_but_a_failure_is(tmp_path: Path) -> None:
    """A run continues where it was interrupted, and repeats failed work."""
    results = Results(tmp_path / "results.jsonl", "c0ffee")
    results.add(line(0, 5.0))
    results.add(line(1, 0.0, trouble="no leader"))

    assert results.has("quick", "nats", "send", 0)
    assert not results.has("quick", "nats", "send", 1)
    assert not results.has("full", "nats", "send", 0)


def test_samples_of_a_round_count_one_by_one() -> None:
    """Ten kills in one round count as much as ten rounds with one."""
    lines = [line(0, [1.0, 2.0, 9.0]), line(1, 4.0), line(2, 100.0, trouble="broken")]

    assert values(lines, "nats", "send", "rate") == [1.0, 2.0, 9.0, 4.0]
    assert summary(lines, "nats", "send", "rate") == Summary(1.0, 3.0, 9.0, 4)
    assert summary(lines, "nats", "send", "p50_ms") is None


def test_a_value_that_is_no_number_is_left_out() -> None:
    """A percentile without values must not spoil the median."""
    lines = [line(0, float("nan")), line(1, 4.0)]

    assert summary(lines, "nats", "send", "rate") == Summary(4.0, 4.0, 4.0, 1)


def test_latencies_of_all_rounds_are_one_distribution() -> None:
    """Counts of the same bucket are added over all rounds."""
    assert latencies([line(1, 1.0), line(2, 1.0)], "nats", "send") == {3: 3}
