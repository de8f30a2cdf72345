"""Walks of a leader over all its items, some at a time."""

from orderlymq_broker.core.effects import Effect, Now
from orderlymq_broker.core.longwalks import WALK_STEP_MAX, walk
from tests.broker.processors.driver import Shell


def test_all_items_are_looked_at_in_their_order_some_at_a_time(shell: Shell) -> None:
    """Law: all items are visited in order, some per step, so that others have their turn; each step gets the current time."""
    steps: list[tuple[int, Now]] = []
    seen: list[int] = []

    def judge(items: list[int], now: Now) -> list[Effect]:
        steps.append((len(items), now))
        seen.extend(items)
        return []

    first = shell.now
    shell.run(walk(shell.core.context, iter(range(2 * WALK_STEP_MAX + 1)), judge, first))
    assert steps == [(WALK_STEP_MAX, first)]
    shell.wall_ms += 7
    shell.settle()

    assert seen == list(range(2 * WALK_STEP_MAX + 1))
    assert steps[1:] == [(WALK_STEP_MAX, shell.now), (1, shell.now)]


def test_a_walk_ends_with_the_leadership(shell: Shell) -> None:
    """Law: a walk ends with the leadership, because its knowledge may be outdated; the next leadership begins its own."""
    seen: list[int] = []

    def judge(items: list[int], _: Now) -> list[Effect]:
        seen.extend(items)
        return []

    effects = walk(shell.core.context, iter(range(3 * WALK_STEP_MAX)), judge, shell.now)
    shell.follow()
    shell.lead()
    shell.run(effects)
    shell.settle()

    assert len(seen) == WALK_STEP_MAX
