"""Consumers by key with several sources of lanes (topic and broker): none keeps the workers from others' lanes."""

from itertools import count

from orderlymq.consumer.core.events import Assigned, Report, Tick
from orderlymq.consumer.lanes.core import AHEAD_MS, LaneRules
from orderlymq.consumer.lanes.events import (
    Answered,
    AttemptId,
    Complete,
    Ended,
    Fetch,
    Fetched,
    FetchEmpty,
    Given,
    Instruction,
    Listened,
)
from orderlymq.consumer.lanes.sources import REPORTED_MAX
from orderlymq_protocol.body.lanes import Lane, LaneReport, LaneVerdicts
from tests.client.consumer.lanes.test_core import LEASE_MS, OTHER, Script, completes, fetches
from tests.client.consumer.lanes.world import PLACE
from tests.client.messages import message


def requests(found: list[Instruction]) -> list[Complete]:
    return [each for each in found if isinstance(each, Complete)]


def test_a_place_without_messages_does_not_keep_the_others_from_asking() -> None:
    """Law: an idle source that holds a fetch does not keep others from asking; each waiting one has asked for its share."""
    script = Script(LaneRules(workers=8), [PLACE, OTHER])
    assert script.first == [Fetch(PLACE, 2, 4), Fetch(OTHER, 3, 4)]

    lanes = tuple(
        Given(Lane(0, number, number, f"k{number}", (number,)), (message(number),))
        for number in range(4)
    )
    found = script.tell(1, Fetched(PLACE, 2, lanes, LEASE_MS, 0))

    assert fetches(found) == [Fetch(PLACE, 4, 4)]


def test_a_place_that_holds_a_fetch_keeps_the_others_from_asking_for_a_moment_only() -> None:
    """Law: workers wait for a source's next lanes only as long as an answer takes; then another source is asked."""
    script = Script(LaneRules(workers=8), [PLACE, OTHER])
    found = script.give(1, *((f"k{offset}", (offset,)) for offset in range(4)))
    assert fetches(found) == [Fetch(PLACE, 4, 4)]
    lane = Given(Lane(0, 9, 9, "k9", (9,)), (message(9),))

    assert fetches(script.tell(10, Fetched(OTHER, 3, (lane,), LEASE_MS, 0))) == []
    assert script.core.next_wake_ms() == 1 + AHEAD_MS
    assert script.tell(1 + AHEAD_MS, Tick()) == [Fetch(OTHER, 5, 1)]


def test_a_place_that_answers_no_reports_keeps_the_others_from_nothing() -> None:
    """Law: a source that does not answer reports is asked for nothing more, but others are."""
    script = Script(LaneRules(workers=64), [PLACE, OTHER])
    asked = {each.place: each for each in fetches(script.first)}
    said: list[Instruction] = []
    attempts = count(1)
    while (ask := asked.pop(OTHER, None)) is not None:
        numbers = [next(attempts) for _ in range(ask.lanes_max)]
        lanes = [Lane(0, number, number, f"k{number}", (number,)) for number in numbers]
        given = tuple(Given(lane, (message(lane.attempt),)) for lane in lanes)
        found = script.tell(1, Fetched(OTHER, ask.sequence, given, LEASE_MS, 1))
        ends = [Listened(AttemptId(OTHER, 0, number), None) for number in numbers]
        for start in range(0, len(ends), 64):
            found += script.tell(1, Ended(tuple(ends[start : start + 64])))
        asked |= {each.place: each for each in fetches(found)}
        said += found
    assert script.core.figures().reported >= REPORTED_MAX

    found = script.tell(2, FetchEmpty(PLACE, asked[PLACE].sequence))
    assert [each.place for each in fetches(found)] == [PLACE]
    waiting = requests(said)
    again: list[Fetch] = []
    while waiting:
        reports = waiting.pop().reports
        found = script.tell(3, Answered(OTHER, reports, LaneVerdicts().of(reports), 1))
        waiting += requests(found)
        again += fetches(found)
    assert [each.place for each in again] == [OTHER]


def test_a_place_that_is_gone_gets_its_lanes_back() -> None:
    """Law: lanes of an unsubscribed topic are given back, also those that arrive late."""
    script = Script(LaneRules(workers=1))
    script.give(1, ("a", (0,)), ("b", (1,)))

    found = script.tell(2, Assigned(frozenset()))
    released = completes(found + script.tell(4, Tick()))

    assert released.reports == (LaneReport(0, 1, 2, "release", -1),)


def test_why_there_are_no_new_lanes_is_logged_once_while_it_lasts() -> None:
    """Law: the reason for missing lanes is logged once while it lasts."""
    script = Script()

    def told(number: int, limited: str, *, brings: bool = False) -> list[str]:
        lanes = (Given(Lane(0, number, number, "k", (number,)), (message(number),)),)
        event = Fetched(PLACE, script.fetch, lanes, LEASE_MS, number, limited)
        found = script.tell(number, event if brings else FetchEmpty(PLACE, script.fetch, limited))
        return [each.text for each in found if isinstance(each, Report)]

    full = "no new lanes of orders at broker-a: the offsets are full"
    assert told(1, "the offsets are full") == [full]
    assert script.core.figures().limited == {tuple(PLACE): "the offsets are full"}
    assert told(2, "", brings=True) == []
    assert told(3, "the offsets are full", brings=True) == []
    assert told(4, "the lanes are full") == [
        "no new lanes of orders at broker-a: the lanes are full"
    ]
    assert told(5, "") == []
    assert told(6, "the offsets are full") == [full]
