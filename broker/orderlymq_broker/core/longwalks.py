"""
Walks over everything that a leader knows of: members, leases.

The rule: a walk looks at some items at a time, because there may be a hundred thousand, and others elect a leader that is silent
for a fifth of a second; a walk ends with the leadership under which it began. An item that is changed meanwhile is judged as it is then.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from orderlymq_broker.core.effects import Effect, Later, Now
from orderlymq_broker.core.requestcontext import Context

# What is looked at before others have their turn, at some 1 to 5 us each.
WALK_STEP_MAX: Final = 2_048

T = TypeVar("T")

# Judges some items; what it returns is done before the others are looked at.
Judge: TypeAlias = Callable[[list[T], Now], list[Effect]]


def walk(context: Context, items: Iterator[T], judge: Judge[T], now: Now) -> list[Effect]:
    """Let *judge* look at all items, some now and the others in later turns; *items* outlives changes of what it goes over."""
    view = context.view

    def go_on(later: Now) -> list[Effect]:
        return walk(context, items, judge, later) if context.view is view else []

    some = list(islice(items, WALK_STEP_MAX))
    effects = judge(some, now)
    if len(some) == WALK_STEP_MAX:
        effects.append(Later(go_on))

    return effects
