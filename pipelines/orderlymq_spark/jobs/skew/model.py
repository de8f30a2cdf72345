"""
Simulates another number of queues of a topic: the clients' own hash, replayed over measured loads.

Rules: the load of a queue is the sum of the loads of its keys, and a key's queue is Java's hash of it; the
advice is the smallest candidate whose busy minutes stay under the target, so it never rises when capacity
rises. No number of queues helps beyond the hottest key: it lives in one of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from orderlymq_protocol.message.tags import java_string_hash

BUSY: Final = 0.99  # share of (minute, queue) pairs that must stay under the target
_MINUTE_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Loads:
    """Messages by minute and key.

    Attributes:
        keys: the names of the keys.
        minute, key, count: one row per pair that has messages: number of the minute, of the key.
    """

    keys: tuple[str, ...]
    minute: Any
    key: Any
    count: Any

    @property
    def minutes(self) -> int:
        """Return how many minutes the measured time spans."""
        return int(self.minute.max()) + 1 if len(self.minute) else 0

    def by_key(self) -> Any:
        """Return the messages of each key."""
        return np.bincount(self.key, weights=self.count, minlength=len(self.keys))


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
    hottest: str
    gini: float
    candidates: tuple[Candidate, ...]


def simulate(loads: Loads, queues: int, present: int, limit_rate: float) -> Candidate:
    """Return what a number of queues would bring."""
    hashes = np.array([abs(_hash(key)) for key in loads.keys], dtype=np.int64)
    places = hashes % queues
    rows = places[loads.key] if len(loads.key) else np.zeros(0, dtype=np.int64)
    per_queue = np.bincount(rows, weights=loads.count, minlength=queues)
    cells = np.bincount(
        loads.minute * queues + rows, weights=loads.count, minlength=loads.minutes * queues
    )
    busy = float(np.quantile(cells, BUSY, method="higher")) / _MINUTE_S if len(cells) else 0.0
    total = float(per_queue.sum())
    by_key = loads.by_key()
    moved = float(by_key[places != hashes % present].sum()) / total if total else 0.0
    mean = total / queues
    return Candidate(
        queues,
        tuple(int(each) for each in per_queue),
        busy,
        float(per_queue.max()) / mean if total else 1.0,
        moved,
        busy <= limit_rate,
    )


def advise(
    loads: Loads,
    candidates: Sequence[int],
    *,
    present: int,
    capacity: float,
    target_use: float,
) -> Advice:
    """Find the least number of queues that is enough.

    Args:
        loads: what was measured.
        candidates: numbers of queues to try.
        present: the number that the topic has.
        capacity: messages a second that one queue may get.
        target_use: share of it that busy minutes may take.
    """
    tried = tuple(
        simulate(loads, queues, present, capacity * target_use)
        for queues in sorted({*candidates, present})
    )
    fitting = [each.queues for each in tried if each.fits]
    by_key = loads.by_key()
    hottest = int(by_key.argmax()) if len(by_key) else 0
    minutes = loads.count[loads.key == hottest] if len(by_key) else np.zeros(1)
    floor = float(np.quantile(minutes, BUSY, method="higher")) / _MINUTE_S / capacity
    return Advice(
        min(fitting, default=None),
        floor,
        loads.keys[hottest] if loads.keys else "",
        gini(by_key),
        tried,
    )


def gini(values: Any) -> float:
    """Return the Gini coefficient."""
    ordered = np.sort(values)
    total = ordered.sum()
    if not len(ordered) or not total:
        return 0.0
    ranks = np.arange(1, len(ordered) + 1)
    return float(
        (2 * (ranks * ordered).sum()) / (len(ordered) * total) - (len(ordered) + 1) / len(ordered)
    )


def _hash(key: str) -> int:
    value = java_string_hash(key)
    # Java's abs of the smallest integer is negative; clients put such keys into queue 0.
    return 0 if value == -(2**31) else value
