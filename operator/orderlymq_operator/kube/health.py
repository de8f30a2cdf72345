"""
Whether the process works, apart from whether the API server does.

Rule: a process is alive while it tries to read everything again and again, with success or without. A restart helps a
process that hangs. It does not help against an API server that is away.
"""

import time
from collections.abc import Callable
from typing import Final

# A resync that does not begin again for so many of its intervals, and a margin for a slow API server, hangs.
_MISSED_MAX: Final = 3
_MARGIN_S: Final = 60.0
# An API server that is away for less needs no person.
_STALE_MIN_S: Final = 300.0


class Health:
    """When reading everything was last begun, and what kept it from ending well."""

    def __init__(self, resync_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s = _MISSED_MAX * resync_s + _MARGIN_S
        self._clock = clock
        self._begun = clock()
        self.problem = "starting"

    @property
    def stale_s(self) -> float:
        """After how many seconds without a complete resync the alert fires."""
        return max(_STALE_MIN_S, self._limit_s)

    def begin(self) -> None:
        """Note that everything is being read."""
        self._begun = self._clock()

    def alive(self) -> tuple[bool, str]:
        """Return whether the process works, with a sentence."""
        age_s = self._clock() - self._begun
        return age_s < self._limit_s, f"reading everything was last begun {age_s:.0f} s ago"
