"""
Detects a hanging disk: how long a write has been under way while none has ended.

A leader whose disk hangs still sends heartbeats and stays leader, but no send is answered. When this module
reports a stall, the leader steps down. Its own vote needs the disk, so it cannot win again before the disk
answers. A full disk does not hang: it reports that it is full, and reads go on. Pure; ``loop.py`` reports
every write.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

# 2 s at 200 ms. The syncs of a busy disk take less, and another replica answers within the three seconds for
# which RocketMQ's clients wait for a send.
STALL_ELECTIONS: Final = 10


class WriteWatch:
    """The pending writes; *seconds* is the clock, and a write that takes *limit_s* is too slow."""

    def __init__(self, limit_s: float, seconds: Callable[[], float]) -> None:
        self._limit_s = limit_s
        self._seconds = seconds
        self._begun: deque[float] = deque()
        self._is_full = False

    def began(self) -> None:
        """Note that a write was handed to the disk."""
        self._begun.append(self._seconds())

    def ended(self) -> None:
        """Note that the oldest write has ended; the time of the next one counts from now."""
        self._begun.popleft()
        self._count_from_here()

    def set_full(self, *, is_full: bool) -> None:
        """Note whether writes wait for space."""
        self._is_full = is_full
        self._count_from_here()

    def forgive(self, seconds: float) -> None:
        """Do not count the last *seconds*, in which this process was paused; a write may have begun within them."""
        if self._begun:
            self._begun[0] = min(self._begun[0] + seconds, self._seconds())

    @property
    def is_full(self) -> bool:
        """Return whether the disk is full, so that writes wait."""
        return self._is_full

    @property
    def waiting_s(self) -> float:
        """Return how long the oldest pending write has waited for the disk; 0 if the disk is full."""
        return self._seconds() - self._begun[0] if self._begun and not self._is_full else 0.0

    def _count_from_here(self) -> None:
        if self._begun:
            self._begun[0] = self._seconds()

    @property
    def is_stalled(self) -> bool:
        """Return whether a write has waited so long that the disk counts as hung."""
        return self.waiting_s >= self._limit_s
