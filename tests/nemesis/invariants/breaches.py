"""Breaches of laws other than those of order, and how much of each feature was tried. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from orderlymq.oracle import verdict as oracle
from orderlymq.oracle.verdict import Event


@dataclass(frozen=True, slots=True)
class Breach:
    """One broken promise, with the shortest slice of history that shows it."""

    explanation: str
    message: str
    evidence: tuple[Event, ...]

    def lines(self) -> list[str]:
        """Return the slice, one line per event, oldest first."""
        return oracle.as_lines(self.evidence)


@dataclass(frozen=True, slots=True)
class Ruling:
    """The ruling on one feature.

    Attributes:
        name: of the feature.
        counts: how often the run has exercised each part of it.
        untried: what the run never did; its law held only for lack of a case.
    """

    name: str
    counts: dict[str, int]
    breaches: tuple[Breach, ...]
    untried: tuple[str, ...] = ()


def of_topic(events: Iterable[Event], topic: str) -> list[Event]:
    """Return the events of one topic, and those that belong to no topic."""
    return [event for event in events if event.topic in ("", topic)]


def by_order(events: Iterable[Event]) -> list[Breach]:
    """Return the findings of the order oracle: lost, stored twice, delivered by two at a time."""
    return [
        Breach(f"{found.defect}: {found.explanation}", found.message, found.evidence)
        for found in oracle.judge(events).findings
    ]


def zeros(counts: dict[str, int], wanted: Iterable[str]) -> tuple[str, ...]:
    """Return those of *wanted* that the run never reached."""
    return tuple(name for name in wanted if not counts.get(name))
