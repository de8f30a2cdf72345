"""Token buckets, in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.core.quotas import Bucket


@given(
    rate=st.integers(1, 10_000),
    requests=st.lists(
        st.tuples(st.integers(0, 5_000), st.integers(1, 50_000)), min_size=1, max_size=200
    ),
)
def test_what_passes_is_the_rate_one_second_ahead_and_one_last_request(
    rate: int, requests: list[tuple[int, int]]
) -> None:
    """Law: for any sizes and pauses, at most (t + 1) * rate tokens and the last request pass within t seconds."""
    bucket, now_ms = Bucket(rate, 0), 0
    passed = 0

    for pause_ms, tokens in requests:
        now_ms += pause_ms
        if bucket.has_more_than(0, now_ms):
            assert passed <= (now_ms / 1000 + 1) * rate + 1e-3
            bucket.take(tokens)
            passed += tokens


@pytest.mark.parametrize("debt", [1, 10, 12_345])
def test_after_the_wait_there_is_a_token_and_not_long_before(debt: int) -> None:
    bucket = Bucket(10, 0)
    bucket.take(10 + debt)

    wait_ms = bucket.wait_ms(0)

    assert wait_ms == debt * 100 + 1
    assert not bucket.has_more_than(0, wait_ms - 2)
    assert bucket.has_more_than(0, wait_ms)


def test_a_clock_that_goes_back_gives_nothing_twice() -> None:
    bucket = Bucket(10, 1_000)
    bucket.take(10)

    assert not bucket.has_more_than(0, 500)
    assert not bucket.has_more_than(0, 1_000)
    assert bucket.has_more_than(0, 1_100)
