"""The table of ordinary Python builds."""

import pytest
from bench.pythons import AbsentError, Run, _do, section, table
from bench.sends import Round, medians

WORKS = {
    "sends, 1 in flight, 1024 B": {"rate": 900.0, "p50_ms": 1.0, "p99_ms": 3.5, "cpu_us": 950.0},
    "sends, 64 in flight, 1024 B": {"rate": 11_700.0, "p50_ms": 5.0, "p99_ms": 9.0, "cpu_us": 95.0},
    "drain by 1": {"rate": 150_000.0},
}


def test_each_python_has_a_row_from_the_sources_and_one_compiled() -> None:
    runs = [
        Run("the distribution", "3.11.2, GCC 12", False, WORKS),
        Run("the distribution", "3.11.2, GCC 12", True, {"drain by 1": {"rate": 170_000.0}}),
    ]

    _, _, *rows = table(runs, {"uv": "uv is not installed"})

    assert rows == [
        "| the distribution | 3.11.2, GCC 12 | sources | 1.00 | 3.50 | 11,700 | 95.0 | 150,000 |",
        "| the distribution | 3.11.2, GCC 12 | compiled | - | - | - | - | 170,000 |",
        "",
        "* uv is left out: uv is not installed.",
    ]


def test_the_section_names_the_commit() -> None:
    assert "two short rounds; c0ffee." in section([], {}, "c0ffee")


def test_what_a_python_says_is_what_the_table_reads() -> None:
    """A drain has no latencies, and no zeroes in their place."""
    sends = [Round(1.0, 2.0, 3.0, 4.0), Round(3.0, 4.0, 5.0, 6.0)]

    assert medians({"sends": sends, "drain": [Round(7.0)]}) == {
        "sends": {"rate": 2.0, "p50_ms": 3.0, "p99_ms": 4.0, "cpu_us": 5.0},
        "drain": {"rate": 7.0},
    }


def test_a_command_that_fails_says_its_last_word() -> None:
    """A mirror that cannot be reached becomes a line below the table, and the run continues."""
    with pytest.raises(AbsentError, match=r"^`sh -c .*` failed: no such mirror$"):
        _do(["sh", "-c", "echo no such mirror >&2; exit 1"])
