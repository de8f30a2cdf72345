"""The oracle finds each way of breaking the promise, and nothing in a history that kept it."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq.oracle import Defect, Event, Kind, Verdict, judge


def timed(events: Iterable[Event]) -> list[Event]:
    """Give *events* rising times, in the order they are written down."""
    return [replace(event, at=number) for number, event in enumerate(events)]


def send(message: str, key: str = "k", process: str = "p1") -> Event:
    return Event(0, Kind.SEND, process, "orders", key, message)


def ack(message: str, offset: int, queue: str = "g0:0") -> Event:
    return Event(0, Kind.ACK, "p1", "orders", "k", message, queue, offset)


def deliver(message: str, offset: int, client: str = "c1", epoch: int = 1) -> Event:
    return Event(
        0,
        Kind.DELIVER,
        topic="orders",
        message=message,
        queue="g0:0",
        offset=offset,
        group="billing",
        client=client,
        epoch=epoch,
    )


def done(message: str, offset: int, client: str = "c1") -> Event:
    return replace(deliver(message, offset, client), kind=Kind.DONE)


def commit(offset: int) -> Event:
    return Event(0, Kind.COMMIT, topic="orders", queue="g0:0", offset=offset, group="billing")


def stored(message: str, offset: int) -> Event:
    return replace(ack(message, offset), kind=Kind.STORED)


SCANNED = Event(0, Kind.SCANNED, topic="orders")
DRAINED = Event(0, Kind.DRAINED, topic="orders", group="billing")

CLEAN = [
    send("a"),
    ack("a", 0),
    send("b"),
    ack("b", 1),
    deliver("a", 0),
    done("a", 0),
    commit(1),
    deliver("b", 1),
    done("b", 1),
    commit(2),
    stored("a", 0),
    stored("b", 1),
    SCANNED,
    DRAINED,
]


def defects(events: Iterable[Event]) -> list[Defect]:
    return [finding.defect for finding in judge(timed(events)).findings]


def test_a_history_that_kept_the_promise_has_no_findings() -> None:
    """Sent, acknowledged, delivered in order and committed: there is nothing to find."""
    verdict = judge(timed(CLEAN))

    assert verdict == Verdict(
        findings=(),
        counts={
            "sent": 2,
            "acknowledged": 2,
            "refused": 0,
            "unknown": 0,
            "delivered": 2,
            "redelivered": 0,
            "dead-lettered": 0,
        },
        not_judged=(),
        duration_s=13e-9,
        ack_gap_ms={},
    )


@pytest.mark.parametrize(
    ("defect", "events"),
    [
        pytest.param(
            Defect.LOST, [send("a"), ack("a", 0), SCANNED], id="acknowledged, not in the log"
        ),
        pytest.param(
            Defect.LOST, [send("a"), ack("a", 0), DRAINED], id="acknowledged, never delivered"
        ),
        pytest.param(
            Defect.DUPLICATED,
            [send("a"), ack("a", 0), stored("a", 0), stored("a", 4)],
            id="one send, two places",
        ),
        pytest.param(
            Defect.REORDERED,
            [send("a"), ack("a", 5), send("b"), ack("b", 3)],
            id="a later send stands earlier",
        ),
        pytest.param(
            Defect.REORDERED,
            [send("a"), ack("a", 5), send("b"), ack("b", 6, queue="g0:1")],
            id="a key moves to another queue",
        ),
        pytest.param(
            Defect.OVERLAPPED,
            [deliver("a", 0), deliver("b", 1, client="c2", epoch=2), done("a", 0)],
            id="two listeners at once",
        ),
        pytest.param(
            Defect.OVERLAPPED,
            [
                deliver("a", 0, client="c2", epoch=2),
                done("a", 0, client="c2"),
                deliver("b", 1, epoch=1),
                done("b", 1),
            ],
            id="the former owner goes on",
        ),
        pytest.param(
            Defect.SKIPPED,
            [
                ack("b", 1),
                deliver("a", 0),
                done("a", 0),
                deliver("c", 2),
                done("c", 2),
            ],
            id="an offset is jumped over",
        ),
        pytest.param(
            Defect.OVERTAKEN,
            [
                deliver("a", 0),
                replace(deliver("a", 0), kind=Kind.FAILED),
                deliver("b", 1),
                done("b", 1),
            ],
            id="a failed message is overtaken",
        ),
        pytest.param(Defect.ROLLED_BACK, [commit(7), commit(6)], id="a commit falls"),
        pytest.param(
            Defect.RESURRECTED,
            [send("a"), replace(send("a"), kind=Kind.REFUSED), stored("a", 0)],
            id="a refused send appears",
        ),
    ],
)
def test_each_broken_promise_is_found_with_its_evidence(
    defect: Defect, events: list[Event]
) -> None:
    """The history that shows one defect yields a finding of that kind, with two or more events."""
    findings = [f for f in judge(timed(events)).findings if f.defect is defect]

    assert findings
    assert all(len(finding.evidence) >= 2 for finding in findings)


def test_redelivery_after_a_crash_is_no_defect() -> None:
    """The tail since the last commit comes again, in order, to the next owner."""
    history = [
        deliver("a", 0),
        done("a", 0),
        deliver("b", 1),
        Event(0, Kind.GONE, client="c1"),
        deliver("a", 0, client="c2", epoch=2),
        done("a", 0, client="c2"),
        deliver("b", 1, client="c2", epoch=2),
        done("b", 1, client="c2"),
    ]

    assert defects(history) == []


def test_overlapping_sends_of_one_key_promise_no_order() -> None:
    """A producer that does not wait for the first acknowledgement gets no order between the two."""
    assert defects([send("a"), send("b"), ack("b", 0), ack("a", 1)]) == []


def test_an_offset_may_fall_after_a_reset() -> None:
    """An administrator's reset starts a new line of commits."""
    reset = replace(commit(3), kind=Kind.RESET)

    assert defects([commit(7), reset, commit(4)]) == []


