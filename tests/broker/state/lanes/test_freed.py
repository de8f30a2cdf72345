"""Lanes that an administrator frees: exactly those that the request names."""

import msgspec

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    LaneFreed,
    LanesGranted,
    LanesMoved,
    LanesReported,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import Outcome
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld

FREED = LaneFreed(GROUP, TOPIC, "x")


def parked_in_both() -> LaneWorld:
    """Return a world whose queues 0 and 1 each have a parked lane of the key x."""
    world = LaneWorld(["x"], queues=2)
    granted = world.take(world.plan_in_two())
    assert isinstance(granted, LanesGranted)
    reports = tuple(
        Report(each.queue_id, each.lane, each.attempt, ReportKind.RETRY) for each in granted.granted
    )
    world.take(LanesReported(GROUP, TOPIC, "a", reports))
    return world


def places(outcome: Outcome) -> list[tuple[int, str]]:
    """Return the queues and keys that were freed."""
    assert isinstance(outcome, LanesMoved), outcome
    return [(queue_id, lane.key) for queue_id, lane in outcome.freed]


def test_a_key_is_freed_where_the_administrator_saw_it() -> None:
    """Law: with a queue named, the key's lane in another queue stays parked, whichever comes first."""
    world = parked_in_both()

    second = world.take(msgspec.structs.replace(FREED, queue_id=1))
    state = world.lane("x").state
    first = world.take(msgspec.structs.replace(FREED, queue_id=0))

    assert (places(second), state, places(first)) == ([(1, "x")], LaneState.PARKED, [(0, "x")])


def test_a_key_is_freed_everywhere_when_no_queue_is_named() -> None:
    """Law: with no queue named, the key is freed in all queues, and members that wait for lanes of the topic are woken."""
    world = parked_in_both()

    freed = world.take(FREED)

    assert places(freed) == [(0, "x"), (1, "x")]
    assert isinstance(freed, LanesMoved)
    assert freed.topics == ((GROUP, TOPIC),)


def test_a_key_that_is_idle_in_one_queue_is_freed_in_the_others() -> None:
    """Law: a key that has no lane in one queue is freed in the others, even if the request names a message."""
    world = parked_in_both()
    world.take(msgspec.structs.replace(FREED, queue_id=0))
    (x,) = world.fetch()
    world.done(x)

    freed = world.take(msgspec.structs.replace(FREED, first=0))

    assert places(freed) == [(1, "x")]


def test_a_lane_that_stands_at_another_message_is_not_freed() -> None:
    """Law: a lane that has moved to another message than the named one is not freed."""
    world = LaneWorld(["x", "x"])
    (x,) = world.fetch(scan=2)
    world.done(x)
    (x,) = world.fetch()
    world.say("a", ReportKind.RETRY, x)

    late = world.take(msgspec.structs.replace(FREED, first=0))
    timely = world.take(msgspec.structs.replace(FREED, first=1))

    assert (places(late), places(timely)) == ([], [(0, "x")])


def test_of_messages_without_a_key_the_one_that_was_seen_is_freed() -> None:
    """Law: of messages without a key, only the one at the named offset is freed, because each is its own lane."""
    world = LaneWorld(["", "", ""])
    for granted in world.fetch(scan=3):
        world.say("a", ReportKind.RETRY, granted)

    world.take(LaneFreed(GROUP, TOPIC, "", first=1))

    states = {lane.first: lane.state for lane in world.queue.lanes.values()}
    assert states == {0: LaneState.PARKED, 1: LaneState.READY, 2: LaneState.PARKED}


def test_a_lane_that_stops_its_queue_is_freed_unless_a_member_has_it() -> None:
    """Law: a lane that stops its queue is not freed while a member has it in hand; once released it can be freed."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)
    world.say("a", ReportKind.RETRY, x, tries_max=1, policy=DeadPolicy.STOP)
    (x,) = world.fetch()

    in_hand = world.take(FREED)
    assert (places(in_hand), world.lane("x").stops) == ([], True)
    world.say("a", ReportKind.RELEASE, x)
    ready = world.take(FREED)

    assert (places(ready), world.lane("x").stops) == ([(0, "x")], False)
    world.check()
