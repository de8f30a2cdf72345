"""The oracle finds each kind of broken promise, and nothing in a correct history."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq.oracle.verdict import Defect, Event, Kind, Verdict, judge


def timed(events: Iterable[Event]) -> list[Event]:
    """Give *events* rising times in their order."""
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
GROWN = Event(0, Kind.GROWN, topic="orders")
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
    """Law: a correct history has no findings."""
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


def failed(message: str, offset: int) -> Event:
    return replace(deliver(message, offset), kind=Kind.FAILED)


def dead(message: str, offset: int) -> Event:
    return replace(deliver(message, offset), kind=Kind.DEAD)


def test_what_follows_a_parked_key_into_the_dead_letters_was_not_skipped() -> None:
    """Law: a dead letter of a parked key that no listener saw is not skipped; a missing one is."""
    sent = [each for name in "abc" for each in (send(name), ack(name, ord(name) - ord("a")))]
    begun = [deliver("a", 0), dead("a", 0)]
    rest = [deliver("c", 2), done("c", 2), DRAINED]

    assert defects([*sent, *begun, dead("b", 1), *rest]) == []
    assert defects([*sent, *begun, *rest]) == [Defect.SKIPPED, Defect.LOST]


def test_a_letter_that_nobody_saw_may_be_redelivered_after_its_key_was_released() -> None:
    """Law: such a letter may be redelivered after its key was released."""
    sent = [send("a"), ack("a", 0), send("b"), ack("b", 1)]
    rest = [deliver("b", 1), done("b", 1), deliver("a", 0), done("a", 0), deliver("b", 1)]

    assert defects([*sent, dead("a", 0), *rest]) == []
    assert Defect.REORDERED in defects([*sent, *rest])


def refused(message: str) -> Event:
    return replace(send(message), kind=Kind.REFUSED)


def elsewhere(number: int) -> list[Event]:
    """Return a message that another producer, group and queue handled correctly, as a backdrop."""
    name = f"other{number}"
    sent = [send(name, "other", "p2"), ack(name, number, "g0:7")]
    taken = [deliver(name, number), done(name, number)]
    return [*sent, *(replace(each, queue="g0:7", group="audit", topic="orders") for each in taken)]


# The planted events, then the defect, message and queue that must be named, and the events (by their
# places in the planted ones) that are the whole slice.
PLANTED = {
    "acknowledged, not in the log": (
        [send("a"), ack("a", 0), SCANNED],
        (Defect.LOST, "a", "g0:0", [1, 2]),
    ),
    "acknowledged, never delivered": (
        [send("a"), ack("a", 0), DRAINED],
        (Defect.LOST, "a", "g0:0", [1, 2]),
    ),
    "one send, two places in the log": (
        [send("a"), ack("a", 0), stored("a", 0), stored("a", 4)],
        (Defect.DUPLICATED, "a", "g0:0", [1, 3]),
    ),
    "one send, acknowledged twice": (
        [send("a"), ack("a", 0), ack("a", 3)],
        (Defect.DUPLICATED, "a", "g0:0", [1, 2]),
    ),
    "a later send stands earlier": (
        [send("a"), ack("a", 5), send("b"), ack("b", 3)],
        (Defect.REORDERED, "b", "g0:0", [1, 2, 3]),
    ),
    "a key moves to another queue": (
        [send("a"), ack("a", 5), send("b"), ack("b", 6, queue="g0:1")],
        (Defect.REORDERED, "b", "g0:1", [1, 2, 3]),
    ),
    "a later send is delivered earlier": (
        [send("a"), ack("a", 0), send("b"), ack("b", 1), deliver("b", 1), deliver("a", 0)],
        (Defect.REORDERED, "b", "g0:0", [4, 5]),
    ),
    "two listeners at once": (
        [deliver("a", 0), deliver("a", 0, client="c2", epoch=2), done("a", 0)],
        (Defect.OVERLAPPED, "a", "g0:0", [0, 1]),
    ),
    "the former owner goes on": (
        [
            deliver("a", 0, client="c2", epoch=2),
            done("a", 0, client="c2"),
            deliver("b", 1, epoch=1),
            done("b", 1),
        ],
        (Defect.OVERLAPPED, "b", "g0:0", [0, 2]),
    ),
    "an epoch is given twice": (
        [deliver("a", 0), done("a", 0), deliver("b", 1, client="c2"), done("b", 1, client="c2")],
        (Defect.OVERLAPPED, "b", "g0:0", [0, 2]),
    ),
    "an offset is jumped over": (
        [ack("b", 1), deliver("a", 0), done("a", 0), deliver("c", 2), done("c", 2)],
        (Defect.SKIPPED, "c", "g0:0", [0, 3]),
    ),
    "a failed message is overtaken": (
        [deliver("a", 0), failed("a", 0), deliver("b", 1), done("b", 1)],
        (Defect.OVERTAKEN, "b", "g0:0", [0, 2]),
    ),
    "a message overtakes one on its way to the dead letters": (
        [deliver("a", 0), failed("a", 0), deliver("b", 1), dead("a", 0), done("b", 1)],
        (Defect.OVERTAKEN, "b", "g0:0", [0, 2]),
    ),
    "a commit falls": (
        [deliver("z", 9), done("z", 9), commit(7), commit(6)],
        (Defect.ROLLED_BACK, "", "g0:0", [2, 3]),
    ),
    "what is committed is delivered again": (
        [
            deliver("a", 0),
            done("a", 0),
            replace(commit(1), epoch=1),
            deliver("a", 0, client="c2", epoch=2),
            done("a", 0),
        ],
        (Defect.ROLLED_BACK, "a", "g0:0", [2, 3]),
    ),
    "a refused send is in the log": (
        [send("a"), refused("a"), stored("a", 0)],
        (Defect.RESURRECTED, "a", "g0:0", [1, 2]),
    ),
    "a refused send is delivered": (
        [send("a"), refused("a"), deliver("a", 0), done("a", 0)],
        (Defect.RESURRECTED, "a", "g0:0", [1, 2]),
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_each_broken_promise_is_found_with_its_evidence(name: str) -> None:
    """Law: a planted defect is the only finding; it names message and queue,
    and its slice holds exactly the events that show it.
    """
    planted, (defect, message, queue, slice_) = PLANTED[name]
    backdrop = [elsewhere(number) for number in range(2 * len(planted) + 2)]
    mixed: list[Event] = []
    for number, event in enumerate(planted):
        # The final read covers the backdrop too.
        if event.kind is Kind.SCANNED:
            mixed += [stored(f"other{each}", each) for each in range(2 * number + 2)]
            mixed = [
                replace(e, queue="g0:7") if e.message.startswith("other") else e for e in mixed
            ]
        if event.kind is not Kind.DRAINED:
            mixed += [*backdrop[2 * number], *backdrop[2 * number + 1]]
        else:
            mixed = [e for e in mixed if not e.message.startswith("other")]
        mixed.append(event)

    (finding,) = judge(timed(mixed)).findings

    assert (finding.defect, finding.message, finding.queue) == (defect, message, queue)
    bare = [replace(event, at=0) for event in sorted(finding.evidence, key=lambda each: each.at)]
    assert bare == [planted[place] for place in slice_]
    assert len(finding.lines()) == len(slice_)


def test_a_dead_letter_makes_room() -> None:
    """Law: after a dead letter the next message may be delivered."""
    history = [deliver("a", 0), failed("a", 0), dead("a", 0), deliver("b", 1), done("b", 1)]

    assert defects(history) == []


def test_what_retention_has_taken_is_neither_lost_nor_skipped() -> None:
    """Law: messages that retention took are neither lost nor skipped; those lost before are."""
    dropped = [replace(ack(name, n), kind=Kind.DROPPED) for n, name in enumerate("ab")]
    sends = [event for n, name in enumerate("abc") for event in (send(name), ack(name, n))]
    taken = [deliver("c", 2), done("c", 2), stored("c", 2), SCANNED, DRAINED]

    assert defects([*sends, deliver("a", 0), done("a", 0), *dropped, *taken]) == []
    assert defects([*sends, deliver("a", 0), done("a", 0), dropped[0], *taken]) == [
        Defect.SKIPPED,
        Defect.LOST,
    ]


def test_redelivery_after_a_crash_is_no_defect() -> None:
    """Law: after a crash, messages since the last commit may come again in order."""
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


def test_sends_of_one_key_are_in_order_from_any_sender() -> None:
    """Law: sends of a key must be stored in the order of their acknowledgements, from any producers."""
    sent = [send("a"), ack("a", 5), send("b", process="p2"), ack("b", 4)]
    moved = [send("a"), ack("a", 0), send("b", process="p2"), ack("b", 0, "g0:1")]
    taken = [replace(deliver("b", 0), queue="g0:1"), deliver("a", 0)]

    assert defects(sent) == [Defect.REORDERED]
    assert defects([*moved, *taken]) == [Defect.REORDERED, Defect.REORDERED]
    assert defects([send("a"), send("b", process="p2"), ack("b", 0), ack("a", 1)]) == []


def test_a_send_in_flight_hides_nothing_around_it() -> None:
    """Law: a send is compared with all that were acknowledged before it began, not only with its neighbour."""
    begun = [send("a"), send("b"), ack("a", 5), send("c")]
    delivered = [deliver("c", 6), done("c", 6), deliver("a", 5), done("a", 5)]

    assert defects([*begun, ack("c", 4), ack("b", 6)]) == [Defect.REORDERED]
    assert defects([*begun, ack("c", 6), ack("b", 7), *delivered]) == [Defect.REORDERED]
    assert defects([*begun, ack("c", 6, "g0:1"), ack("b", 6)]) == [Defect.REORDERED]


def test_sends_in_flight_around_a_growth_do_not_count_as_moves() -> None:
    """Law: sends in flight during an expansion do not count as moves of their key."""
    begun = [send("a"), ack("a", 0), send("b"), GROWN, send("c"), ack("c", 0, "g0:1")]
    late = [ack("b", 1), send("d"), ack("d", 1, "g0:1")]
    back = [send("e"), ack("e", 2)]

    assert defects([*begun, *late]) == []
    assert defects([*begun, *late, *back]) == [Defect.REORDERED]


@given(data=st.data(), count=st.integers(2, 9))
@settings(max_examples=300, deadline=None)
def test_a_broken_order_is_found_where_a_comparison_of_all_pairs_finds_one(
    data: st.DataObject, count: int
) -> None:
    """Law: the oracle finds a broken order exactly if a comparison of all pairs finds one."""
    edges = data.draw(st.permutations([name for name in range(count) for _ in range(2)]))
    offsets = data.draw(st.permutations(range(count)))
    turns = data.draw(st.permutations(range(count)))
    history, begun, ended = [], dict[int, int](), dict[int, int]()
    for at, name in enumerate(edges):
        if name in begun:
            ended[name] = at
            history.append(ack(str(name), offsets[name]))
        else:
            begun[name] = at
            history.append(send(str(name), process=str(name)))
    history += [replace(deliver(str(n), offsets[n]), group="other") for n in turns]
    is_broken = any(
        ended[a] < begun[b] and (offsets[a] > offsets[b] or turns.index(a) > turns.index(b))
        for a in range(count)
        for b in range(count)
    )

    assert (Defect.REORDERED in defects(history)) is is_broken


def test_overlapping_sends_of_one_key_promise_no_order() -> None:
    """Law: overlapping sends of one key have no order."""
    assert defects([send("a"), send("b"), ack("b", 0), ack("a", 1)]) == []


def test_a_message_that_is_not_done_is_overtaken_across_others() -> None:
    """Law: a message that is not done is overtaken by any later one, and reported once."""
    sends = [ack(name, offset) for offset, name in enumerate("abcd")]
    begun = [*sends, deliver("a", 0), failed("a", 0)]
    unseen = replace(done("b", 1), kind=Kind.DEAD)
    later = [deliver("c", 2), done("c", 2), deliver("d", 3), done("d", 3)]

    assert defects([*begun, unseen, *later]) == [Defect.OVERTAKEN]
    assert defects([*begun, deliver("b", 1), done("b", 1), *later]) == [Defect.OVERTAKEN]
    assert defects([*begun, deliver("a", 0), done("a", 0), unseen, *later]) == []


def test_a_jump_costs_what_the_history_holds() -> None:
    """Law: the cost of a jump depends on the events in the history, not on the offsets."""
    assert defects([ack("a", 0), deliver("a", 0), done("a", 0), deliver("z", 10**15)]) == []


def test_what_the_history_does_not_show_is_named_as_not_judged() -> None:
    """Law: without a final read or a drained group, loss is listed as not judged."""
    verdict = judge(timed([send("a"), ack("a", 0)]))

    assert verdict.kept
    assert verdict.not_judged == ("loss in topic orders", "order of delivery")


def test_the_longest_gap_around_a_fault_is_measured() -> None:
    """Law: the longest gap between acknowledgements around a fault is measured, as the fail-over time."""
    second = 1_000_000_000
    history = [
        replace(ack("a", 0), at=0),
        Event(at=second, kind=Kind.FAULT, detail="kill leader"),
        replace(ack("b", 1), at=2 * second),
        replace(ack("c", 2), at=2 * second + 5),
    ]

    assert judge(history).ack_gap_ms == {"kill leader": 2000.0}


def test_what_an_ordered_group_began_last_is_lost_unless_it_was_done() -> None:
    """Law: in a drained group, a delivered message that was not done is lost, also the last one of a queue."""
    begun = [*CLEAN[:7], deliver("b", 1)]
    gone = Event(0, Kind.GONE, client="c1")
    again = [deliver("b", 1, "c2", epoch=2), done("b", 1, "c2")]
    forwards = replace(commit(2), kind=Kind.RESET)

    assert defects([*begun, DRAINED]) == [Defect.LOST]
    assert defects([*begun, gone, commit(2), DRAINED]) == [Defect.LOST]
    assert defects([*begun, failed("b", 1), DRAINED]) == [Defect.LOST]
    for end in (again, [dead("b", 1)], [forwards], [replace(forwards, offset=-1)]):
        assert defects([*begun, gone, *end, DRAINED]) == []
    # A message that nobody acknowledged may come after a group was seen to be done with all others.
    assert defects([*CLEAN[:9], deliver("c", 2), DRAINED]) == []


@given(data=st.data(), length=st.integers(2, 12))
@settings(max_examples=100, deadline=None)
def test_removing_any_delivery_but_the_first_is_noticed(data: st.DataObject, length: int) -> None:
    """Law: removing any delivery but the first from a correct history is found."""
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
    """Law: a client whose lease has lapsed by its own clock does not overlap the next one,
    even if its listener still runs.
    """
    begun = [send("a"), ack("a", 0), deliver("a", 0)]
    lapsed = replace(deliver("a", 0), kind=Kind.LAPSED)
    after = [deliver("a", 0, client="c2", epoch=2), done("a", 0, client="c2"), done("a", 0)]

    assert judge(timed([*begun, lapsed, *after])).number(Defect.OVERLAPPED) == 0
    assert judge(timed([*begun, *after])).number(Defect.OVERLAPPED) == 1


def test_a_finding_shows_its_slice_of_history() -> None:
    """Law: a finding shows the events that prove it, from the oldest on, with the time between them."""
    events = [send("a"), ack("a", 0), SCANNED]

    (finding,) = judge(timed(events)).findings

    assert finding.lines() == [
        "+0.000 ms ack process=p1 message=a topic=orders queue=g0:0 key=k offset=0",
        "+0.000 ms scanned topic=orders",
    ]


def _moved(*middle: Event) -> Verdict:
    """Judge a key whose first message is in one queue and whose second is in another."""
    later = replace(ack("b", 0), queue="g0:7")
    taken = replace(deliver("b", 0), queue="g0:7")
    return judge(timed([send("a"), ack("a", 0), *middle, send("b"), later, taken, SCANNED]))


def test_a_key_may_move_to_another_queue_when_the_topic_has_grown_and_only_then() -> None:
    """Law: a key may move to another queue once per expansion, and only then."""
    assert _moved(deliver("a", 0), done("a", 0)).number(Defect.REORDERED) == 1
    assert _moved(deliver("a", 0), done("a", 0), GROWN).number(Defect.REORDERED) == 0


def test_a_key_that_moved_must_not_be_worked_on_in_two_queues_at_once() -> None:
    """Law: a key's first message must be done in the old queue before the next is delivered in the new one."""
    late = [
        send("a"),
        ack("a", 0),
        deliver("a", 0),
        GROWN,
        send("b"),
        replace(ack("b", 0), queue="g0:7"),
        replace(deliver("b", 0), queue="g0:7"),
        done("a", 0),
        SCANNED,
    ]

    assert judge(timed(late)).number(Defect.REORDERED) == 1


