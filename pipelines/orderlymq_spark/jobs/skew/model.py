"""
Judges numbers of queues of a topic by measured loads: which is enough, and what it would move. Pure.

Rules: the load of a queue is the sum of the loads of its keys, and a key's queue is Java's hash of it; the
advice is the smallest candidate whose busy minutes stay under the target, so it never rises when capacity
rises. No number of queues helps beyond the hottest key: it lives in one of them. Loads come as histograms, which stay
small however many keys there are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_protocol.message.tags import java_string_hash

BUSY: Final = 0.99  # share of (minute, queue) pairs that must stay under the target
_MINUTE_S: Final = 60.0

Histogram = Mapping[int, int]
"""How many there are of each number of messages."""


@dataclass(frozen=True, slots=True)
class Simulated:
    """What a number of queues would have got.

    Attributes:
        loads: messages of each queue.
        cells: (minute, queue) pairs by their messages; pairs without any may be left out.
        moved: messages whose key would change its queue.
    """

    loads: Sequence[int]
    cells: Histogram
    moved: int


@dataclass(frozen=True, slots=True)
class Loads:
    """What was measured.

    Attributes:
        per_minute: messages with a key of each minute from the first one on.
        keys: keys by their messages.
        hottest: the key with the most messages; empty without keys.
        hottest_minutes: minutes of that key by its messages.
        simulated: by number of queues.
    """

    per_minute: Sequence[int]
    keys: Histogram
    hottest: str
    hottest_minutes: Histogram
    simulated: Mapping[int, Simulated]


@dataclass(frozen=True, slots=True)
class Candidate:
    """One number of queues.

    Attributes:
        loads: messages of each queue.
        busy_rate: messages a second that 99 of 100 (minute, queue) pairs stay under.
        max_to_mean: 1.0 is perfectly even.
        moved: share of the messages whose key would change its queue.
    """

    queues: int
    loads: tuple[int, ...]
    busy_rate: float
    max_to_mean: float
    moved: float
    fits: bool


@dataclass(frozen=True, slots=True)
class Advice:
    """The result.

    Attributes:
        queues: the least candidate that fits; None when none does.
        floor: what the hottest key alone takes of one queue's capacity in a busy minute; above the target
            use no number of queues is enough.
        gini: how unequal keys are: 0 all alike, towards 1 one has everything.
    """

    queues: int | None
    floor: float
    gini: float
    candidates: tuple[Candidate, ...]


def advise(loads: Loads, *, capacity: float, target_use: float) -> Advice:
    """Find the least number of queues that is enough.

    Args:
        loads: what was measured.
        capacity: messages a second that one queue may get.
        target_use: share of it that busy minutes may take.
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
    """Return what 99 of 100 of *count* numbers do not exceed; those that the histogram leaves out are 0."""
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
    """Return the Gini coefficient of numbers."""
    count = sum(histogram.values())
    total = sum(number * times for number, times in histogram.items())
    if not total:
        return 0.0
    rank = ranked = 0
    for number, times in sorted(histogram.items()):
        # Of ranks rank + 1 to rank + times.
        ranked += number * (times * rank + times * (times + 1) // 2)
        rank += times
    return 2 * ranked / (count * total) - (count + 1) / count


def place_of(key: str) -> int:
    """Return the number whose rest by the number of queues is the key's queue."""
    value = java_string_hash(key)
    # Java's abs of the smallest integer is negative; clients put such keys into queue 0.
    return 0 if value == -(2**31) else abs(value)
