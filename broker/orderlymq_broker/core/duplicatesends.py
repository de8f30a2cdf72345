"""
Repeats of sends: where the first one is, or will be.

The rule: a repeat has no outcome of its own; refused for certain while the first may still be stored, it would lie.
So it waits for the first and is answered as that one is. The window of known sends: ``state/send/duplicates.py``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from orderlymq_broker.core.effects import Effect
from orderlymq_broker.state.records import Append, Refused


class Place(NamedTuple):
    """Where a message is, as the answer to its sender says."""

    queue_id: int
    queue_offset: int
    physical: int


@dataclass(slots=True)
class PendingSend:
    """A send of a deduplicated topic on its way into the log.

    Attributes:
        outcome: where it is stored, or why it is not; None as long as nobody knows.
        waiters: what answers its repeats, once the outcome is known.
    """

    outcome: Append | Refused | None = None
    waiters: list[Callable[[], list[Effect]]] = field(default_factory=list)

    def end(self, outcome: Append | Refused) -> list[Effect]:
        """Note what became of the send; return the answers of those that waited for it."""
        self.outcome = outcome

        return [effect for answer in self.waiters for effect in answer()]


First: TypeAlias = PendingSend | Place


def when_known(firsts: Sequence[First], then: Callable[[], list[Effect]]) -> list[Effect]:
    """Return what *then* returns, or call it when the last of *firsts* has its outcome."""
    pending = {id(first): first for first in firsts if type(first) is PendingSend}

    def known() -> list[Effect]:
        return [] if any(first.outcome is None for first in pending.values()) else then()

    for first in pending.values():
        first.waiters.append(known)

    return [] if pending else then()
