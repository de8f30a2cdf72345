"""Hand-outs that were planned before another record was applied: only the parts that are still right take effect."""

import pytest

from orderlymq_broker.state.lanes.lane import RUN_MAX, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    Granted,
    HandOut,
    LaneRef,
    LanesExpired,
    LanesFetched,
    QueueFetch,
    ReportKind,
)
from orderlymq_broker.state.records import QueueFloor, Refused, RetentionAdvanced
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld


def released(keys: list[str]) -> LaneWorld:
    """Return a world whose lanes all wait for a member again."""
    world = LaneWorld(keys)
    for granted in world.fetch(scan=len(keys)):
        world.say("a", ReportKind.RELEASE, granted)
    return world


def fetched(world: LaneWorld, *hand_outs: HandOut, found: tuple[Found, ...] = ()) -> LanesFetched:
    scanned = world.queue.scanned
    end = max([scanned, *(each.offsets[-1] + 1 for each in found)])
    part = QueueFetch(0, scanned, end, hand_outs, found)
    return LanesFetched(GROUP, TOPIC, "b", 7, 1_000, (part,))


def test_a_lane_that_has_gone_to_another_member_stays_there() -> None:
    """Law: a key has at most one attempt, even if several fetches were planned for it."""
    world = released(["x"])
    late = world.plan("b", scan=0)
    (x,) = world.fetch("a")

    world.take(late)

    assert world.queue.attempt_of(x.lane, x.attempt) is not None
    assert (world.lane("x").holder, world.done(x)) == ("a", "done")


def test_a_lane_that_is_idle_by_now_is_handed_to_nobody() -> None:
    """Law: a lane whose messages are all complete is handed to no member."""
    world = released(["x", "y"])
    late = world.plan("b", scan=0)
    for granted in world.fetch("a"):
        world.done(granted)

    world.take(late)

    assert (world.queue.lanes, world.committed) == ({}, 2)
    assert not world.replica.state.lanes.holds_any("b")


def test_a_run_that_is_in_memory_already_is_loaded_once() -> None:
    """Law: a run that is in memory already is not loaded again, so that no offset is lost or doubled."""
    count = 3 * RUN_MAX
    world = LaneWorld(["x"] * count)
    (x,) = world.fetch(scan=count, take=RUN_MAX)
    world.say("a", ReportKind.RELEASE, x, RUN_MAX - 1)
    assert world.lane("x").head == ()
    late = world.plan("b", scan=0)
    (again,) = world.fetch("a")
    world.say("a", ReportKind.RELEASE, again)

    world.take(late)

    assert world.owed(world.lane("x")) == list(range(RUN_MAX, count))
    world.check()


def test_the_last_run_that_is_loaded_leaves_no_index() -> None:
    """Law: after its last run is loaded, a lane has no index and no end in it."""
    count = 3 * RUN_MAX
    world = LaneWorld(["x"] * count)
    (x,) = world.fetch(scan=count, take=RUN_MAX)
    world.done(x)
    world.fetch()
    lane = world.lane("x")
    assert (lane.then, lane.last) == (2 * RUN_MAX, count - 1)
    world.check()

    while world.lane("x").then >= 0:
        lane = world.lane("x")
        attempt = Granted(0, lane.number, lane.attempt, "x", lane.head, 0, 0, 0)
        world.say("a", ReportKind.RELEASE, attempt, lane.head[lane.taken - 1])
        world.fetch(take=RUN_MAX)
    assert (world.lane("x").last, world.lane("x").behind) == (-1, 0)
    world.check()


def test_a_hand_out_of_nothing_begins_no_attempt() -> None:
    """Law: a hand-out without messages begins no attempt."""
    world = released(["x", "x", "y"])
    x, y = world.lane("x").number, world.lane("y").number

    outcome = world.take(fetched(world, HandOut(x, 0), HandOut(y, 1, gone=1)))

    assert getattr(outcome, "granted", None) == ()
    assert (world.lane("x").state, world.lane("x").head) == (LaneState.READY, (0, 1))
    assert world.queue.of_key("y") is None
    world.check()


def test_what_a_member_may_not_have_yet_waits_for_the_next_one() -> None:
    """Law: a key that was found, but that the member may not have yet, waits as ready."""
    world = released(["x", "y"])
    world.keys.append("z")
    world.replica.append(world.replica.topic_id(TOPIC))

    outcome = world.take(fetched(world, found=(Found("z", (2,), 0),)))

    assert getattr(outcome, "granted", None) == ()
    assert world.lane("z").state == LaneState.READY
    world.check()


def test_what_follows_in_a_busy_lane_is_kept() -> None:
    """Law: a message found for a key that is in hand is owed from then on, also after a restart."""
    world = LaneWorld(["x", "x"])
    world.fetch("a", scan=1)
    world.fetch("b", scan=1)

    assert world.lane("x").head == (0, 1)
    world.check()


def test_what_a_renewal_completes_is_kept() -> None:
    """Law: messages that a renewal completes are never handed out again, also after a restart."""
    world = LaneWorld(["x", "x", "x"])
    (x,) = world.fetch(scan=3, take=3)
    world.say("a", ReportKind.RENEW, x, 0)

    assert world.lane("x").head == (1, 2)
    world.check()


@pytest.mark.parametrize("times", [1, 2, 3])
def test_attempts_are_numbered_without_a_gap_and_never_twice(times: int) -> None:
    """Law: attempt numbers have no gap and never repeat; the first attempt has its lane's number."""
    world = LaneWorld(["x", "y"])
    x, y = world.fetch(scan=2)
    attempts = [x.attempt]
    for _ in range(times):
        world.take(LanesExpired(GROUP, (LaneRef(TOPIC, 0, x.lane, attempts[-1]),)))
        world.take(world.plan("b", scan=0))
        lane = world.lane("x")
        if lane.state == LaneState.IN_HAND:
            attempts.append(lane.attempt)

    assert [x.attempt, y.attempt] == [x.lane, y.lane] == [1, 2]
    assert attempts == [1, *range(3, 2 + len(attempts))]
    assert world.queue.serial == max(2, *attempts)


def test_messages_that_are_gone_are_taken_out_once() -> None:
    """Law: messages that are gone are removed once, even if two fetches were planned from the same state."""
    world = released(["x", "x", "x"])
    x = world.lane("x")
    assert x.head == (0, 1, 2)
    plan = fetched(world, HandOut(x.number, 0, gone=1, first=0))
    world.take(plan)

    world.take(plan)

    assert world.lane("x").head == (1, 2)
    world.check()


def test_what_retention_has_taken_by_now_is_owed_by_nobody() -> None:
    """Law: a fetch that found messages which retention has removed meanwhile is refused; the leader scans again."""
    world = LaneWorld(["x", "y"])
    late = world.plan("a", scan=2)
    floor = QueueFloor(world.replica.topic_id(TOPIC), 0, 1)

    world.take(RetentionAdvanced((floor,)))

    assert isinstance(world.take(late), Refused)
