"""Each law of rights notices its case: histories of a few events."""

import pytest

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.rights import GUARDED, RETURN_S, Act, Denial, judge

SECOND = 1_000_000_000
NO = "org.apache.rocketmq.acl.common.AclException: No acl config for prober-1"


def note(act: str, at: float, account: str = "prober-1") -> Event:
    return Event(int(at * SECOND), Kind.NOTED, topic=GUARDED, client=account, detail=act)


def asked(number: int, at: float, answered: float, kind: Kind, detail: str = "") -> list[Event]:
    facts = {"topic": GUARDED, "client": "prober-1", "message": f"prober.1:{number}"}
    return [
        Event(int(at * SECOND), Kind.SEND, **facts),  # type: ignore[arg-type]  # fields by name
        Event(int(answered * SECOND), kind, detail=detail, **facts),  # type: ignore[arg-type]  # the same
    ]


def sent_by_others(at: float) -> Event:
    return Event(int(at * SECOND), Kind.ACK, topic="orders", message="m")


DENIED = Act.DENIED + Denial.DELETED
ROUND = (
    note(Act.GRANTED, 1),
    note(Act.DENYING, 19),
    note(DENIED, 20),
    note(Act.RETURNING, 24),
    note(Act.RETURNED, 24.2),
)


def told(*events: Event, others: tuple[Event, ...] = ()) -> list[str]:
    return [breach.explanation for breach in judge(events, others).breaches]


def test_a_denial_that_holds_and_ends_is_fine() -> None:
    """Served before, refused meanwhile, served after; a change of leader in between is counted."""
    ruling = judge(
        [
            *ROUND,
            *asked(1, 2, 2.1, Kind.ACK),
            *asked(2, 21, 21.1, Kind.REFUSED, NO),
            *asked(3, 25, 25.1, Kind.ACK),
        ],
        [sent_by_others(25)],
        [(0, 1), (22 * SECOND, None), (int(22.5 * SECOND), 2)],
    )

    assert ruling.breaches == ()
    assert ruling.counts == {
        "requests served": 2,
        "denials": 1,
        "denied by account deleted": 1,
        "requests refused meanwhile": 1,
        "kept across a change of leader": 1,
        "served again": 1,
    }
    assert set(ruling.untried) == {f"denied by {how}" for how in Denial} - {
        f"denied by {Denial.DELETED}"
    }


def test_who_is_served_without_a_right_is_found() -> None:
    """Asked after the denial was confirmed, answered before anybody began to give the right back."""
    assert told(*ROUND, *asked(1, 21, 21.1, Kind.ACK)) == ["served without a right"]


@pytest.mark.parametrize(("at", "answered"), [(19.9, 21.0), (23.9, 24.1)])
def test_what_was_under_way_may_be_served(at: float, answered: float) -> None:
    """Asked before the denial was confirmed, or answered after the right was on its way back."""
    assert told(*ROUND, *asked(1, at, answered, Kind.ACK)) == []


def test_a_denial_that_is_never_given_back_holds_to_the_end() -> None:
    """A new leader that has forgotten it is found whenever it answers."""
    assert told(*ROUND[:3], *asked(1, 400, 400.1, Kind.ACK)) == ["served without a right"]


def test_who_is_refused_with_a_right_is_found() -> None:
    """Long after it was granted and before it was denied, or long after it was given back."""
    late = 24.2 + RETURN_S + 1

    assert told(*ROUND, *asked(1, 17, 17.1, Kind.REFUSED, NO)) == [
        "refused for want of a right that it has"
    ]
    assert told(*ROUND, *asked(1, late, late + 0.1, Kind.REFUSED, NO)) == [
        "refused for want of a right that it has"
    ]


def test_other_refusals_are_no_matter_of_rights() -> None:
    """Nobody leads: that is no want of a right; nor is a refusal soon after the right came back."""
    busy = "code 14: this replica does not lead"

    assert told(*ROUND, *asked(1, 60, 60.1, Kind.REFUSED, busy)) == []
    assert told(*ROUND, *asked(1, 26, 26.1, Kind.REFUSED, NO)) == []


def test_a_denial_may_take_effect_before_it_is_confirmed() -> None:
    """From when it was asked for, refusals are what was asked for."""
    assert told(*ROUND, *asked(1, 18.9, 19.1, Kind.REFUSED, NO)) == []


def test_who_is_not_served_again_is_found() -> None:
    """Others are served for long enough, this one is not, for whatever reason."""
    others = tuple(sent_by_others(25 + second) for second in range(int(RETURN_S)))
    busy = asked(1, 45, 45.1, Kind.REFUSED, "code 2: try again")
    silent = asked(1, 45, 48.0, Kind.UNKNOWN)
    served = asked(2, 26, 26.1, Kind.ACK)

    for question in (busy, silent):
        (found,) = told(*ROUND, *question, others=others)
        assert found.startswith("not served")
        assert told(*ROUND, *question) == []
        assert told(*ROUND, *question, others=others[:-1]) == []
        assert told(*ROUND, *question, *served, others=others) == []


def test_a_denial_that_was_not_answered_excuses_refusals_and_nothing_else() -> None:
    """It may still come about later; what was confirmed all the same holds."""
    late = 24.2 + RETURN_S + 1
    events = (*ROUND, note(Act.UNSURE, 19.5))

    assert told(*events, *asked(1, late, late + 0.1, Kind.REFUSED, NO)) == []
    assert told(*events, *asked(1, 21, 21.1, Kind.ACK)) == ["served without a right"]


def test_a_run_without_a_denial_says_so() -> None:
    """Kept for want of a case is not kept."""
    assert "requests refused meanwhile" in judge([]).untried
