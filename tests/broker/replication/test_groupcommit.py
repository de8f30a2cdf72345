"""The wait for company: never long, never short of its minimum, and as long as this machine needs for an entry."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.replication.groupcommit import (
    ENTRY_MAX_S,
    LINGER_COUNT_MAX,
    LINGER_MIN_S,
    LINGER_PART,
    GroupCommit,
)

ELAPSED = st.floats(0.0, 1e6)


def after(*elapsed: float) -> GroupCommit:
    group_commit = GroupCommit()
    for each in elapsed:
        group_commit.ended(each)
    return group_commit


@given(st.lists(ELAPSED))
def test_the_wait_stays_within_its_bounds_whatever_was_measured(elapsed: list[float]) -> None:
    assert LINGER_MIN_S <= after(*elapsed).limit_s <= ENTRY_MAX_S


@given(st.lists(ELAPSED, max_size=20), st.floats(LINGER_MIN_S / LINGER_PART, ENTRY_MAX_S))
def test_the_wait_becomes_a_part_of_what_an_entry_takes(before: list[float], takes: float) -> None:
    group_commit = after(*before, *[takes] * 60)
    assert abs(group_commit.limit_s - takes * LINGER_PART) < 0.01 * takes + 1e-5


def test_one_entry_that_hung_is_forgotten_after_a_few() -> None:
    assert after(*[0.004] * 60, 30.0, *[0.004] * 20).limit_s < 0.0042


@given(st.floats(0.0, 1e9), st.integers(1, LINGER_COUNT_MAX - 1), st.lists(ELAPSED, max_size=5))
def test_few_wait_from_the_beginning_of_an_entry_to_the_limit(
    began: float, few: int, elapsed: list[float]
) -> None:
    group_commit = after(*elapsed)
    group_commit.began(began)
    assert group_commit.lingers(few, began)
    assert not group_commit.lingers(few, began + 2 * ENTRY_MAX_S)


def test_many_do_not_wait() -> None:
    group_commit = GroupCommit()
    group_commit.began(1.0)
    assert group_commit.lingers(LINGER_COUNT_MAX - 1, 1.0)
    assert not group_commit.lingers(LINGER_COUNT_MAX, 1.0)
