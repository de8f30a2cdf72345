"""
Which tests take their turn in a run that is too short for all of them.

ORDERLYMQ_TURN is `K/N`: of what is selected otherwise, the run plays each N-th unit, from the K-th on (0 is the first). The runs
0/N to N-1/N together play everything once. A unit is a module, whose tests may share what takes
long to start; where they share nothing and take minutes it is one test. Without the variable everything is played.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable

import pytest


def turn_of(text: str) -> tuple[int, int]:
    """Return K and N of `K/N`.

    Raises:
        ValueError: It is not of this form, or K is not below N.
    """
    first, _, count = text.partition("/")
    turn = int(first), int(count)
    if not 0 <= turn[0] < turn[1]:
        raise ValueError(f"ORDERLYMQ_TURN is K/N with K from 0 to N - 1, not {text}")
    return turn


def chosen(units: Iterable[str], turn: tuple[int, int]) -> frozenset[str]:
    """Return the units of this turn, where *units* has each as often as it has tests: the turns get large ones alike."""
    first, count = turn
    tests = Counter(units)
    return frozenset(sorted(tests, key=lambda unit: (-tests[unit], unit))[first::count])


def take(
    config: pytest.Config, items: list[pytest.Item], unit: Callable[[pytest.Item], str]
) -> None:
    """Leave only the tests of this turn in *items*."""
    turn = os.environ.get("ORDERLYMQ_TURN")
    if not turn:
        return
    played = chosen(map(unit, items), turn_of(turn))
    config.hook.pytest_deselected(items=[item for item in items if unit(item) not in played])
    items[:] = [item for item in items if unit(item) in played]
