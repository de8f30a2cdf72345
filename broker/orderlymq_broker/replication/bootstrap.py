"""
When the first leader of a new group begins to serve: when every replica has its beginning, or time is up.

From there on the group has begun, and a replica that does not know it cannot tell whether it is new or
has lost its disk (``recovery.py``): if its leader died before the others had heard of it, they would wait
for that leader. A majority must be there to hear of it: a leader that alone knows would be elected by
nobody. Pure; ``role.py`` asks at every tick.
"""

from typing import Final

from orderlymq_broker.replication.leaderlease import LeaderLease
from orderlymq_raft.types import Term

# Replicas of a new group start together; who is not there by then is not waited for.
BOOTSTRAP_WAIT_S: Final = 5.0


class Bootstrap:
    """The beginning of a group, as its first leader waits for it; *term* is None when it does not."""

    def __init__(self, lease: LeaderLease) -> None:
        self.term: Term | None = None
        self._lease = lease
        self._deadline_s = 0.0
        self._asked: int | None = None

    def begin(self, term: Term, now: float) -> None:
        """Wait from *now* on, as the leader of *term*."""
        self.term = term
        self._deadline_s = now + BOOTSTRAP_WAIT_S
        self._asked = None

    def reset(self) -> None:
        """Wait no more: another role or term has begun."""
        self.term = None

    def is_over(self, now: float, *, all_are_there: bool) -> bool:
        """Return whether the leader may serve; without a lease a majority must confirm it first."""
        if not all_are_there and now < self._deadline_s:
            return False
        if self._lease.is_valid:
            return True
        if self._asked is None:
            self._asked = self._lease.ask()
        return self._lease.is_confirmed(self._asked)
