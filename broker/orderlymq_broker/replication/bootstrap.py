"""
Decides when the first leader of a new raft group begins to serve: once every replica has its no-op, or after a time-out.

From that moment the group has begun, and a replica that does not know it cannot tell whether it is new or has
lost its disk (``recovery.py``). If the leader died before the others knew, they would wait for that leader.
So a majority must know it first: a leader that alone knows it could not be elected again. Pure; ``role.py``
asks at every tick.
"""

from typing import Final

from orderlymq_broker.replication.leaderlease import LeaderLease
from orderlymq_raft.types import Term

# Replicas of a new raft group start together. A replica that is not there by then is not waited for.
BOOTSTRAP_WAIT_S: Final = 5.0


class Bootstrap:
    """The first leader's wait at the beginning of a raft group; *term* is None if it does not wait."""

    def __init__(self, lease: LeaderLease) -> None:
        self.term: Term | None = None
        self._lease = lease
        self._deadline_s = 0.0
        self._asked: int | None = None

    def begin(self, term: Term, now: float) -> None:
        """Start to wait at *now*, as the leader of *term*."""
        self.term = term
        self._deadline_s = now + BOOTSTRAP_WAIT_S
        self._asked = None

    def reset(self) -> None:
        """Stop waiting, because another role or term has begun."""
        self.term = None

    def is_over(self, now: float, *, all_are_there: bool) -> bool:
        """Return whether the leader may serve; without a lease, a majority must confirm its leadership first."""
        if not all_are_there and now < self._deadline_s:
            return False
        if self._lease.is_valid:
            return True
        if self._asked is None:
            self._asked = self._lease.ask()
        return self._lease.is_confirmed(self._asked)
