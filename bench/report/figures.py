"""
The arithmetic of the comparison: percentiles from buckets, medians over rounds, ratios between peers. Pure.

The load program counts latencies in buckets that grow by 0.7 %. A percentile is the middle of its bucket, so its error
is at most half a bucket.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

#: Buckets per doubling, as in Latencies.java.
PER_OCTAVE = 100

Buckets = Mapping[int, int]


def milliseconds(bucket: int) -> float:
    """Return the time in the middle of a bucket."""
    return float(2 ** ((bucket + 0.5) / PER_OCTAVE)) / 1e6


def percentile(buckets: Buckets, part: float) -> float:
    """Return the time in ms that a share *part* (0 to 1) of all durations did not exceed; nan if there are none."""
    total = sum(buckets.values())
    seen = 0
    for bucket in sorted(buckets):
        seen += buckets[bucket]
        if seen >= part * total and seen:
            return milliseconds(bucket)
    return float("nan")


def merged(many: Iterable[Buckets]) -> dict[int, int]:
    """Return the sum of all counts, bucket by bucket."""
    found: dict[int, int] = {}
    for buckets in many:
        for bucket, count in buckets.items():
            found[bucket] = found.get(bucket, 0) + count
    return found


def distribution(buckets: Buckets) -> list[tuple[float, float]]:
    """Return (ms, share of all durations that took longer), for a plot of the tail."""
    total = sum(buckets.values())
    left = total
    points = []
    for bucket in sorted(buckets):
        left -= buckets[bucket]
        points.append((milliseconds(bucket), left / total))
    return points


@dataclass(frozen=True, slots=True)
class Summary:
    """The spread of several rounds, or of several kills."""

    low: float
    median: float
    high: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> "Summary":
        """Summarise at least one value."""
        return cls(min(values), statistics.median(values), max(values), len(values))


def advantage(ours: float, theirs: float, *, more_is_better: bool) -> float | None:
    """Return how many times better ours is; above 1 we are ahead. None if this would divide by zero."""
    better, worse = (ours, theirs) if more_is_better else (theirs, ours)
    return better / worse if worse else None


def shown(value: float) -> str:
    """Format a figure with a suitable number of digits: 15,074, 87.3, 0.91."""
    if math.isnan(value):
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def beside(title: str, other: str, its: float, mine: float) -> str:
    """Return the line that compares one of our figures with another system's."""
    return f"* {title}: {other} {shown(its)}, ours {shown(mine)}"
