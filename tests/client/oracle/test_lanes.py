"""The oracle for groups by key: each rule of a lane, kept and broken."""

from collections.abc import Iterable
from dataclasses import replace

from orderlymq.oracle.verdict import Defect, Event, Kind, judge

DRAINED = Event(0, Kind.DRAINED, topic="T", group="G")


def event(kind: Kind, message: str, offset: int, **more: object) -> Event:
    """Return an event about a message; its key is the first letter of its name."""
    facts = {"topic": "T", "queue": "a:0", "key": message[0], "message": message, **more}
    return Event(0, kind, offset=offset, **facts)  # type: ignore[arg-type]  # fields by name


def sent(*messages: str) -> list[Event]:
    """Return the sends of messages at the offsets 0, 1, ..., each acknowledged before the next begins."""
    return [
        each
        for offset, message in enumerate(messages)
        for each in (
            event(Kind.SEND, message, -1, queue="", process="p"),
            event(Kind.ACK, message, offset),
        )
    ]


def listened(kind: Kind, message: str, offset: int, attempt: int, *, client: str = "one") -> Event:
    return event(kind, message, offset, group="G", client=client, attempt=attempt)


def given(message: str, offset: int, attempt: int, *, client: str = "one") -> Event:
    return listened(Kind.DELIVER, message, offset, attempt, client=client)


def done(message: str, offset: int, attempt: int, *, client: str = "one") -> Event:
    return listened(Kind.DONE, message, offset, attempt, client=client)


def defects(events: Iterable[Event]) -> list[Defect]:
    timed = [replace(each, at=at) for at, each in enumerate(events)]
    return [finding.defect for finding in judge(timed).findings]


def in_lane(lane: str, *events: Event) -> list[Event]:
    """Return events of a group whose lanes use another property than the messages' key."""
    return [replace(each, lane=lane) for each in events]


def test_a_group_is_judged_by_the_property_that_its_lanes_go_by() -> None:
    """Law: a group is judged by the property that its lanes use, not by the sharding key."""
    sends = sent("a1", "a2", "b3")
    x = in_lane("x", given("a1", 0, 7), given("b3", 2, 9), done("a1", 0, 7), done("b3", 2, 9))
    y = in_lane("y", given("a2", 1, 8), done("a2", 1, 8))

    assert defects([*sends, *y, x[0], x[2], x[1], x[3], DRAINED]) == []
    assert defects([*sends, x[0], *y, x[2], x[1], x[3], DRAINED]) == []
    assert defects([*sends, *y, *x, DRAINED]) == [Defect.OVERLAPPED, Defect.OVERTAKEN]
    early = in_lane("x", given("c4", 3, 8), done("c4", 3, 8))
    skipping = [x[0], x[2], *early, x[1], x[3], DRAINED]
    assert defects([*sent("a1", "a2", "b3", "c4"), *y, *skipping]) == [Defect.SKIPPED]


def test_lanes_of_one_queue_are_worked_on_side_by_side() -> None:
    """Law: lanes of a queue may be worked on in parallel by several members; a batch is one attempt."""
    history = [
        *sent("a1", "b1", "a2", "b2"),
        given("b1", 1, 7),
        given("a1", 0, 8, client="two"),
        given("a2", 2, 8, client="two"),
        done("b1", 1, 7),
        given("b2", 3, 9),
        done("b2", 3, 9),
        done("a1", 0, 8, client="two"),
        done("a2", 2, 8, client="two"),
        DRAINED,
    ]

    assert defects(history) == []


def test_messages_without_a_key_wait_for_nothing() -> None:
    """Law: messages without a key have no order, because each is its own lane."""
    first, second = (
        replace(given("a1", 0, 1), key=""),
        replace(given("b1", 1, 2, client="two"), key=""),
    )

    assert defects([second, first]) == []


def test_one_attempt_works_on_a_lane_at_a_time() -> None:
    """Law: one attempt works on a lane at a time; a dead client or an ended lease works no more."""
    begun = [*sent("a1"), given("a1", 0, 1)]
    again = given("a1", 0, 2, client="two")

    assert defects([*begun, again]) == [Defect.OVERLAPPED]
    assert defects([*begun, given("a1", 0, 2)]) == [Defect.OVERLAPPED]
    assert defects([*begun, Event(0, Kind.GONE, client="one"), again]) == []
    assert defects([*begun, listened(Kind.LAPSED, "a1", -1, 1), again]) == []
    assert defects([*begun, listened(Kind.FAILED, "a1", 0, 1), again]) == []


