"""
The health of the process, independent of the health of the API server.

Rule: a process is alive while it starts resyncs regularly, whether they succeed or fail. A restart helps a process that
hangs. It does not help if the API server is not available.
"""

import time
from collections.abc import Callable
from typing import Final

# The process hangs if no resync begins for this many intervals plus a margin for a slow API server.
_MISSED_MAX: Final = 3
_MARGIN_S: Final = 60.0
# A shorter outage of the API server needs no action by a person.
_STALE_MIN_S: Final = 300.0


class Health:
    """The time at which the last resync began, and the problem that kept it from succeeding."""

    def __init__(self, resync_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = _MISSED_MAX * resync_s + _MARGIN_S
        self._clock = clock
        self._begun = clock()
        self.problem = "starting"

    @property
    def stale_s(self) -> float:
        """The seconds without a complete resync after which the alert fires."""
        return max(_STALE_MIN_S, self._limit_s)

    def begin(self) -> None:
        """Note that a resync begins."""
        self._begun = self._clock()

    def alive(self) -> tuple[bool, str]:
        """Return whether the process is alive, and a sentence that explains it."""
        age_s = self._clock() - self._begun
        return age_s < self._limit_s, f"the last complete read began {age_s:.0f} s ago"
