import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_operator.plan.placement import order_text, parse_order_text, spread

_GROUPS = [f"demo-{index}" for index in range(12)]
_PRESENT = st.dictionaries(st.sampled_from(_GROUPS), st.integers(1, 40))


@given(st.integers(1, 200), st.integers(1, 12))
def test_queues_are_spread_evenly(queues: int, groups: int) -> None:
    """Law: queues are spread evenly: groups differ by at most one queue, and all queues are there."""
    layout = spread(queues, _GROUPS[:groups], {})

    counts = [layout.get(group, 0) for group in _GROUPS[:groups]]
    assert sum(counts) == queues
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 200), _PRESENT)
def test_queues_that_exist_stay_and_new_ones_fill_the_emptiest(
    queues: int, present: dict[str, int]
) -> None:
    """Law: existing queues stay and new ones go to the groups with the fewest."""
    layout = spread(queues, _GROUPS, present)

    assert all(layout[group] >= count for group, count in present.items())
    assert sum(layout.values()) == max(queues, sum(present.values()))


@given(st.integers(1, 200), _PRESENT)
def test_spreading_again_changes_nothing(queues: int, present: dict[str, int]) -> None:
    """Law: spreading a finished layout again changes nothing."""
    layout = spread(queues, _GROUPS, present)

    assert spread(queues, _GROUPS, layout) == layout


def test_eight_queues_on_three_groups_are_three_three_two() -> None:
    """Law: the remainder goes to the first groups: 8 queues on three groups are 3, 3 and 2."""
    assert spread(8, _GROUPS[:3], {}) == {"demo-0": 3, "demo-1": 3, "demo-2": 2}


@given(st.dictionaries(st.sampled_from(_GROUPS), st.integers(1, 1024), min_size=1))
def test_an_order_text_reads_back(layout: dict[str, int]) -> None:
    """Law: a layout that is written for the name server reads back the same."""
    assert parse_order_text(order_text(layout)) == layout


@pytest.mark.parametrize("text", ["demo-0", "demo-0:", ":4", "demo-0:x", "demo-0:-1"])
def test_a_foreign_order_text_is_an_error(text: str) -> None:
    """Law: an order text of a foreign form is an error, not a guess."""
    with pytest.raises(ValueError, match="not broker:queues"):
        parse_order_text(text)
