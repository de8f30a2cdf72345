"""Answers about attempts that have ended, and what becomes of a message that fails, stops its queue or dies."""

import pytest

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.groups.lockrecords import ClientDead
from orderlymq_broker.state.lanes.lane import RUN_MAX, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Answered,
    Granted,
    LaneDeadLettered,
    LaneFreed,
    LanesMoved,
    LanesReported,
    Report,
    ReportKind,
)
from orderlymq_broker.state.records import Commit, GroupSet, MemberSeen, OffsetsReset
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld


def stop(world: LaneWorld, granted: Granted) -> str:
    """Let the first message of an attempt stop its queue."""
    return world.say("a", ReportKind.RETRY, granted, due_ms=9, tries_max=1, policy=DeadPolicy.STOP)


def test_each_lane_that_stops_its_queue_counts_once() -> None:
    """Law: each lane that stops its queue counts once, however often it failed;
    the queue goes on when all of them are free.
    """
    world = LaneWorld(["x", "y"])
    for granted in world.fetch(scan=2):
        stop(world, granted)
    assert world.queue.stopping == 2
    for granted in world.fetch():
        stop(world, granted)
    assert world.queue.stopping == 2

    world.take(LaneFreed(GROUP, TOPIC, "x", skip=False))
    x = world.lane("x")
    assert (x.state, x.due_ms, x.stops, world.queue.stopping) == (LaneState.READY, 0, False, 1)
    world.take(LaneFreed(GROUP, TOPIC, "y", skip=True))
    y = world.lane("y")
    assert (y.state, y.due_ms, y.stops, world.queue.stopping) == (
        LaneState.DEAD_LETTERING,
        0,
        False,
        0,
    )
    world.replica.state.check_invariants()


def test_where_nothing_is_tried_again_the_first_failure_is_the_last() -> None:
    """Law: with a maximum of 0 tries, the first failure is the last."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)

    assert world.say("a", ReportKind.RETRY, x, tries_max=0) == "dead"


@pytest.mark.parametrize(
    ("tries_max", "state"), [(0, LaneState.DEAD_LETTERING), (-1, LaneState.PARKED)]
)
def test_a_suspect_that_ends_one_more_member_is_dead_by_the_maximum_of_its_group(
    tries_max: int, state: LaneState
) -> None:
    """Law: a message that was in hand of several dead members is dead after the maximum of its consumer group,
    and never without a maximum.
    """
    world = LaneWorld(["x"])
    world.take(GroupSet(GROUP, concurrency="Key", retry_max_times=tries_max))
    world.fetch("a", scan=1)
    states = []
    for _ in range(3):
        world.take(ClientDead("a", "gone"))
        states.append(world.lane("x").state)
        world.take(MemberSeen(GROUP, "a", "h:1"))
        world.fetch("a")

    assert states == [LaneState.READY, LaneState.PARKED, state]


def test_only_who_waits_for_a_time_learns_of_it() -> None:
    """Law: only a parked lane is answered with a time; a held lane waits for an administrator."""
    world = LaneWorld(["x", "y"])
    x, y = world.fetch(scan=2)
    held = Report(0, x.lane, x.attempt, ReportKind.RETRY, -1, 9, 1, DeadPolicy.HOLD)
    parked = Report(0, y.lane, y.attempt, ReportKind.RETRY, -1, 9)

    moved = world.take(LanesReported(GROUP, TOPIC, "a", (held, parked)))

    assert isinstance(moved, LanesMoved)
    assert moved.answers == (Answered("held", 1, 0), Answered("parked", 1, 9))


def test_a_failure_that_is_reported_for_an_older_attempt_is_stale() -> None:
    """Law: only the end of the newest attempt may be reported twice; a failure reported for an older attempt is stale."""
    world = LaneWorld(["x", "y"])
    x, y = world.fetch(scan=2)
    world.say("a", ReportKind.RETRY, x)
    (again,) = world.fetch()
    world.say("a", ReportKind.RETRY, again)
    world.done(y)

    assert world.say("a", ReportKind.RETRY, x) == "stale"
    assert world.say("a", ReportKind.RETRY, again) == "parked"
    assert world.say("a", ReportKind.RETRY, y) == "stale"


def test_an_attempt_that_ended_in_one_way_has_not_ended_in_another() -> None:
    """Law: a repeated report must say the same end; an attempt that failed is not released,
    and one that was released is not done.
    """
    world = LaneWorld(["x", "y", "z"])
    x, y, z = world.fetch(scan=3)
    world.say("a", ReportKind.RETRY, x)
    world.say("a", ReportKind.RELEASE, y)
    world.done(z)

    assert world.say("a", ReportKind.RELEASE, x) == "stale"
    assert world.done(y) == "stale"
    assert world.say("a", ReportKind.RELEASE, z) == "done"


def test_a_letter_that_nobody_waits_for_moves_nothing() -> None:
    """Law: a stored dead letter changes nothing if its lane is gone or its message is in hand again."""
    world = LaneWorld(["x", "y"])
    x, y = world.fetch(scan=2)
    world.done(y)

    told = [
        world.take(LaneDeadLettered(GROUP, TOPIC, 0, each.lane, each.offsets[0])) for each in (x, y)
    ]

    assert told == [LanesMoved(())] * 2
    assert (world.lane("x").state, world.committed) == (LaneState.IN_HAND, 0)


def test_a_reset_leaves_no_index_behind() -> None:
    """Law: a reset removes the lane's index in the store; else its messages would be owed twice."""
    count = 2 * RUN_MAX
    world = LaneWorld(["x"] * count)
    (x,) = world.fetch(scan=count)
    assert world.runs(x.lane)

    world.take(OffsetsReset((Commit(GROUP, TOPIC, 0, 0),)))

    assert world.runs(x.lane) == []
