"""The comparison by key: the results of a steady load, and the rows in which another system is better."""

from dataclasses import replace

from bench.handled import Done
from bench.report.keytable import Row, Steady, behind, table

SECOND = 1_000_000_000
CALM = Steady(sent=100, handled=100, p99_ms=12.0, pause_s=0.1, still_s=0.0)
OURS = Row("disk", "Ours", 1.0, 1_000, 1_000, 5_000.0, 60.0, 0, 0, CALM, CALM)


def handled(number: int) -> list[Done]:
    """Return messages that are sent every 10 ms, and whose handling takes 10 ms."""
    step = SECOND // 100
    return [Done("a", each, each * step, each * step, (each + 1) * step) for each in range(number)]


def test_a_load_of_which_all_was_handled_has_a_delay() -> None:
    found = Steady.of(handled(100), 100, 0, 2 * SECOND)

    assert found == Steady(100, 100, 10.0, 0.01, 1.0)
    assert str(found) == "10.0 ms"


def test_a_load_that_was_left_says_whether_it_moved_until_the_end() -> None:
    assert str(Steady.of(handled(100), 2_000, 0, 2 * SECOND)) == (
        "falls behind: 100 of 2,000 handled"
    )
    assert str(Steady.of(handled(100), 2_000, 0, 9 * SECOND)) == (
        "stands still: 100 of 2,000 handled"
    )
    assert str(Steady.of([], 2_000, 0, 9 * SECOND)) == "stands still: 0 of 2,000 handled"


def test_lines_in_which_another_is_ahead_come_widest_gap_first() -> None:
    theirs = replace(OURS, title="Theirs", rate=6_000.0, cpu_us=20.0, first_s=3.0)

    assert list(behind(OURS, [theirs])) == [
        "* CPU per message, µs: Theirs 20.0, ours 60.0",
        "* messages/s: Theirs 6,000, ours 5,000",
    ]


def test_who_did_not_handle_everything_has_no_delay_to_compare() -> None:
    stuck = replace(CALM, handled=3, p99_ms=1.0)
    theirs = replace(OURS, handled=90, rate=96.0, cpu_us=900.0, healthy=stuck, poisoned=stuck)

    assert list(behind(OURS, [theirs])) == []


def test_a_system_that_repeats_nothing_is_ahead_of_one_that_does() -> None:
    assert list(behind(replace(OURS, repeats=3), [OURS])) == [
        "* delivered again: Ours 0.00, ours 3.00"
    ]


def test_a_row_says_how_long_healthy_keys_waited() -> None:
    stuck = Steady(sent=100, handled=3, p99_ms=1.0, pause_s=0.2, still_s=12.0)

    *_, calm, bad = table([OURS, replace(OURS, title="Theirs", handled=5, poisoned=stuck)])

    assert calm == "| disk | Ours | 5,000 | 60 | 1.00 | 0 | 0 | 12.0 ms | 12.0 ms | 0.10 |"
    assert bad == (
        "| disk | Theirs | 5,000 (5 handled) | 60 | 1.00 | 0 | 0 | 12.0 ms | stands still: 3 of 100 handled"
        " | 12.0, to the end |"
    )
