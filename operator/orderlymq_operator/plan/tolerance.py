"""
What the loss of a failure domain (a node, a zone) leaves of a raft group.

Pure arithmetic: with n replicas, m of them in the fullest domain, n - m are left, and a majority of n is needed. What is
left above the majority may go by itself: that is what updates and drains live on while the domain is away.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is left when the fullest domain is lost.

    Attributes:
        domain: its name.
        lost: how many replicas it holds.
    """

    domain: str
    lost: int
    replicas: int

    @property
    def majority(self) -> int:
        """How many replicas the group needs."""
        return self.replicas // 2 + 1

    @property
    def spare(self) -> int:
        """How many further replicas may go then; below zero the group stands still."""
        return self.replicas - self.lost - self.majority


def tolerance(domains: Sequence[str]) -> Tolerance:
    """Return what the loss of one domain means; *domains* has that of each replica, of one at least."""
    domain, lost = max(Counter(domains).items(), key=lambda found: (found[1], found[0]))
    return Tolerance(domain, lost, len(domains))
