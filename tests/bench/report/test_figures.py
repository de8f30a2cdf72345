import math
import random

import pytest
from bench.report.figures import (
    PER_OCTAVE,
    Summary,
    advantage,
    distribution,
    merged,
    milliseconds,
    percentile,
    shown,
)
from hypothesis import given
from hypothesis import strategies as st

DURATIONS = st.lists(st.integers(min_value=1_000, max_value=10**11), min_size=1, max_size=300)


def bucket_of(nanoseconds: int) -> int:
    """Return the bucket as Latencies.java computes it."""
    return int(math.log(nanoseconds) / math.log(2) * PER_OCTAVE)


def counted(durations: list[int]) -> dict[int, int]:
    return merged({bucket_of(each): 1} for each in durations)


@given(DURATIONS, st.sampled_from([0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_percentile_is_that_of_the_sorted_list_to_half_a_bucket(
    durations: list[int], part: float
) -> None:
    """A simple model sorts all durations; buckets of 0.7 % cause an error of at most half of that."""
    exact = sorted(durations)[max(0, math.ceil(part * len(durations)) - 1)] / 1e6

    assert percentile(counted(durations), part) == pytest.approx(exact, rel=0.0036)


def test_nothing_has_no_percentile() -> None:
    """Without durations there is no percentile."""
    assert math.isnan(percentile({}, 0.5))


def test_a_bucket_is_named_by_its_middle() -> None:
    """A bucket from 2**20 ns on is 0.7 % wide; its middle is half of that above its beginning."""
    assert milliseconds(20 * PER_OCTAVE) == pytest.approx(2**20 / 1e6 * 2 ** (0.5 / PER_OCTAVE))


def test_rounds_merge_by_adding_their_counts() -> None:
    """The percentile of two rounds is that of all their sends, and not the mean of two percentiles."""
    assert merged([{1: 2, 5: 1}, {5: 3}]) == {1: 2, 5: 4}


@given(DURATIONS)
def test_the_tail_falls_to_nothing(durations: list[int]) -> None:
    """The share of slower sends never rises with the time, and is 0 at the slowest send."""
    parts = [part for _, part in distribution(counted(durations))]

    assert parts == sorted(parts, reverse=True)
    assert parts[-1] == 0.0


def test_a_summary_is_the_extremes_and_the_median() -> None:
    """One slow round changes the minimum but not the median."""
    values = [float(each) for each in range(1, 10)]
    random.Random(1).shuffle(values)

    assert Summary.of([0.1, *values[1:], values[0]]) == Summary(0.1, 4.5, 9.0, 10)


def test_an_advantage_is_above_one_where_we_are_ahead() -> None:
    """More messages per second are better, and so are fewer milliseconds; both ratios read the same way."""
    assert advantage(200.0, 100.0, more_is_better=True) == 2.0
    assert advantage(1.0, 3.0, more_is_better=False) == 3.0
    assert advantage(1.0, 0.0, more_is_better=True) is None
    assert advantage(0.0, 1.0, more_is_better=False) is None


def test_figures_are_written_with_the_digits_they_deserve() -> None:
    """Figures have three significant digits, and separators between thousands."""
    assert [shown(each) for each in (15074.4, 87.31, 0.912, float("nan"))] == [
        "15,074",
        "87.3",
        "0.91",
        "-",
    ]