def test_all_leases_of_a_client_in_a_queue_end_together() -> None:
    """Law: a pause of a client, reported for one queue, ends all its leases there."""
    begun = [*sent("a1", "b1"), given("a1", 0, 1), given("b1", 1, 2)]
    again = [given("a1", 0, 3, client="two"), given("b1", 1, 4, client="two")]
    paused = Event(0, Kind.LAPSED, topic="T", queue="a:0", group="G", client="one")

    assert defects([*begun, paused, *again]) == []
    assert defects([*begun, replace(paused, client="two"), *again]) == [Defect.OVERLAPPED] * 2
    assert defects([*begun, replace(paused, queue="a:1"), *again]) == [Defect.OVERLAPPED] * 2


def test_an_attempt_is_given_once_and_later_ones_have_higher_numbers() -> None:
    """Law: attempt numbers rise, and an attempt is given once; a delivery of an older attempt is an overlap."""
    begun = [*sent("a1"), given("a1", 0, 5), listened(Kind.FAILED, "a1", 0, 5)]

    assert defects([*begun, given("a1", 0, 4)]) == [Defect.OVERLAPPED]
    assert defects([*begun, given("a1", 0, 5, client="two")]) == [Defect.OVERLAPPED]


def test_a_message_waits_for_those_before_it_in_its_lane() -> None:
    """Law: a message waits for earlier ones of its lane until they are done or dead."""
    messages = [*sent("a1", "b1", "a2"), given("a1", 0, 1)]
    failed = listened(Kind.FAILED, "a1", 0, 1)
    dead = listened(Kind.DEAD, "a1", 0, 1)

    assert defects([*messages, failed, given("a2", 2, 2)]) == [Defect.OVERTAKEN]
    assert defects([*messages, dead, given("a2", 2, 2)]) == []
    assert defects([*messages, done("a1", 0, 1), given("a2", 2, 2)]) == []


def test_no_message_of_a_lane_is_jumped_over() -> None:
    """Law: no message of a lane may be skipped between those that the group has had and the next one."""
    messages = [*sent("a1", "a2", "a3"), given("a1", 0, 1), done("a1", 0, 1)]

    assert Defect.SKIPPED in defects([*messages, given("a3", 2, 2)])


def test_retention_and_a_late_start_are_no_jumps() -> None:
    """Law: messages dropped by retention, or stored before the group began, are not skipped."""
    begun = [given("a1", 0, 1), done("a1", 0, 1)]
    dropped = event(Kind.DROPPED, "a2", 1)

    assert defects([*sent("a1", "a2", "a3"), *begun, dropped, given("a3", 2, 2)]) == []
    assert defects([*sent("a1", "a2"), given("a2", 1, 1)]) == []


def test_what_retention_took_is_in_nobodys_way_whatever_its_lane() -> None:
    """Law: a message that retention took blocks no lane; its report has message, queue and offset, but no key."""
    failed = listened(Kind.FAILED, "a1", 0, 1)
    dropped = event(Kind.DROPPED, "a1", 0, key="")
    rest = [given("a2", 1, 2), done("a2", 1, 2)]
    for lane in ("", "x"):
        begun = [*sent("a1", "a2"), *in_lane(lane, given("a1", 0, 1), failed)]

        assert defects([*begun, dropped, *in_lane(lane, *rest), DRAINED]) == []
        assert defects([*begun, *in_lane(lane, *rest), DRAINED]) == [Defect.OVERTAKEN, Defect.LOST]


def test_what_is_complete_does_not_come_again() -> None:
    """Law: a completed message does not come again, under any attempt, unless an administrator resets the offset."""
    history = [
        *sent("a1"),
        given("a1", 0, 1),
        done("a1", 0, 1),
        listened(Kind.COMMIT, "a1", 0, 1),
    ]
    reset = Event(0, Kind.RESET, topic="T", queue="a:0", group="G", offset=0)

    assert defects([*history, given("a1", 0, 2)]) == [Defect.ROLLED_BACK]
    assert defects([*history, reset, given("a1", 0, 2)]) == []
    assert defects([*history[:-1], given("a1", 0, 2)]) == []