def test_a_group_that_came_after_a_growth_may_read_both_lists_side_by_side() -> None:
    """Law: a group that came after an expansion may read both queue lists in parallel; one that was known before may not."""
    later = replace(ack("b", 0), queue="g0:7")
    early = [replace(deliver("b", 0), queue="g0:7"), deliver("a", 0), done("a", 0)]
    sent = [send("a"), ack("a", 0), GROWN, send("b"), later]
    granted = Event(0, Kind.LOCK, topic="orders", group=deliver("a", 0).group, queue="g0:0")

    assert judge(timed([*sent, *early, SCANNED])).number(Defect.REORDERED) == 0
    assert judge(timed([granted, *sent, *early, SCANNED])).number(Defect.REORDERED) == 1


def test_a_refusal_counts_only_while_nothing_was_tried_after_it() -> None:
    """Law: a refusal counts only if nothing was tried after it."""
    refused = [
        Event(1, Kind.SEND, process="p", topic="t", message="m"),
        Event(2, Kind.REFUSED, process="p", topic="t", message="m"),
    ]
    again = Event(3, Kind.SEND, process="p", topic="t", message="m")
    stored = Event(9, Kind.STORED, topic="t", message="m", queue="q", offset=0)

    assert judge([*refused, stored]).number(Defect.RESURRECTED) == 1
    assert judge([*refused, again, stored]).number(Defect.RESURRECTED) == 0
    later = Event(4, Kind.REFUSED, process="p", topic="t", message="m")
    assert judge([*refused, again, later, stored]).number(Defect.RESURRECTED) == 1
    unknown = replace(refused[1], kind=Kind.UNKNOWN)
    assert judge([refused[0], unknown, again, later, stored]).number(Defect.RESURRECTED) == 0
