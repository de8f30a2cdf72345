"""
Iterates over long tables of a leader, such as members and leases, a part at a time.

The rule: a walk handles a limited number of items in each part. There may be a hundred thousand, and a leader
that is silent for a fifth of a second is replaced. A walk ends with the leadership under which it began. An
item that changes meanwhile is judged by its state at its turn.
"""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final, TypeAlias, TypeVar

from orderlymq_broker.core.effects import CallSoon, Effect, Now
from orderlymq_broker.core.requestcontext import Context

# Items of one part, at some 1 to 5 us each.
WALK_STEP_MAX: Final = 2_048

T = TypeVar("T")

# Judges some items; its effects are performed before the next part.
Judge: TypeAlias = Callable[[list[T], Now], list[Effect]]


def walk(context: Context, items: Iterator[T], judge: Judge[T], now: Now) -> list[Effect]:
    """Pass all items to *judge*, some now and the rest in later iterations; *items* must survive changes of its table."""
    view = context.view

    def go_on(later: Now) -> list[Effect]:
        return walk(context, items, judge, later) if context.view is view else []

    some = list(islice(items, WALK_STEP_MAX))
    effects = judge(some, now)
    if len(some) == WALK_STEP_MAX:
        effects.append(CallSoon(go_on))

    return effects
