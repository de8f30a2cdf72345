"""Law: the turns of a run together play every test once, and none twice."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.turns import chosen, turn_of


@given(st.lists(st.text()), st.integers(1, 5))
def test_all_turns_together_play_each_unit_once(units: list[str], count: int) -> None:
    played = [unit for first in range(count) for unit in chosen(units, (first, count))]
    assert sorted(played) == sorted(set(units))


@pytest.mark.parametrize("text", ["2/2", "-1/2", "0/0", "1", "", "a/b"])
def test_a_turn_that_does_not_exist_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"ORDERLYMQ_TURN|invalid literal"):
        turn_of(text)


def test_a_turn_is_read() -> None:
    assert turn_of("1/2") == (1, 2)
