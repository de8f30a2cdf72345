"""A run's history in numbers: rates, gaps, and how long clients waited after each fault. Pure."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from orderlymq.oracle.verdict import Event, Kind

SECOND: Final = 1_000_000_000
#: A report shows a time without any acknowledgement if it is at least this long.
GAP_SHOWN_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which something did not happen; ns of the history's clock."""

    began: int
    ended: int

    @property
    def seconds(self) -> float:
        return (self.ended - self.began) / SECOND


@dataclass(slots=True)
class Figures:
    """Times of acknowledgements and deliveries by the family of the client, sorted.

    A family is "SDK" or "Java"; for deliveries it includes the consumer group: "Java, together".
    """

    acks: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    deliveries: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def longest_gap_s(self, family: str, began: int, ended: int) -> float:
        """Return the longest time between two acknowledgements that overlaps *began* to *ended*."""
        times = self.acks.get(family, [])
        first = max(bisect_left(times, began) - 1, 0)
        last = bisect_left(times, ended) + 1
        window = times[first:last]
        return max((Gap(*pair).seconds for pair in pairwise(window)), default=0.0)


def figures(events: Iterable[Event]) -> Figures:
    """Collect the times of acknowledgements and deliveries in a history by family."""
    found = Figures()
    for event in events:
        if event.kind is Kind.ACK:
            found.acks[family(event.process)].append(event.at)
        elif event.kind is Kind.DELIVER:
            name = f"{family(event.client)}, {event.group}"
            found.deliveries[name].append(event.at)
    for times in (*found.acks.values(), *found.deliveries.values()):
        times.sort()
    return found


def lags_s(events: Iterable[Event]) -> dict[str, list[float]]:
    """Return, per consumer group, how long each acknowledged message waited for its first delivery, sorted."""
    acknowledged: dict[str, int] = {}
    first: dict[str, dict[str, int]] = defaultdict(dict)
    for event in events:
        if event.kind is Kind.ACK:
            acknowledged.setdefault(event.message, event.at)
        elif event.kind is Kind.DELIVER:
            times = first[event.group]
            times[event.message] = min(times.get(event.message, event.at), event.at)
    return {
        group: sorted(
            max(times[message] - at, 0) / SECOND
            for message, at in acknowledged.items()
            if message in times
        )
        for group, times in first.items()
    }


def family(process: str) -> str:
    """Return the family of a process: "SDK", or "Java" with the major version of its client."""
    _, java, version = process.partition("java-")
    return f"Java {version[0]}" if java else "SDK"


def rates(times: Sequence[int], began: int, ended: int) -> list[int]:
    """Return how many of *times* are in each second from *began* on."""
    counted = Counter((at - began) // SECOND for at in times if began <= at < ended)
    return [counted[second] for second in range((ended - began) // SECOND + 1)]


def gaps(acks: Mapping[str, Sequence[int]]) -> list[Gap]:
    """Return the times in which no client got an acknowledgement, from the first to the last one."""
    merged = sorted(at for times in acks.values() for at in times)
    found = [Gap(*pair) for pair in pairwise(merged)]
    return [gap for gap in found if gap.seconds >= GAP_SHOWN_S]
