"""
Whether a leader may answer: by its lease, or because a majority has confirmed it since it was asked.

The lease costs nothing and needs round trips well below the election time-out. Without it a request
waits for one round of heartbeats that left after the request came (thesis 6.4, `reads.py`). The rule:
one round confirms everything that came before it left, and there is at most one round under way
besides those of each tick, so that waiting requests cost no more than heartbeats do. ``loop.py``
drives it; ``server/router.py`` holds the requests back.
"""

from collections.abc import Iterable

from orderlymq_raft import Node
from orderlymq_raft.types import ReadState


class LeaderLease:
    """The lease of a leader, and the confirmations that stand in for it: the right to answer, as far as this replica knows.

    Confirmations have rising numbers. Invariant: number n is confirmed only by a round of heartbeats
    that left after `ask` returned n for the last time.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        # The last confirmation that was asked for, and the first that may still be joined.
        self._asked = 0
        self._is_open = False
        self._is_wanted = False
        self._confirmed = 0
        # Numbers up to here were asked in a term that is over: nobody answers them.
        self._dropped = 0
        # The lease is suspended until this confirmation.
        self._suspended = 0

    @property
    def is_valid(self) -> bool:
        """Return whether an answer given now needs no confirmation."""
        return self._suspended <= self._confirmed and self._node.lease_valid

    def is_confirmed(self, number: int) -> bool:
        """Return whether a majority has confirmed what got *number* from `ask`."""
        return self._node.is_leader and number <= self._confirmed

    def ask(self) -> int:
        """Return the number of the confirmation that serves everything that is here by now."""
        if self._is_open:
            return self._asked
        if self._asked > max(self._confirmed, self._dropped):
            # A round is under way and left too early for this; the next leaves with the next tick.
            self._is_wanted = True
            return self._asked + 1
        return self._begin()

    def suspend(self) -> None:
        """Suspend the lease until a majority has confirmed this leader again."""
        if self._node.is_leader:
            self._suspended = self._asked if self._is_open else self._begin()

    def tick(self) -> None:
        """Begin the round that is wanted."""
        if self._is_wanted:
            self._begin()

    def round_left(self) -> None:
        """Note that the messages of a Ready have left, heartbeats among them."""
        self._is_open = False

    def confirm(self, reads: Iterable[ReadState]) -> bool:
        """Take over the confirmation of a majority; return whether it is new."""
        before = self._confirmed
        for read in reads:
            self._confirmed = max(self._confirmed, read.context)
        return self._confirmed > before

    def reset(self) -> None:
        """Begin again in another role or term."""
        self._dropped = self._asked
        self._suspended = 0
        self._is_open = self._is_wanted = False

    def _begin(self) -> int:
        self._is_wanted = False
        self._asked += 1
        if self._node.is_leader:
            self._is_open = True
            self._node.read_index(self._asked)
        return self._asked