def test_what_the_history_does_not_tell_is_named_as_not_judged() -> None:
    """Without a final read or a drained group, loss is not judged, and the verdict says so."""
    verdict = judge(timed([send("a"), ack("a", 0)]))

    assert verdict.kept
    assert verdict.not_judged == ("loss in topic orders", "order of delivery")


def test_the_longest_gap_around_a_fault_is_measured() -> None:
    """The fail-over time is the longest time without an acknowledgement after the kill."""
    second = 1_000_000_000
    history = [
        replace(ack("a", 0), at=0),
        Event(at=second, kind=Kind.FAULT, detail="kill leader"),
        replace(ack("b", 1), at=2 * second),
        replace(ack("c", 2), at=2 * second + 5),
    ]

    assert judge(history).ack_gap_ms == {"kill leader": 2000.0}


@given(data=st.data(), length=st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_removing_any_delivery_but_the_first_is_noticed(data: st.DataObject, length: int) -> None:
    """A complete run is clean; the same run with one delivery missing is not."""
    names = [f"m{number}" for number in range(length)]
    sends = [event for n, name in enumerate(names) for event in (send(name), ack(name, n))]
    deliveries = [(deliver(name, n), done(name, n)) for n, name in enumerate(names)]
    missing = data.draw(st.integers(1, length - 1))

    complete = [*sends, *(event for pair in deliveries for event in pair), DRAINED]
    with_hole = [
        *sends,
        *(event for n, pair in enumerate(deliveries) if n != missing for event in pair),
        DRAINED,
    ]

    assert defects(complete) == []
    assert Defect.LOST in defects(with_hole)


def test_a_client_whose_lease_has_lapsed_does_not_overlap_the_next_one() -> None:
    """It knows by its own clock that it must not act any more; its listener may still run."""
    begun = [send("a"), ack("a", 0), deliver("a", 0)]
    lapsed = replace(deliver("a", 0), kind=Kind.LAPSED)
    after = [deliver("a", 0, client="c2", epoch=2), done("a", 0, client="c2"), done("a", 0)]

    assert judge(timed([*begun, lapsed, *after])).number(Defect.OVERLAPPED) == 0
    assert judge(timed([*begun, *after])).number(Defect.OVERLAPPED) == 1


def test_a_finding_tells_its_slice_of_history() -> None:
    """The events that show it and no others, from the oldest on, with the time between them."""
    events = [send("a"), ack("a", 0), SCANNED]

    (finding,) = judge(timed(events)).findings

    assert finding.lines() == [
        "+0.000 ms ack process=p1 message=a topic=orders queue=g0:0 key=k offset=0",
        "+0.000 ms scanned topic=orders",
    ]
