"""
The laws of transactions, read from a history. Pure.

The decision of a transaction is in its text, so that every producer of the group makes the same one, also in another
process and after a restart. A committed transaction becomes visible once and is delivered; a rolled back one never
does. Nothing is visible before it is committed. If a producer left a transaction open, because it did not know or
died, the broker asks about it. A half message whose send was not answered may be stored or not; it is only judged by
what is known of it.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.breaches import Breach, Ruling, by_order, of_topic, zeros

DEALS: Final = "deals"
_LATER: Final = "later-"


class Word(StrEnum):
    """The decision in a transaction's text: made immediately, or unknown until the broker asks."""

    COMMIT = "commit"
    ROLLBACK = "rollback"
    LATER_COMMIT = "later-commit"
    LATER_ROLLBACK = "later-rollback"


class Step(StrEnum):
    """A producer's record of a step, made before the broker hears of it."""

    HALF = "half"  # stored invisible, the local transaction begins
    COMMIT = "commit"
    ROLLBACK = "rollback"
    UNKNOWN = "unknown"
    CHECKED_COMMIT = "checked commit"  # the broker asked, and this is the answer
    CHECKED_ROLLBACK = "checked rollback"


_COMMITS: Final = (Step.COMMIT, Step.CHECKED_COMMIT)
_CHECKS: Final = (Step.CHECKED_COMMIT, Step.CHECKED_ROLLBACK)
_WORDS: Final = tuple(Word)


def text_of(process: str, number: int) -> str:
    """Return the body of a producer's transaction *number*."""
    return f"{process}/{_WORDS[number % len(_WORDS)]}:{number}"


def first_step(text: str) -> Step:
    """Return the result of a text's local transaction."""
    word = _word(text)
    return Step.UNKNOWN if word.startswith(_LATER) else Step(word)


def checked_step(text: str) -> Step:
    """Return the answer of any producer that is asked about a text."""
    return Step.CHECKED_COMMIT if is_committed(text) else Step.CHECKED_ROLLBACK


def is_committed(text: str) -> bool:
    """Return whether a transaction must end with a commit."""
    return _word(text).removeprefix(_LATER) == Word.COMMIT


def _word(text: str) -> str:
    return text.rpartition("/")[2].partition(":")[0]


@dataclass(slots=True)
class _Deal:
    """One transaction as the history shows it."""

    text: str
    send: Event | None = None
    refused: Event | None = None
    steps: list[Event] = field(default_factory=list)
    sights: list[Event] = field(default_factory=list)
    groups: set[str] = field(default_factory=set)

    def first(self, *steps: Step) -> Event | None:
        """Return the first record of one of these steps."""
        return next((event for event in self.steps if event.detail in steps), None)

    @property
    def places(self) -> dict[tuple[str, int], Event]:
        found: dict[tuple[str, int], Event] = {}
        for event in self.sights:
            found.setdefault((event.queue, event.offset), event)
        return found

    @property
    def was_left_open(self) -> bool:
        """Return whether its producer died, or did not know, before it could decide."""
        return self.first(Step.COMMIT, Step.ROLLBACK) is None


def judge(events: Iterable[Event]) -> Ruling:
    """Judge all transactions of a complete history."""
    history = sorted(of_topic(events, DEALS), key=lambda event: event.at)
    deals = _collect(history)
    scanned = next((event for event in history if event.kind is Kind.SCANNED), None)
    drained = {event.group: event for event in history if event.kind is Kind.DRAINED}
    breaches = by_order(_consumed(history))
    for deal in deals.values():
        breaches += [*_visible(deal), *_missing(deal, scanned), *_undelivered(deal, drained)]
    counts = _counts(deals.values())
    return Ruling(
        "transactions",
        counts,
        tuple(breaches),
        zeros(
            counts,
            (
                "committed and visible",
                "rolled back",
                "committed by a check",
                "decided by another process",
            ),
        ),
    )


def _collect(history: Sequence[Event]) -> dict[str, _Deal]:
    deals: dict[str, _Deal] = {}
    for event in history:
        if not event.message:
            continue
        deal = deals.setdefault(event.message, _Deal(event.message))
        match event.kind:
            case Kind.SEND:
                deal.send = event
            case Kind.REFUSED:
                deal.refused = event
            case Kind.NOTED:
                deal.steps.append(event)
            case Kind.STORED:
                deal.sights.append(event)
            case Kind.DELIVER:
                deal.sights.append(event)
                deal.groups.add(event.group)
            case _:
                pass
    return deals


def _consumed(history: Iterable[Event]) -> list[Event]:
    """Return the events for the oracle, without outcomes of sends: the laws here judge those."""
    told = (Kind.REFUSED, Kind.UNKNOWN, Kind.NOTED)
    return [event for event in history if event.kind not in told]


def _visible(deal: _Deal) -> list[Breach]:
    """Judge what is visible of a transaction; the oracle finds two places."""
    if not deal.sights:
        return []
    sight = min(deal.sights, key=lambda event: event.at)
    if deal.send is None:
        return [Breach("visible, and nobody has sent it", deal.text, (sight,))]
    if not is_committed(deal.text):
        return [Breach("rolled back, and visible", deal.text, (*deal.steps, sight))]
    if deal.refused is not None:
        return [Breach("refused for good, and visible", deal.text, (deal.refused, sight))]
    commit = deal.first(*_COMMITS)
    if commit is None or commit.at > sight.at:
        return [Breach("visible before anybody committed it", deal.text, (*deal.steps, sight))]
    return []


def _missing(deal: _Deal, scanned: Event | None) -> list[Breach]:
    """Judge what must exist at the end if the half message is known to be stored."""
    if scanned is None or not deal.steps or deal.refused is not None:
        return []
    if deal.was_left_open and deal.first(*_CHECKS) is None:
        return [Breach("left open, and nobody was asked", deal.text, (*deal.steps, scanned))]
    if is_committed(deal.text) and not any(e.kind is Kind.STORED for e in deal.sights):
        return [Breach("committed, and not in the log", deal.text, (*deal.steps, scanned))]
    return []


def _undelivered(deal: _Deal, drained: dict[str, Event]) -> list[Breach]:
    if not any(event.kind is Kind.STORED for event in deal.sights):
        return []
    return [
        Breach(f"visible, and never delivered to group {group}", deal.text, (*deal.sights, end))
        for group, end in drained.items()
        if group not in deal.groups
    ]


def _counts(deals: Iterable[_Deal]) -> dict[str, int]:
    counts: dict[str, int] = defaultdict(int)
    for deal in deals:
        counts["begun"] += deal.send is not None
        counts["known to be stored"] += bool(deal.steps)
        counts["committed and visible"] += is_committed(deal.text) and bool(deal.sights)
        counts["rolled back"] += bool(deal.steps) and not is_committed(deal.text)
        check = deal.first(*_CHECKS)
        if check is None:
            continue
        counts["decided by a check"] += 1
        counts["committed by a check"] += check.detail == Step.CHECKED_COMMIT
        if deal.send is not None and check.process != deal.send.process:
            counts["decided by another process"] += 1
            died = deal.first(Step.COMMIT, Step.ROLLBACK, Step.UNKNOWN) is None
            counts["left open by one that was killed"] += died
    return dict(counts)
