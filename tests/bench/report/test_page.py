from dataclasses import replace
from pathlib import Path

import pytest
from bench.execution import divided
from bench.peers.catalogue import PEERS
from bench.report.results import Line, Results
from bench.works import FULL, QUICK

from bench.report import page

RATES = {
    "orderlymq": 12_000.0,
    "nats-always": 6_000.0,
    "orderlymq-async": 15_000.0,
    "nats": 20_000.0,
}


def results(path: Path) -> Results:
    found = Results(path, "c0ffee")
    for peer, rate in RATES.items():
        for number, factor in enumerate((0.5, 1.0, 1.5)):
            figures: dict[str, float | list[float]] = {"rate": rate * factor, "p50_ms": 4.0}
            found.add(Line("quick", peer, "send-64-1024", number, figures, {2000: 5}))
    figures = {"rate": 48_000.0, "p50_ms": 0.4}
    found.add(Line("quick", "limits", "limit-rocksdict-64", 0, figures))
    found.add(Line("quick", "nats", "takeover", 0, {}, trouble="nobody took over\nits log"))
    return found


def test_ratios_stay_inside_a_class_and_the_mixed_one_says_so(tmp_path: Path) -> None:
    """Results on disk are compared with others on disk; a comparison with results in memory is in the column "mixed"."""
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "--quick")
    text = (tmp_path / "benchmarks.md").read_text()

    rows = {
        row.split(" | ")[1]: row
        for row in text.splitlines()
        if row.startswith(("| disk", "| memory"))
    }
    p50 = "4.00 / **4.00** / 4.00"
    assert rows == {
        "OrderlyMQ": f"| disk | OrderlyMQ | 3 | 6,000 / **12,000** / 18,000 | 1 | {p50} | 1 | - |",
        "NATS JetStream 2.15.3, sync always": (
            "| disk | NATS JetStream 2.15.3, sync always "
            f"| 3 | 3,000 / **6,000** / 9,000 | 2.00 | {p50} | 1.00 | - |"
        ),
        "OrderlyMQ, ASYNC_FLUSH, compiled as in the image": (
            "| memory | OrderlyMQ, ASYNC_FLUSH, compiled as in the image "
            f"| 3 | 7,500 / **15,000** / 22,500 | 1 | {p50} | 1 | 0.80 |"
        ),
        "NATS JetStream 2.15.3": (
            "| memory | NATS JetStream 2.15.3 "
            f"| 3 | 10,000 / **20,000** / 30,000 | 0.75 | {p50} | 1.00 | 0.60 |"
        ),
    }


def test_ratios_are_of_the_compiled_copy_where_it_was_measured(tmp_path: Path) -> None:
    """The image contains the compiled copy; work that was measured only from the sources is compared by these."""
    found = results(tmp_path / "results.jsonl")
    for peer, work in (("orderlymq-compiled", "send-64-1024"), ("orderlymq", "send-1-1024")):
        found.add(Line("quick", peer, work, 0, {"rate": 15_000.0, "p50_ms": 4.0}))
    found.add(Line("quick", "nats-always", "send-1-1024", 0, {"rate": 5_000.0, "p50_ms": 4.0}))
    page.write(tmp_path / "benchmarks.md", found, "quick", "")
    text = (tmp_path / "benchmarks.md").read_text()

    assert "always | 3 | 3,000 / **6,000** / 9,000 | 2.50 |" in text
    assert "always | 1 | **5,000** | 3.00 |" in text
    assert "0.400 | 31% |" in text


def test_every_peer_has_a_colour_of_its_own() -> None:
    from bench.report.plots import COLOURS  # noqa: PLC0415 every worker would load matplotlib

    assert len({COLOURS[name] for name in PEERS}) == len(PEERS)


def test_our_share_of_a_limit_is_reported(tmp_path: Path) -> None:
    """64 senders are compared with batches of 64 of the bare store."""
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "")
    text = (tmp_path / "benchmarks.md").read_text()

    assert "| 1 | **48,000** | 0.400 | 25% |" in text


