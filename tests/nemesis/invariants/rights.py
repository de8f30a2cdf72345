"""
The laws of permissions that are revoked and restored, read from a history. Pure.

A request that was sent after a denial was confirmed, and answered before the restoration began, was refused,
whichever replica led in between. From `RETURN_S` after a permission was confirmed, no request is refused for lack of
it, and its owner is served if others are. Each account is denied once in its life, and an account whose grant was not
answered immediately is never used. So a late change cannot be mistaken for another one (``denials.py``).
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.breaches import Breach, Ruling, of_topic, zeros

GUARDED: Final = "guarded"
#: A leader that was cut off does not know the newest accounts, and answers clients that still reach it until the cut
#: is healed, after at most 8 s.
RETURN_S: Final = 15.0
_SECOND: Final = 1_000_000_000
_RETURN: Final = int(RETURN_S * _SECOND)
#: The beginning of the broker's refusals for lack of a permission.
_ACCESS: Final = "AclException"


class Denial(StrEnum):
    """A way to revoke permissions."""

    PERMISSION = "permission DENY"
    DELETED = "account deleted"
    SECRET = "another secret"


class Act(StrEnum):
    """A record of the administrator; the event's client is the account."""

    GRANTED = "granted"
    DENYING = "denying"
    DENIED = "denied: "  # followed by how
    UNSURE = "denial not answered"  # it may take effect at any later time
    RETURNING = "returning"
    RETURNED = "returned"


@dataclass(slots=True)
class _Account:
    """The administrator's actions on one account, and its holder's requests."""

    name: str
    granted: Event | None = None
    denying: Event | None = None
    denied: Event | None = None
    returning: Event | None = None
    returned: Event | None = None
    unsure: bool = False
    asked: list[Event] = field(default_factory=list)
    served: list[tuple[Event, Event]] = field(default_factory=list)  # request and answer
    refused: list[tuple[Event, Event]] = field(default_factory=list)

    def note(self, event: Event) -> None:
        match event.detail:
            case Act.GRANTED:
                self.granted = event
            case Act.DENYING:
                self.denying = event
            case Act.UNSURE:
                self.unsure = True
            case Act.RETURNING:
                self.returning = event
            case Act.RETURNED:
                self.returned = event
            case _:
                self.denied = event


def judge(
    events: Iterable[Event],
    ordinary: Iterable[Event] = (),
    leaders: Iterable[tuple[int, int | None]] = (),
) -> Ruling:
    """Judge the answers to denied accounts.

    Args:
        events: of the history; only those of the guarded topic are read.
        ordinary: events of clients that keep their permissions; they show when the broker group served.
        leaders: each change of leader with its time, for the counts.
    """
    history = sorted(of_topic(events, GUARDED), key=lambda event: event.at)
    accounts = _collect(history)
    began = sorted(event.at for event in ordinary if event.kind is Kind.ACK)
    breaches: list[Breach] = []
    for account in accounts.values():
        breaches += [*_served(account), *_kept_out(account), *_not_served_again(account, began)]
    changes = [at for at, leader in leaders if leader is not None]
    counts = _counts(accounts.values(), changes)
    return Ruling(
        "rights",
        counts,
        tuple(breaches),
        zeros(
            counts,
            (
                *(f"denied by {how}" for how in Denial),
                "requests refused meanwhile",
                "served again",
                "kept across a change of leader",
            ),
        ),
    )


def _collect(history: Sequence[Event]) -> dict[str, _Account]:
    accounts: dict[str, _Account] = {}
    questions: dict[str, Event] = {}
    for event in history:
        if event.kind is Kind.NOTED:
            accounts.setdefault(event.client, _Account(event.client)).note(event)
        elif event.kind is Kind.SEND:
            questions[event.message] = event
            accounts.setdefault(event.client, _Account(event.client)).asked.append(event)
        elif event.kind in (Kind.ACK, Kind.REFUSED) and event.message in questions:
            account = accounts.setdefault(event.client, _Account(event.client))
            answered = account.served if event.kind is Kind.ACK else account.refused
            answered.append((questions[event.message], event))
    return accounts


def _served(account: _Account) -> list[Breach]:
    denied, returning = account.denied, account.returning
    if denied is None:
        return []
    return [
        Breach("served without a right", question.message, (denied, question, answer))
        for question, answer in account.served
        if denied.at < question.at and (returning is None or answer.at < returning.at)
    ]


def _kept_out(account: _Account) -> list[Breach]:
    """Judge refusals while the permission existed: before its revocation began, and after it was restored."""
    if account.unsure:
        return []
    breaches = []
    for question, answer in account.refused:
        if _ACCESS not in answer.detail:
            continue
        for since, until in (
            (account.granted, account.denying),
            (account.returned, None),
        ):
            begun = since is not None and since.at + _RETURN < question.at
            if since is not None and begun and (until is None or answer.at < until.at):
                why = "refused for want of a right that it has"
                breaches.append(Breach(why, question.message, (since, question, answer)))
    return breaches


def _not_served_again(account: _Account, ordinary: Sequence[int]) -> list[Breach]:
    """Judge whether an account with restored permission is served while the broker group serves others."""
    returned = account.returned
    if returned is None or account.unsure:
        return []
    until = _served_seconds(ordinary, returned.at)
    if until is None or any(returned.at < answer.at <= until for _, answer in account.served):
        return []
    asked = [question for question in account.asked if question.at > until]
    if not asked:
        return []  # it was not in use for so long
    why = f"not served in {RETURN_S:.0f} s in which others were, after its right was given back"
    return [Breach(why, account.name, (returned, asked[0]))]


def _served_seconds(ordinary: Sequence[int], since: int) -> int | None:
    """Return when others had been served in `RETURN_S` different seconds; None if they never were."""
    seconds: set[int] = set()
    for at in ordinary[bisect_left(ordinary, since) :]:
        seconds.add((at - since) // _SECOND)
        if len(seconds) >= RETURN_S:
            return at
    return None


def _counts(accounts: Iterable[_Account], changes: Sequence[int]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    kinds: dict[str, int] = defaultdict(int)
    for account in accounts:
        counts["requests served"] += len(account.served)
        denied, returning, returned = account.denied, account.returning, account.returned
        if denied is None:
            continue
        counts["denials"] += 1
        kinds[f"denied by {denied.detail.removeprefix(Act.DENIED)}"] += 1
        end = returning.at if returning is not None else denied.at
        counts["requests refused meanwhile"] += sum(
            denied.at < question.at and answer.at < end and _ACCESS in answer.detail
            for question, answer in account.refused
        )
        counts["kept across a change of leader"] += any(denied.at < at < end for at in changes)
        counts["served again"] += returned is not None and any(
            question.at > returned.at for question, _ in account.served
        )
    return {**counts, **kinds}
