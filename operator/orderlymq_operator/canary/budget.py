"""
The error budget of the probes: how many were good, and how fast the budget is spent. Pure.

A probe is good if its message was acknowledged and delivered within the target. The budget is the share that the
objective leaves: 0.1 % of the probes of 30 days, at 99.9 %. A burn rate of 1 spends it in exactly that time.
"""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_MIN: Final = 30 * 24 * 60
_MINUTE_S: Final = 60


@dataclass(slots=True)
class Budget:
    """Good and bad probes by minute, over 30 days or since the canary began.

    Attributes:
        objective: share of probes that must be good, below 1.
    """

    objective: float = 0.999
    good: int = 0
    bad: int = 0
    _minutes: deque[list[int]] = field(default_factory=deque)

    def count(self, at: float, *, is_good: bool) -> None:
        """Count one probe."""
        minute = int(at // _MINUTE_S)
        if not self._minutes or self._minutes[-1][0] != minute:
            self._minutes.append([minute, 0, 0])
        self._minutes[-1][1 if is_good else 2] += 1
        self.good, self.bad = self.good + is_good, self.bad + (not is_good)
        while minute - self._minutes[0][0] >= WINDOW_MIN:
            _, good, bad = self._minutes.popleft()
            self.good, self.bad = self.good - good, self.bad - bad

    def burn(self, now: float, minutes: int) -> float:
        """Return how many times as fast as the objective allows the last *minutes* spent the budget; 0 without probes."""
        first = int(now // _MINUTE_S) - minutes
        good = bad = 0
        for minute, some, others in reversed(self._minutes):
            if minute <= first:
                break
            good, bad = good + some, bad + others
        return bad / (good + bad) / (1 - self.objective) if bad else 0.0

    @property
    def left(self) -> float:
        """The share of the budget that is left: 1 for all of it, below 0 if overspent."""
        total = self.good + self.bad
        return 1 - self.bad / total / (1 - self.objective) if total else 1.0
