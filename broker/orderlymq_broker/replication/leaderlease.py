"""
Decides whether a leader may answer: by its lease, or because a majority has confirmed it since the request arrived.

The lease costs nothing and needs round trips well below the election time-out. Without it a request waits for
one round of heartbeats sent after the request arrived (thesis 6.4, `reads.py`). The rule: one round confirms
all requests that arrived before it was sent. In addition to the rounds of each tick at most one round is
under way, so that waiting requests cost no more than heartbeats do. ``loop.py`` drives it;
``server/router.py`` holds the requests back.
"""

from collections.abc import Iterable

from orderlymq_raft import Node
from orderlymq_raft.types import ReadState


class LeaderLease:
    """The right of a leader to answer, as far as this replica knows: its lease, and the confirmations that replace it.

    Confirmations have rising numbers. Invariant: number n is confirmed only by a round of heartbeats that was
    sent after `ask` returned n for the last time.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        # The last confirmation that was requested, and whether later requests may still join it.
        self._asked = 0
        self._is_open = False
        self._is_wanted = False
        self._confirmed = 0
        # Numbers up to here were requested in an earlier term, so they are never answered.
        self._dropped = 0
        # The lease is suspended until this confirmation.
        self._suspended = 0

    @property
    def is_valid(self) -> bool:
        """Return whether an answer given now needs no confirmation."""
        return self._suspended <= self._confirmed and self._node.lease_valid

    def is_confirmed(self, number: int) -> bool:
        """Return whether a majority has confirmed the requests that got *number* from `ask`."""
        return self._node.is_leader and number <= self._confirmed

    def ask(self) -> int:
        """Return the number of the confirmation that covers all requests that have arrived so far."""
        if self._is_open:
            return self._asked
        if self._asked > max(self._confirmed, self._dropped):
            # A round is under way that was sent too early for this request; the next one is sent at the next
            # tick.
            self._is_wanted = True
            return self._asked + 1
        return self._begin()

    def suspend(self) -> None:
        """Suspend the lease until a majority confirms this leader again."""
        if self._node.is_leader:
            self._suspended = self._asked if self._is_open else self._begin()

    def tick(self) -> None:
        """Start the round that is wanted, if any."""
        if self._is_wanted:
            self._begin()

    def round_left(self) -> None:
        """Note that the messages of a Ready were sent, heartbeats among them."""
        self._is_open = False

    def confirm(self, reads: Iterable[ReadState]) -> bool:
        """Store the confirmations of a majority; return whether they are new."""
        before = self._confirmed
        for read in reads:
            self._confirmed = max(self._confirmed, read.context)
        return self._confirmed > before

    def reset(self) -> None:
        """Restart in another role or term."""
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
