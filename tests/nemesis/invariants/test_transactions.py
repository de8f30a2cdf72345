"""Each law of transactions notices its case: histories of a few events."""

import pytest

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.breaches import Ruling
from tests.nemesis.invariants.transactions import (
    DEALS,
    Step,
    checked_step,
    first_step,
    is_committed,
    judge,
    text_of,
)

MS = 1_000_000
COMMIT, ROLLBACK, LATER, LATER_ROLLBACK = (text_of("dealer.1", number) for number in range(4))


def send(message: str, at: int = 0) -> Event:
    return Event(at * MS, Kind.SEND, process="dealer.1", topic=DEALS, message=message)


def note(step: Step, message: str, at: int, process: str = "dealer.1") -> Event:
    return Event(at * MS, Kind.NOTED, process=process, topic=DEALS, message=message, detail=step)


def seen(message: str, at: int = 90, *, offset: int = 0) -> list[Event]:
    place = {"topic": DEALS, "queue": "g:0", "group": "dealt", "client": "c.1"}
    there = {"message": message, "offset": offset}
    return [
        Event(at * MS, Kind.DELIVER, **place, **there),  # type: ignore[arg-type]  # fields by name
        Event(at * MS + 1, Kind.DONE, **place, **there),  # type: ignore[arg-type]  # the same
    ]


def stored(message: str, *, offset: int = 0) -> Event:
    return Event(98 * MS, Kind.STORED, topic=DEALS, message=message, queue="g:0", offset=offset)


def ruled(*events: Event) -> Ruling:
    drained = Event(97 * MS, Kind.DRAINED, topic=DEALS, group="dealt")
    return judge([*events, drained, Event(99 * MS, Kind.SCANNED, topic=DEALS)])


def told(*events: Event) -> list[str]:
    return [breach.explanation for breach in ruled(*events).breaches]


def test_the_decision_stands_in_the_text() -> None:
    """Each producer says what the first one would have said, and some of it only when asked."""
    texts = [COMMIT, ROLLBACK, LATER, LATER_ROLLBACK]

    assert [is_committed(text) for text in texts] == [True, False, True, False]
    assert [first_step(text) for text in texts] == [
        Step.COMMIT,
        Step.ROLLBACK,
        Step.UNKNOWN,
        Step.UNKNOWN,
    ]
    assert {checked_step(text) for text in texts} == {Step.CHECKED_COMMIT, Step.CHECKED_ROLLBACK}


def test_what_ends_as_it_was_decided_is_fine() -> None:
    """A commit, a rollback, one that a check commits, and one that another process had to decide."""
    died = text_of("dealer.1", 4)
    ruling = ruled(
        send(COMMIT),
        note(Step.HALF, COMMIT, 1),
        note(Step.COMMIT, COMMIT, 2),
        *seen(COMMIT, offset=0),
        stored(COMMIT, offset=0),
        send(ROLLBACK),
        note(Step.HALF, ROLLBACK, 1),
        note(Step.ROLLBACK, ROLLBACK, 2),
        send(LATER),
        note(Step.HALF, LATER, 1),
        note(Step.UNKNOWN, LATER, 2),
        note(Step.CHECKED_COMMIT, LATER, 30),
        *seen(LATER, 91, offset=1),
        stored(LATER, offset=1),
        send(died),
        note(Step.HALF, died, 1),
        note(Step.CHECKED_COMMIT, died, 40, "dealer.2"),
        *seen(died, 92, offset=2),
        stored(died, offset=2),
    )

    assert ruling.breaches == ()
    assert ruling.untried == ()
    assert ruling.counts == {
        "begun": 4,
        "known to be stored": 4,
        "committed and visible": 3,
        "rolled back": 1,
        "decided by a check": 2,
        "committed by a check": 2,
        "decided by another process": 1,
        "left open by one that was killed": 1,
    }


def test_a_commit_that_never_shows_is_found() -> None:
    """The half is stored, its producer committed it: it must be in the log."""
    decided = (send(COMMIT), note(Step.HALF, COMMIT, 1), note(Step.COMMIT, COMMIT, 2))

    assert told(*decided) == ["committed, and not in the log"]


def test_a_commit_that_is_not_delivered_is_found() -> None:
    """A drained group has had every visible message."""
    decided = (send(COMMIT), note(Step.HALF, COMMIT, 1), note(Step.COMMIT, COMMIT, 2))

    assert told(*decided, stored(COMMIT)) == ["visible, and never delivered to group dealt"]


def test_a_rollback_that_shows_is_found() -> None:
    """Delivered or in the log, whichever producer decided it."""
    decided = (send(ROLLBACK), note(Step.HALF, ROLLBACK, 1), note(Step.ROLLBACK, ROLLBACK, 2))
    checked = (send(LATER_ROLLBACK), note(Step.CHECKED_ROLLBACK, LATER_ROLLBACK, 2))

    assert told(*decided, *seen(ROLLBACK)) == ["rolled back, and visible"]
    assert "rolled back, and visible" in told(*checked, stored(LATER_ROLLBACK))


def test_a_second_copy_is_found() -> None:
    """One commit, two places."""
    decided = (send(COMMIT), note(Step.HALF, COMMIT, 1), note(Step.COMMIT, COMMIT, 2))

    (found,) = told(*decided, *seen(COMMIT), stored(COMMIT), stored(COMMIT, offset=1))

    assert found.startswith("duplicated")


def test_what_shows_before_it_is_committed_is_found() -> None:
    """A half is unseen until somebody has said commit."""
    early = (*seen(COMMIT, 2), note(Step.COMMIT, COMMIT, 3), stored(COMMIT))
    never = (*seen(COMMIT), stored(COMMIT))

    for rest in (early, never):
        found = told(send(COMMIT), note(Step.HALF, COMMIT, 1), *rest)
        assert "visible before anybody committed it" in found


@pytest.mark.parametrize("steps", [(Step.HALF,), (Step.HALF, Step.UNKNOWN)])
def test_what_nobody_was_asked_about_is_found(steps: tuple[Step, ...]) -> None:
    """Its producer died inside its local transaction, or did not know: a check must decide it."""
    notes = [note(step, LATER, 1 + number) for number, step in enumerate(steps)]

    assert told(send(LATER), *notes) == ["left open, and nobody was asked"]


def test_a_refused_half_that_shows_is_found() -> None:
    """A definite refusal: it is in no log."""
    refused = Event(3 * MS, Kind.REFUSED, topic=DEALS, message=COMMIT)

    assert "refused for good, and visible" in told(
        send(COMMIT), refused, stored(COMMIT), *seen(COMMIT)
    )


def test_what_nobody_has_sent_is_found() -> None:
    """A message out of nothing."""
    assert told(*seen(COMMIT), stored(COMMIT)) == ["visible, and nobody has sent it"]


def test_a_half_of_which_nobody_knows_may_be_there_or_not() -> None:
    """Its send was not answered, no check has asked: both is allowed, until a check shows that it is stored."""
    unknown = Event(3 * MS, Kind.UNKNOWN, topic=DEALS, message=COMMIT)

    assert told(send(COMMIT), unknown) == []
    assert told(send(COMMIT), unknown, note(Step.CHECKED_COMMIT, COMMIT, 30)) == [
        "committed, and not in the log"
    ]


def test_a_run_that_tried_nothing_says_so() -> None:
    """Kept for want of a case is not kept."""
    assert "decided by another process" in ruled().untried
