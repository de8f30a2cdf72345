"""Consumers by key with several places that lanes come from: none keeps the workers from the lanes of the others."""

from orderlymq.consumer.core.events import Tick
from orderlymq.consumer.lanes.core import AHEAD_MS, LaneRules
from orderlymq.consumer.lanes.events import (
    Fetch,
    Fetched,
    Given,
)
from orderlymq_protocol.body.lanes import Lane
from tests.client.consumer.lanes.test_core import LEASE_MS, OTHER, Script, fetches
from tests.client.consumer.lanes.world import PLACE
from tests.client.messages import message


def test_a_place_without_messages_does_not_keep_the_others_from_asking() -> None:
    """A place that waits has asked for a share; one that has plenty asks for all that is free."""
    script = Script(LaneRules(workers=8), [PLACE, OTHER])
    assert script.first == [Fetch(PLACE, 2, 4), Fetch(OTHER, 3, 4)]

    lanes = tuple(
        Given(Lane(0, number, number, f"k{number}", (number,)), (message(number),))
        for number in range(4)
    )
    found = script.tell(1, Fetched(PLACE, 2, lanes, LEASE_MS, 0))

    assert fetches(found) == [Fetch(PLACE, 4, 4)]


def test_a_place_that_holds_a_fetch_keeps_the_others_from_asking_for_a_moment_only() -> None:
    """It brought all it was asked for the last time, and has no more: workers wait for it no longer than an answer takes."""
    script = Script(LaneRules(workers=8), [PLACE, OTHER])
    found = script.give(1, *((f"k{offset}", (offset,)) for offset in range(4)))
    assert fetches(found) == [Fetch(PLACE, 4, 4)]
    lane = Given(Lane(0, 9, 9, "k9", (9,)), (message(9),))

    assert fetches(script.tell(10, Fetched(OTHER, 3, (lane,), LEASE_MS, 0))) == []
    assert script.core.next_wake_ms() == 1 + AHEAD_MS
    assert script.tell(1 + AHEAD_MS, Tick()) == [Fetch(OTHER, 5, 1)]
