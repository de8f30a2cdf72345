"""
Lags of groups as an examination finds them: which lags are shown, and which store times are read.

The rules: one examination reads a few hundred store times from the store, in addition to those of messages in memory.
The queue whose last read is the oldest is read next. ``watch.py`` runs the examinations.
"""

from dataclasses import dataclass
from heapq import heappush, heappushpop
from itertools import islice
from typing import Final, TypeAlias

from orderlymq_broker.processors.observe.status import SERIES_MAX

# Store times read in one examination; the next ones read the others.
READS_MAX: Final = 512

# Group, topic, queue.
Place: TypeAlias = tuple[str, str, int]


@dataclass(frozen=True, slots=True)
class Lag:
    """A group's lag in a topic: messages, and the age of the oldest one in seconds, None if no age is known yet."""

    group: str
    topic: str
    messages: int
    seconds: float | None


class Readings:
    """Chooses the queues whose store times an examination reads: those waiting longest, then others if there is room."""

    def __init__(self) -> None:
        self._waiting: dict[Place, None] = {}
        self._due: set[Place] = set()
        self._spare = 0

    def begin(self) -> None:
        """Begin an examination."""
        self._due = set(islice(self._waiting, READS_MAX))
        self._spare = READS_MAX - len(self._due)

    def take(self, place: Place) -> bool:
        """Return whether this examination may read a place; if not, the place waits for the next ones."""
        is_due = place in self._due
        if not is_due and not self._spare:
            self._waiting[place] = None
            return False
        self._spare -= not is_due
        self._waiting.pop(place, None)

        return True

    def end(self) -> None:
        """End an examination; a queue whose turn it was but that was not read stops waiting."""
        for place in self._due:
            self._waiting.pop(place, None)


class WorstLags:
    """The greatest of all added lags, which are shown; lags of one group and topic must be added in succession."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Lag]] = []
        self._number = 0
        self._last = Lag("", "", 0, None)

    def add(self, group: str, topic: str, messages: int, seconds: float | None) -> None:
        """Count the messages that a group has not consumed in a queue."""
        last = self._last
        if (last.group, last.topic) == (group, topic):
            messages += last.messages
            if seconds is None or (last.seconds is not None and last.seconds > seconds):
                seconds = last.seconds
        else:
            self._keep()
        self._last = Lag(group, topic, messages, None if seconds is None else round(seconds, 1))

    def ended(self) -> list[Lag]:
        """Return the greatest lags in descending order; equal ones are sorted by name."""
        self._keep()
        lags = [lag for _, _, lag in self._heap]

        return sorted(lags, key=lambda each: (-each.messages, each.group, each.topic))

    def _keep(self) -> None:
        if not self._last.messages:
            return
        self._number -= 1
        item = (self._last.messages, self._number, self._last)
        if len(self._heap) < SERIES_MAX:
            heappush(self._heap, item)
        else:
            heappushpop(self._heap, item)
