"""The time that a hand-over took, read from a history. Pure: events in, seconds out."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from orderlymq.oracle.verdict import Event, Kind

SECOND: Final = 1_000_000_000
#: The time after its cause in which a hand-over is looked for; a client that needs longer counts with this time.
WINDOW_S: Final = 90.0
#: A queue to which nothing is sent within this time has nothing to take over.
BUSY_S: Final = 4


@dataclass(frozen=True, slots=True)
class Target:
    """The limits that a measure should keep, in seconds; None if there is no target."""

    median: float | None = None
    worst: float | None = None


def resumed_s(times: Sequence[int], cause: int, until: int) -> float | None:
    """Return how long after *cause* a continuous activity resumed, None if it never did.

    That is the end of the longest pause that overlaps the window. An event that was under way at the cause may arrive
    just after it; it is not a resumption.
    """
    first = max(bisect_left(times, cause) - 1, 0)
    window = [at for at in times[first:] if at <= until]
    pauses = [pair for pair in pairwise(window) if pair[1] > cause]
    if not pauses:
        return None
    _, ended = max(pauses, key=lambda pair: pair[1] - pair[0])
    return (ended - cause) / SECOND


def pause_s(times: Sequence[int], began: int, until: int) -> float:
    """Return the longest time between two of *times* that overlaps the window."""
    first = max(bisect_left(times, began) - 1, 0)
    window = [at for at in times[first:] if at <= until]
    return max(((later - earlier) / SECOND for earlier, later in pairwise(window)), default=0.0)


def times_of(events: Iterable[Event], kind: Kind, belongs: Callable[[Event], bool]) -> list[int]:
    """Return the sorted times of the events of one kind for which *belongs* is true."""
    return sorted(event.at for event in events if event.kind is kind and belongs(event))


def taken_over_s(events: Iterable[Event], group: str, victim: str, cause: int) -> list[float]:
    """Return, per queue that *victim* worked on last, how long until another client of *group* took it over.

    Its queues are those whose newest delivery before *cause* was to it, and to which messages are sent within the
    next seconds. A queue that no client took within the window counts with the whole window.
    """
    newest: dict[str, Event] = {}
    first: dict[str, int] = {}
    busy: set[str] = set()
    until = cause + int(WINDOW_S * SECOND)
    for event in sorted(events, key=lambda event: event.at):
        if event.kind is Kind.ACK and cause < event.at <= cause + BUSY_S * SECOND:
            busy.add(event.queue)
        if event.kind is not Kind.DELIVER or event.group != group:
            continue
        if event.at <= cause:
            newest[event.queue] = event
        elif event.client != victim and event.at <= until:
            first.setdefault(event.queue, event.at)
    lost = [queue for queue, event in newest.items() if event.client == victim and queue in busy]
    return [(first.get(queue, until) - cause) / SECOND for queue in sorted(lost)]


def failures(events: Iterable[Event], began: int, until: int) -> int:
    """Return how many attempts to send failed in a window."""
    kinds = (Kind.REFUSED, Kind.UNKNOWN)
    return sum(event.kind in kinds and began <= event.at <= until for event in events)


def grouped(pairs: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """Return values by name."""
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in pairs:
        found[name].append(value)
    return dict(found)


def median(values: Sequence[float]) -> float:
    """Return the middle value, the lower of two."""
    return sorted(values)[(len(values) - 1) // 2]


def keeps(values: Sequence[float], target: Target) -> bool:
    """Return whether *values* keep to *target*."""
    if not values:
        return False
    good = target.median is None or median(values) <= target.median
    return good and (target.worst is None or max(values) <= target.worst)
