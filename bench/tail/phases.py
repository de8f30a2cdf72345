"""
Combines the stamps of client, leader and followers for one send: its phases, and what made it slow. Pure.

There is only one sender, so records of a replica between a send's beginning and its answer belong to that send. All
times are nanoseconds of one clock.
"""

import json
import statistics
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from bench.report.figures import shown

PHASES: Final = (
    "client, before the write",
    "way to the leader",
    "leader, until the entry is built",
    "disks and followers",
    "leader, apply and answer",
    "way back",
    "client, wake-up",
)
_WAIT: Final = 3
#: The possible causes of the wait for a majority.
OWN_DISK: Final = "leader's disk"
OWN_WRITER: Final = "leader's writer thread"
THEIR_DISK: Final = "a follower's disk"
THEIR_LOOP: Final = "a follower's loop, or the network"
_JOBS: Final = ("flush", "compaction")


@dataclass(frozen=True, slots=True)
class Stamps:
    """The client's time stamps of one send."""

    began: int
    written: int
    received: int
    woke: int

    @property
    def total(self) -> int:
        return self.woke - self.began


@dataclass(frozen=True, slots=True)
class Sync:
    """A write of a replica: when the writer got it, when the loop learned of its end, and the time in the store."""

    began: int
    ended: int
    stored: int

    @property
    def is_disk(self) -> bool:
        """Whether most of the time was spent in the store."""
        return 2 * self.stored > self.ended - self.began


@dataclass(slots=True)
class Trace:
    """The records of one process, in order of time."""

    arrived: list[int] = field(default_factory=list)
    built: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    heard: list[tuple[int, int]] = field(default_factory=list)  # when, from which node
    syncs: list[Sync] = field(default_factory=list)
    collections: list[tuple[int, int]] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Sequence[str]) -> "Trace":
        """Read the records that `launcher` wrote."""
        found = cls()
        began = 0
        for kind, at, *more in map(json.loads, lines):
            match kind:
                case "arrived" | "built" | "answered":
                    getattr(found, kind).append(at)
                case "heard":
                    found.heard.append((at, more[0]))
                case "synced":
                    found.syncs.append(Sync(more[0], at, more[1]))
                case "collection" if more[0]:
                    began = at
                case "collection":
                    found.collections.append((began, at))
        return found


@dataclass(frozen=True, slots=True)
class Send:
    """One send: the length of each phase, and the cause of its wait for a majority."""

    stamps: Stamps
    phases: tuple[int, ...]
    waited_for: str


def send(stamps: Stamps, leader: Trace, followers: Mapping[int, Trace]) -> Send | None:
    """Return a send; None if a stamp is missing, because another replica led or a message was lost."""
    arrived = _first(leader.arrived, stamps.written, stamps.received)
    built = _first(leader.built, arrived, stamps.received)
    answered = _first(leader.answered, built, stamps.received)
    if arrived is None or built is None or answered is None:
        return None
    copies: list[tuple[int, str]] = []
    place = bisect_left(leader.syncs, arrived, key=lambda each: each.began)
    if place < len(leader.syncs):
        own = leader.syncs[place]
        copies.append((own.ended, OWN_DISK if own.is_disk else OWN_WRITER))
    for node, trace in followers.items():
        ends = (at for at, sender in leader.heard if sender == node and built <= at <= answered)
        end = next(ends, None)
        if end is not None:
            copies.append((end, _of_follower(trace, built, end)))
    if len(copies) < 2:
        return None
    # Two of three copies are a majority.
    committed, waited_for = sorted(copies)[1]
    committed = min(committed, answered)
    times = (
        *(stamps.began, stamps.written, arrived, built),
        *(committed, answered, stamps.received, stamps.woke),
    )
    return Send(stamps, tuple(after - before for before, after in pairwise(times)), waited_for)


def _first(times: Sequence[int], after: int | None, before: int) -> int | None:
    if after is None:
        return None
    place = bisect_left(times, after)
    return times[place] if place < len(times) and times[place] <= before else None


def _of_follower(trace: Trace, begin: int, end: int) -> str:
    """Return whether a follower's disk took most of the time until its answer, or its loop."""
    place = bisect_left(trace.syncs, begin, key=lambda each: each.began)
    stored = trace.syncs[place].stored if place < len(trace.syncs) else 0
    return THEIR_DISK if 2 * stored > end - begin else THEIR_LOOP


def cause(each: Send, usual: Sequence[float]) -> str:
    """Return the phase that exceeds its usual length most; for the wait, return its cause."""
    place = max(range(len(PHASES)), key=lambda phase: each.phases[phase] - usual[phase])
    return each.waited_for if place == _WAIT else PHASES[place]


def jobs(log: Sequence[str], offset: int) -> list[tuple[int, int]]:
    """Return the flushes and compactions in RocksDB's log; *offset* converts its wall clock to ours."""
    began: dict[int, int] = {}
    found = []
    for line in log:
        _, sign, text = line.partition("EVENT_LOG_v1 ")
        if not sign:
            continue
        event: dict[str, Any] = json.loads(text)
        at = event["time_micros"] * 1000 - offset
        name, _, what = event["event"].partition("_")
        if name in _JOBS and what == "started":
            began[event["job"]] = at
        elif name in _JOBS and what == "finished" and event["job"] in began:
            found.append((began.pop(event["job"]), at))
    return sorted(found)


def meanwhile(stamps: Stamps, intervals: Sequence[tuple[int, int]]) -> bool:
    """Return whether one of the intervals overlaps a send."""
    return any(begin < stamps.woke and end > stamps.began for begin, end in intervals)


def table(
    sends: Sequence[Send], slowest: int, intervals: Mapping[str, Sequence[tuple[int, int]]]
) -> Iterator[str]:
    """Yield the tables: phases of all and of the slowest sends, and the causes of the slowest with what ran meanwhile."""
    usual = [
        statistics.median(each.phases[phase] for each in sends) for phase in range(len(PHASES))
    ]
    slow = sorted(sends, key=lambda each: each.stamps.total)[-slowest:]
    yield f"| phase | median of {len(sends):,} sends, ms | median of the slowest {len(slow)}, ms |"
    yield "|---|---|---|"
    for phase, title in enumerate(PHASES):
        length = statistics.median(each.phases[phase] for each in slow)
        yield f"| {title} | {usual[phase] / 1e6:.3f} | {length / 1e6:.3f} |"
    totals = [statistics.median(each.stamps.total for each in some) / 1e6 for some in (sends, slow)]
    yield f"| together | {totals[0]:.3f} | {totals[1]:.3f} |"
    yield ""
    yield f"| what took longest beyond its median | of the slowest | median, ms | {' | '.join(intervals)} |"
    yield "|---" * (3 + len(intervals)) + "|"
    causes: dict[str, list[Stamps]] = {}
    for each in slow:
        causes.setdefault(cause(each, usual), []).append(each.stamps)
    for name, found in sorted(causes.items(), key=lambda item: -len(item[1])):
        total = statistics.median(each.total for each in found) / 1e6
        ran = [sum(meanwhile(each, several) for each in found) for several in intervals.values()]
        yield f"| {name} | {len(found)} | {shown(total)} | {' | '.join(map(str, ran))} |"
