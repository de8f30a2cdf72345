"""The error budget counts the probes of the last 30 days."""

from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.canary.budget import WINDOW_MIN, Budget


@given(
    st.lists(st.tuples(st.integers(0, 3 * WINDOW_MIN * 60), st.booleans())).map(sorted),
    st.integers(1, WINDOW_MIN),
)
def test_it_counts_what_a_list_of_all_probes_would(
    probes: list[tuple[int, bool]], minutes: int
) -> None:
    """Law: the budget equals the counts over a list of all probes."""
    budget = Budget(0.99)
    for at, is_good in probes:
        budget.count(at, is_good=is_good)
    if not probes:
        assert (budget.left, budget.burn(0, minutes)) == (1.0, 0.0)
        return
    now = probes[-1][0] // 60
    kept = [is_good for at, is_good in probes if now - at // 60 < WINDOW_MIN]
    short = [is_good for at, is_good in probes if now - at // 60 < minutes]

    assert (budget.good, budget.bad) == (kept.count(True), kept.count(False))
    assert abs(budget.burn(now * 60, minutes) - short.count(False) / len(short) / (1 - 0.99)) < 1e-9
