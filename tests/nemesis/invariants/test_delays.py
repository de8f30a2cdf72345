"""Each law of messages that wait notices its case: histories of a few events."""

from orderlymq.oracle.verdict import Event, Kind
from tests.nemesis.invariants.delays import LATER, detail_of, judge

MS = 1_000_000


def send(message: str, at: int, delay_ms: int) -> list[Event]:
    sent = Event(at * MS, Kind.SEND, topic=LATER, message=message, detail=detail_of(delay_ms))
    return [sent, Event((at + 3) * MS, Kind.ACK, topic=LATER, message=message)]


def delivery(message: str, at: int, offset: int = 0) -> Event:
    return Event(
        at * MS,
        Kind.DELIVER,
        topic=LATER,
        message=message,
        queue="g:0",
        offset=offset,
        group="waited",
        client="c.1",
    )


def stored(message: str, offset: int = 0) -> Event:
    return Event(9_000 * MS, Kind.STORED, topic=LATER, message=message, queue="g:0", offset=offset)


def told(*events: Event) -> list[str]:
    over = [
        Event(9_001 * MS, Kind.SCANNED, topic=LATER),
        Event(9_001 * MS, Kind.DRAINED, topic=LATER, group="waited"),
    ]
    return [breach.explanation for breach in judge([*events, *over]).breaches]


def test_what_comes_at_its_time_is_fine() -> None:
    """Due a second after its send began, a little later is well; counted when it is much later."""
    events = [
        *send("a", 0, 1_000),
        delivery("a", 1_050),
        stored("a"),
        *send("b", 5, 1_000),
        delivery("b", 3_000, offset=1),
        stored("b", offset=1),
    ]

    ruling = judge(events)

    assert ruling.breaches == ()
    assert ruling.counts == {
        "sent": 2,
        "acknowledged": 2,
        "delivered": 2,
        "delivered more than 1 s late": 1,
    }


def test_an_early_delivery_is_found() -> None:
    """Half a second before its time, even when a later delivery is in time."""
    events = (*send("a", 0, 1_000), delivery("a", 500), delivery("a", 1_500), stored("a"))

    assert told(*events) == ["delivered 500 ms before its time"]


def test_the_first_try_of_a_send_counts() -> None:
    """The broker may have stored it then, though the answer was lost and it was sent again."""
    again = Event(800 * MS, Kind.SEND, topic=LATER, message="a", detail="again")

    assert told(*send("a", 0, 1_000), again, delivery("a", 1_100), stored("a")) == []


def test_a_lost_one_is_found() -> None:
    """Acknowledged, and neither in the log nor delivered in the end."""
    (found,) = told(*send("a", 0, 1_000))

    assert found.startswith("lost: acknowledged")


def test_one_that_is_never_delivered_is_found() -> None:
    """It became visible, but a drained group has not had it."""
    (found,) = told(*send("a", 0, 1_000), stored("a"))

    assert "never delivered to group waited" in found


def test_a_second_copy_is_found() -> None:
    """Handed on twice, as after a leader that forgot how far it was."""
    events = (*send("a", 0, 1_000), delivery("a", 1_100), stored("a"), stored("a", offset=1))

    (found,) = told(*events)

    assert found.startswith("duplicated")


def test_a_run_that_delayed_nothing_says_so() -> None:
    """Kept for want of a case is not kept."""
    assert judge([]).untried == ("acknowledged", "delivered")
