"""
Judges queue counts of a topic by measured loads: which is enough, and how many messages it would move. Pure.

Rules: the load of a queue is the sum of its keys' loads, and a key's queue is Java's hash of it. The advice is the
smallest candidate whose busy minutes stay under the target, so it never rises when capacity rises. More queues do not
help with the hottest key, because it is in only one of them. Loads are histograms, which stay small for any number
of keys.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_protocol.message.tags import java_string_hash

BUSY: Final = 0.99  # the share of (minute, queue) pairs that must stay under the target
_MINUTE_S: Final = 60.0

Histogram = Mapping[int, int]
"""How many there are of each number of messages."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated result of one queue count.

    Attributes:
        loads: messages of each queue.
        cells: (minute, queue) pairs by their messages; pairs without messages may be left out.
        moved: messages whose key would move to another queue.
    """

    loads: Sequence[int]
    cells: Histogram
    moved: int


@dataclass(frozen=True, slots=True)
class Loads:
    """The measured loads.

    Attributes:
        per_minute: messages with a key in each minute, from the first one on.
        keys: number of keys by their messages.
        hottest: the key with the most messages; empty without keys.
        hottest_minutes: minutes of that key by its messages.
        simulated: by queue count.
    """

    per_minute: Sequence[int]
    keys: Histogram
    hottest: str
    hottest_minutes: Histogram
    simulated: Mapping[int, Simulated]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One queue count.

    Attributes:
        loads: messages of each queue.
        busy_rate: messages per second that 99 of 100 (minute, queue) pairs do not exceed.
        max_to_mean: 1.0 is perfectly even.
        moved: share of the messages whose key would move to another queue.
    """

    queues: int
    loads: tuple[int, ...]
    busy_rate: float
    max_to_mean: float
    moved: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """The recommendation.

    Attributes:
        queues: the smallest candidate that fits; None if none does.
        floor: the share of one queue's capacity that the hottest key alone takes in a busy minute; above the target
            use, no queue count is enough.
        gini: the inequality of keys: 0 if all are equal, near 1 if one has everything.
    """

    queues: int | None
    floor: float
    gini: float
    candidates: tuple[Candidate, ...]


def advise(loads: Loads, *, capacity: float, target_use: float) -> Advice:
    """Find the smallest queue count that is enough.

    Args:
        loads: the measured loads.
        capacity: messages per second that one queue may get.
        target_use: the share of it that busy minutes may take.
    """
    tried = tuple(
        _judge(queues, each, len(loads.per_minute), capacity * target_use)
        for queues, each in sorted(loads.simulated.items())
    )
    fitting = [each.queues for each in tried if each.fits]
    minutes = sum(loads.hottest_minutes.values())
    floor = busy(loads.hottest_minutes, minutes) / _MINUTE_S / capacity
    return Advice(min(fitting, default=None), floor, gini(loads.keys), tried)


def _judge(queues: int, found: Simulated, minutes: int, limit_rate: float) -> Candidate:
    rate = busy(found.cells, minutes * queues) / _MINUTE_S
    total = sum(found.loads)
    return Candidate(
        queues,
        tuple(found.loads),
        rate,
        max(found.loads) * queues / total if total else 1.0,
        found.moved / total if total else 0.0,
        rate <= limit_rate,
    )


def busy(histogram: Histogram, count: int) -> int:
    """Return the value that 99 of 100 of *count* numbers do not exceed; numbers missing in the histogram are 0."""
    place = math.ceil(BUSY * (count - 1))
    below = count - sum(histogram.values())
    for number, times in sorted(histogram.items()):
        if place < below:
            break
        below += times
        if place < below:
            return number
    return 0


def gini(histogram: Histogram) -> float:
    """Return the Gini coefficient of the numbers in a histogram."""
    count = sum(histogram.values())
    total = sum(number * times for number, times in histogram.items())
    if not total:
        return 0.0
    rank = ranked = 0
    for number, times in sorted(histogram.items()):
        # These numbers have the ranks from rank + 1 to rank + times.
        ranked += number * (times * rank + times * (times + 1) // 2)
        rank += times
    return 2 * ranked / (count * total) - (count + 1) / count


def place_of(key: str) -> int:
    """Return the number that, modulo the queue count, gives the key's queue."""
    value = java_string_hash(key)
    # Java's abs of the smallest integer is negative; clients put such keys in queue 0.
    return 0 if value == -(2**31) else abs(value)
