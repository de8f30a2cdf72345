"""Latencies in bounded memory: quantiles are right to one per cent."""

import math

from hypothesis import given
from hypothesis import strategies as st

from orderlymq.cli.bench.latencies import Latencies

SPANS = st.lists(st.floats(min_value=1e-6, max_value=1e3), min_size=1, max_size=50)


@given(spans=SPANS, share=st.sampled_from([0.5, 0.99, 0.999, 1.0]))
def test_a_quantile_is_that_of_the_sorted_spans(spans: list[float], share: float) -> None:
    """Law: a quantile is never below that of the sorted spans, and at most one per cent above."""
    latencies = Latencies()
    for span in spans:
        latencies.add(span)

    exact = 1e3 * sorted(spans)[math.ceil(share * len(spans)) - 1]
    found = latencies.quantile_ms(share)
    assert found is not None
    assert exact * 0.999999 <= found <= exact * 1.010001


def test_spans_of_several_seconds_are_counted_together() -> None:
    """Law: merged latencies equal those counted together; without spans there is no quantile."""
    first, second, all_of_them = Latencies(), Latencies(), Latencies()
    for number in range(1, 200):
        (first if number % 3 else second).add(number / 1e4)
        all_of_them.add(number / 1e4)
    first.take(second)

    assert first.shown() == all_of_them.shown()
    assert Latencies().shown() == {"p50": None, "p99": None, "p99.9": None, "max": None}
