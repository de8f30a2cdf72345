"""
The proposals that were put into the log and are not answered yet.

The rule: a proposal is answered when its outcome is certain and not before. It is certain when an
entry is *applied* at its index: with the same term the proposal was committed, with another one
it was overwritten and can never come back. A truncation alone proves nothing, for a third leader
may still restore what a second one has overwritten. Pure; ``loop.py`` asks it at every apply.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from orderlymq_broker.core.effects import Propose


@dataclass(frozen=True, slots=True)
class Committed:
    """The proposals of the entry that was just applied, in the order of their records."""

    proposals: tuple[Propose, ...]
    proposed_at: float


@dataclass(frozen=True, slots=True)
class _Pending:
    index: int
    term: int
    proposals: tuple[Propose, ...]
    proposed_at: float


class PendingProposals:
    """Pending proposals by (index, term).

    Invariant: indexes never fall along the queue, since a leader appends at the end of its log
    and a later term of the same replica begins behind what is committed or overwrites a tail
    whose proposals stay pending under their older term.
    """

    def __init__(self) -> None:
        self._pending: deque[_Pending] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self, index: int, term: int, proposals: Sequence[Propose], proposed_at: float = 0.0
    ) -> None:
        """Remember what the entry (*index*, *term*) carries."""
        entry = _Pending(index, term, tuple(proposals), proposed_at)
        self._count += len(entry.proposals)
        if self._pending and self._pending[-1].index >= index:
            # This replica led, lost its tail and leads again: both may be pending at one index.
            merged = sorted([*self._pending, entry], key=lambda pending: pending.index)
            self._pending = deque(merged)
        else:
            self._pending.append(entry)

    def settle(self, index: int, term: int) -> tuple[Committed | None, tuple[Propose, ...]]:
        """Note that the entry (*index*, *term*) is applied.

        Returns:
            What it carried, if it was proposed here, and the proposals that are now known to be
            lost.
        """
        pending = self._pending
        if not pending or pending[0].index > index:
            return None, ()

        committed: Committed | None = None
        lost: list[Propose] = []
        while pending and pending[0].index <= index:
            entry = pending.popleft()
            self._count -= len(entry.proposals)
            assert entry.index == index, (
                f"entry {entry.index} was passed over: the outcome of its proposals is unknown"
            )
            if entry.term == term:
                committed = Committed(entry.proposals, entry.proposed_at)
            else:
                lost.extend(entry.proposals)
        return committed, tuple(lost)

    def abandon(self) -> int:
        """Forget everything and return how many outcomes stay unknown.

        For a replica whose log is replaced by a snapshot: their outcome is not known there any more.
        """
        count = self._count
        self._pending.clear()
        self._count = 0
        return count