def test_a_lane_may_jump_once_after_a_reset_to_nobody_knows_where() -> None:
    """Law: after a reset to an unknown offset a lane may jump once."""
    reset = Event(0, Kind.RESET, topic="T", queue="a:0", group="G")
    messages = [*sent("a1", "a2", "a3", "a4", "a5"), given("a1", 0, 1)]
    jumps = [given("a3", 2, 2), done("a3", 2, 2)]

    for ended in (done("a1", 0, 1), listened(Kind.FAILED, "a1", 0, 1)):
        assert defects([*messages, reset, ended, *jumps, given("a4", 3, 3)]) == []
        assert defects([*messages, ended, *jumps]) != []
        assert defects([*messages, reset, ended, *jumps, given("a5", 4, 3)]) == [Defect.SKIPPED]


def test_a_reset_to_an_offset_settles_what_it_jumps() -> None:
    """Law: a reset to an offset drops what is owed before it; messages behind it are owed."""
    reset = Event(0, Kind.RESET, topic="T", queue="a:0", group="G", offset=3)
    begun = [*sent("a1", "a2", "a3", "a4", "a5"), given("a1", 0, 1)]
    failed = listened(Kind.FAILED, "a1", 0, 1)
    rest = [given("a4", 3, 2), done("a4", 3, 2), given("a5", 4, 3), done("a5", 4, 3)]
    short = [*sent("a1", "a2"), given("a1", 0, 1), failed, replace(reset, offset=1)]

    assert defects([*begun, failed, reset, *rest]) == []
    assert defects([*begun, failed, reset, *rest[2:]]) == [Defect.SKIPPED]
    assert defects([*short, given("a2", 1, 2), done("a2", 1, 2), DRAINED]) == []


def test_each_message_is_told_once_as_overtaken_or_skipped() -> None:
    """Law: each message is reported once as overtaken or skipped; one that came again and failed again may be overtaken
    again.
    """
    messages = [*sent("a1", "a2", "a3", "a4"), given("a1", 0, 1)]
    failed = listened(Kind.FAILED, "a1", 0, 1)
    again = [given("a1", 0, 4), listened(Kind.FAILED, "a1", 0, 4)]
    rest = [given("a3", 2, 3), done("a3", 2, 3)]
    second = [given("a2", 1, 2), done("a2", 1, 2)]

    assert defects([*messages, failed, *second, *rest]) == [Defect.OVERTAKEN]
    assert defects([*messages, failed, *second, *rest, given("a4", 3, 5)]) == [Defect.OVERTAKEN]
    assert defects([*messages, done("a1", 0, 1), *rest, given("a4", 3, 5)]) == [Defect.SKIPPED]
    twice = defects([*messages, failed, *second, *again, replace(rest[0], attempt=5)])
    assert twice.count(Defect.OVERTAKEN) == 2


def test_what_a_reset_asks_for_again_is_owed_when_the_group_has_drained() -> None:
    """Law: after a reset and a drained group, every message behind the offset must have been delivered and done since."""
    reset = Event(0, Kind.RESET, topic="T", queue="a:0", group="G", offset=1)
    first = [each for o in (1, 2) for each in (given(f"a{o}", o - 1, o), done(f"a{o}", o - 1, o))]
    begun = [*sent("a1", "a2"), *first]
    again = [given("a2", 1, 3), done("a2", 1, 3)]

    assert defects([*begun, reset, *again, DRAINED]) == []
    assert defects([*begun, reset, DRAINED]) == [Defect.LOST]
    assert defects([*begun, reset, again[0], DRAINED]) == [Defect.LOST]
    assert defects([*begun[:-1], reset, begun[-1], DRAINED]) == []


def test_nothing_is_left_over_when_a_group_has_drained_its_topic() -> None:
    """Law: in a drained group a message that was not delivered, or not done, is lost."""
    messages = [*sent("a1", "b1"), given("a1", 0, 1), done("a1", 0, 1)]

    assert defects([*messages, DRAINED]) == [Defect.LOST]
    assert defects([*messages, given("b1", 1, 2), DRAINED]) == [Defect.LOST]
    assert defects([*messages, given("b1", 1, 2), done("b1", 1, 2), DRAINED]) == []
