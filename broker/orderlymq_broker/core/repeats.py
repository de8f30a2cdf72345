"""
Repeats of pending requests: sends, messages that are sent back, ends of transactions.

The rules: a repeat has no outcome of its own. It waits for the outcome of the first request and gets the same
answer. As many repeats may wait as changes; a further repeat is refused, which says only that this try stores
nothing. All outcomes may become known in one turn, so the repeats are answered step by step.
``uncommitted.py`` has the known sends.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from orderlymq_broker.core.capacity import check_backlog
from orderlymq_broker.core.effects import CallSoon, Effect, Now
from orderlymq_broker.core.requestcontext import Context
from orderlymq_broker.core.uncommitted import KnownSend, LeaderView, PendingSend

# Messages whose repeats are answered before timers and other clients have their turn, at some 10 us each.
ANSWERED_MAX: Final = 1_024


def when_known(
    context: Context, firsts: Sequence[KnownSend], then: Callable[[], list[Effect]]
) -> list[Effect]:
    """Return the effects of *then*, or call it later when the last of *firsts* has its outcome.

    Raises:
        RequestRefused: it would have to wait, and too many requests do (2).
    """
    pending = {
        id(first): first for first in firsts if type(first) is PendingSend and first.outcome is None
    }
    if not pending:
        return then()
    view, count, left = context.view, len(firsts), len(pending)
    wait(context, count)

    def known() -> list[Effect]:
        nonlocal left
        left -= 1

        return [] if left else answer_soon(view, count, then)

    for first in pending.values():
        first.waiters.append(known)

    return []


def wait(context: Context, count: int = 1) -> None:
    """Count a repeat of *count* messages that has to wait, until ``answer_soon``.

    Raises:
        RequestRefused: too many requests wait (2).
    """
    check_backlog(context, context.view.repeats + count)
    context.view.repeats += count


def answer_soon(view: LeaderView, count: int, then: Callable[[], list[Effect]]) -> list[Effect]:
    """Queue a repeat that has waited, to be answered by *then* after those queued before."""
    view.answering.append((count, then))

    return [CallSoon(partial(_answer_some, view))] if len(view.answering) == 1 else []


def _answer_some(view: LeaderView, _: Now) -> list[Effect]:
    effects: list[Effect] = []
    room = ANSWERED_MAX
    while view.answering and room > 0:
        count, then = view.answering.popleft()
        room -= count
        view.repeats -= count
        effects += then()
    if view.answering:
        effects.append(CallSoon(partial(_answer_some, view)))

    return effects