def test_the_commit_and_the_day_of_the_results_are_on_the_page(tmp_path: Path) -> None:
    """The page names the day of the measurement, not that of writing the page."""
    found = results(tmp_path / "results.jsonl")
    found.lines = [replace(line, at="2026-11-02T10:00:00Z") for line in found.lines]
    page.write(tmp_path / "benchmarks.md", found, "quick", "--quick")

    conditions = (tmp_path / "benchmarks.md").read_text()
    assert "* Measured: commit `c0ffee`, 2026-11-02.\n" in conditions
    assert "* Last command: `python -m bench.compare --quick`.\n" in conditions


def test_a_part_of_the_works_does_not_replace_the_page(tmp_path: Path) -> None:
    """Other tables, which other pages quote, would be lost; a newer version of a system counts as the same system."""
    path = tmp_path / "benchmarks.md"
    page.write(path, results(tmp_path / "results.jsonl"), "quick", "")
    path.write_text(path.read_text().replace("NATS JetStream 2.15.3 |", "NATS JetStream 2.9 |"))
    before = path.read_text()
    part = Results(tmp_path / "part.jsonl", "c0ffee")
    for name in ("orderlymq", "orderlymq-async", "nats-always"):
        part.add(Line("quick", name, "send-64-1024", 0, {"rate": 1.0, "p50_ms": 4.0}))

    assert page.lacking(path, page.measured(part.lines)) == [
        "limit-rocksdict-64 of limits",
        "send-64-1024 of nats",
    ]
    with pytest.raises(ValueError, match="lose them: limit-rocksdict-64 of limits, send-64-1024"):
        page.write(path, part, "quick", "")
    assert path.read_text() == before


def test_the_page_begins_with_where_ours_is_behind(tmp_path: Path) -> None:
    """The rows in which ours is slower come before the pictures."""
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "")
    text = (tmp_path / "benchmarks.md").read_text()

    assert (
        text.index("Our figures against their aims")
        < text.index("* 64 senders, messages/s: NATS")
        < text.index("![")
    )


def test_what_failed_is_on_the_page(tmp_path: Path) -> None:
    """A failed measurement has a line on the page."""
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "")

    assert (
        "* nats, takeover, round 0: nobody took over\n" in (tmp_path / "benchmarks.md").read_text()
    )


def test_every_picture_on_the_page_is_there(tmp_path: Path) -> None:
    """All shown pictures exist, and the same results give the same pictures."""
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "")
    first = {path.name: path.read_bytes() for path in (tmp_path / "benchmarks").iterdir()}
    page.write(tmp_path / "benchmarks.md", results(tmp_path / "results.jsonl"), "quick", "")

    assert first == {path.name: path.read_bytes() for path in (tmp_path / "benchmarks").iterdir()}
    assert all(f"(benchmarks/{name})" in (tmp_path / "benchmarks.md").read_text() for name in first)
    assert "rates.svg" in first


def test_rounds_of_another_size_are_not_rounds_of_the_same() -> None:
    """A scaled run has another name, so that its results are kept apart."""
    assert page.scaled(FULL, None, None, None) == FULL
    scaled = page.scaled(QUICK, 500, None, 1.5)
    assert (scaled.name, scaled.stored, scaled.seconds) == (
        "quick stored=500 seconds=1.5",
        500,
        1.5,
    )


def test_queues_are_divided_when_each_has_one_member_and_shares_are_even() -> None:
    """A consumer group counts as settled when each queue has exactly one holder and no member is idle."""
    assert divided([[0, 1, 2, 3], [4, 5, 6, 7]], 2)
    assert not divided([[0, 1, 2, 3, 4, 5, 6, 7], []], 2)
    assert not divided([[0, 1, 2, 3], [3, 4, 5, 6, 7]], 2)
    assert not divided([[0, 1, 2], [4, 5, 6]], 2)
