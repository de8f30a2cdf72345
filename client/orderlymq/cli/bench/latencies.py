"""
Latencies of any number of messages in bounded memory: counts in buckets, each one per cent wider than the one before.

Rule: a quantile is the upper edge of its bucket, so it is never too small, and at most one per cent too large.
"""

import math
from collections import Counter
from typing import Final

_STEP: Final = math.log(1.01)
_LEAST_S: Final = 1e-6


class Latencies:
    """Counts of time spans in seconds."""

    def __init__(self) -> None:
        self._buckets: Counter[int] = Counter()

    def add(self, span_s: float) -> None:
        """Count one time span."""
        self._buckets[math.ceil(math.log(max(span_s, _LEAST_S) / _LEAST_S) / _STEP)] += 1

    def take(self, other: "Latencies") -> None:
        """Add the counts of *other*."""
        self._buckets.update(other._buckets)

    def quantile_ms(self, share: float) -> float | None:
        """Return the milliseconds that *share* of the spans, 0 to 1, did not exceed; None if there are no spans."""
        wanted = math.ceil(share * self._buckets.total())
        seen = 0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= wanted:
                return 1e3 * _LEAST_S * math.exp(bucket * _STEP)
        return None

    def shown(self) -> dict[str, float | None]:
        """Return the usual quantiles in milliseconds, by name."""
        shares = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
        found = {name: self.quantile_ms(share) for name, share in shares.items()}
        return {name: None if ms is None else round(ms, 3) for name, ms in found.items()}
