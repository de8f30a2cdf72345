"""Counters of a queue with lanes: owed messages, lanes that stop it, and its first owed message."""

import tracemalloc
from typing import Any, NoReturn

import pytest

from orderlymq_broker.processors.lanes.planner import LANES_OF_GROUP_MAX
from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.lanes.busyqueues import BusyQueues
from orderlymq_broker.state.lanes.lane import KEY_BYTES_MAX, RUN_MAX, Lane, LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    HandOut,
    LaneFreed,
    LanesFetched,
    LanesMoved,
    LanesReported,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_broker.state.lanes.queue import LaneQueue
from orderlymq_broker.state.records import Commit, OffsetsReset, TopicDeleted
from orderlymq_protocol.body.lanes import REASON_LENGTH_MAX
from tests.broker.state.entries import WALL_MS
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld

RESET = OffsetsReset((Commit(GROUP, TOPIC, 0, 0),))
# Outdated entries that the heap of first owed messages may hold, in addition to two per lane.
SLACK = 64


def test_a_reset_forgets_all_that_is_owed_by_lanes_in_hand_too() -> None:
    """Law: after a reset, lanes in hand owe nothing until their messages are found again."""
    count = 2 * RUN_MAX
    world = LaneWorld(["x", "y"] * count)
    world.fetch(scan=2 * count)

    world.take(RESET)

    assert (world.queue.owed, world.queue.scanned) == (0, 0)
    assert [lane.state for lane in world.queue.lanes.values()] == [LaneState.IN_HAND] * 2
    world.check()


def test_a_reset_forgets_the_lanes_that_nobody_has() -> None:
    """Law: a reset removes lanes that nobody has in hand from the counts of owed messages and stopping lanes."""
    world = LaneWorld(["z", "x", "x", "y"])
    z, x, y = world.fetch(scan=4)
    for each in (x, y):
        world.say("a", ReportKind.RETRY, each, tries_max=1, policy=DeadPolicy.STOP)
    world.say("a", ReportKind.RELEASE, z)
    assert (world.queue.owed, world.queue.stopping) == (4, 2)
    world.check()

    world.take(RESET)

    assert (world.queue.owed, world.queue.stopping, world.queue.lanes) == (0, 0, {})
    world.check()


def test_what_follows_a_backlog_on_disk_goes_behind_it() -> None:
    """Law: newer messages of a lane with a backlog on disk are added behind that backlog, not in memory."""
    count = 2 * RUN_MAX + 10
    world = LaneWorld(["x"] * count)
    (x,) = world.fetch(scan=count - 10, take=RUN_MAX)
    world.say("a", ReportKind.RENEW, x, 20)

    world.fetch("b", scan=10)

    assert world.owed(world.lane("x")) == list(range(21, count))
    world.check()


def test_memory_holds_one_run_of_a_lane() -> None:
    """Law: memory holds one run of a lane, whether its messages were found in one scan or in several."""
    world = LaneWorld(["x"] * 120)
    world.fetch(scan=60)
    world.fetch("b", scan=60)

    assert (len(world.lane("x").head), world.lane("x").behind) == (RUN_MAX, 120 - RUN_MAX)
    world.check()


def test_the_first_owed_message_is_found_among_many_that_went() -> None:
    """Law: the first owed message is found quickly, and the heap for it stays as small as the number of lanes."""
    count = 3 * SLACK
    world = LaneWorld(["x", "slow", *["x"] * count])
    x, _ = world.fetch(scan=count + 2)
    for _ in range(count):
        world.done(x)
        assert world.committed == 1
        assert len(world.queue._firsts) <= 2 * len(world.queue.lanes) + SLACK
        (x,) = world.fetch()

    world.check()


def test_what_comes_and_goes_behind_a_parked_key_is_forgotten() -> None:
    """Law: keys that come and go behind a parked one leave nothing in that heap."""
    world = LaneWorld(["parked", *(f"key-{number}" for number in range(5 * SLACK))])
    (parked,) = world.fetch(scan=1)
    world.say("a", ReportKind.RETRY, parked)

    for _ in range(5):
        given = world.fetch(scan=SLACK, ready=0)
        assert len(world.queue._firsts) <= 2 * len(world.queue.lanes) + SLACK
        for each in given:
            world.done(each)
            assert len(world.queue._firsts) <= 2 * len(world.queue.lanes) + SLACK
        assert (len(given), world.committed) == (SLACK, 0)

    world.check()


def test_the_reason_of_a_failure_goes_with_its_message() -> None:
    """Law: a failure's reason and tries are removed with its message, and do not count for the next one."""
    world = LaneWorld(["x", "x"])
    (x,) = world.fetch(scan=2)
    world.say("a", ReportKind.RETRY, x, reason="no such customer")
    assert world.lane("x").reason == "no such customer"
    (again,) = world.fetch(take=2)

    world.say("a", ReportKind.RENEW, again, 0)

    assert (world.lane("x").reason, world.lane("x").tries) == ("", 0)


def test_a_lane_shows_since_when_it_waits() -> None:
    """Law: since_ms is the time of the lane's last change of state, whatever is reported meanwhile."""
    world = LaneWorld(["x", "x"])
    (x,) = world.fetch(scan=2)
    release = Report(0, x.lane, x.attempt, ReportKind.RELEASE)
    world.replica.take(LanesReported(GROUP, TOPIC, "a", (release,)), wall_ms=WALL_MS + 5)
    gone = QueueFetch(0, 2, 2, (HandOut(x.lane, 0, gone=1),))

    world.replica.take(LanesFetched(GROUP, TOPIC, "b", 2, 1_000, (gone,)), wall_ms=WALL_MS + 9)

    lane = world.lane("x")
    assert (lane.state, lane.head, lane.since_ms) == (LaneState.READY, (1,), WALL_MS + 5)
    world.check()


def test_lanes_wait_in_the_order_in_which_they_came_into_their_state() -> None:
    """Law: lanes of a state are listed in the order in which they entered it, also after a restart."""
    world = LaneWorld(["x", "y", "z"])
    for seconds, granted in enumerate(reversed(world.fetch(scan=3))):
        report = Report(0, granted.lane, granted.attempt, ReportKind.RETRY)
        record = LanesReported(GROUP, TOPIC, "a", (report,))
        world.replica.take(record, wall_ms=WALL_MS + 1_000 * seconds)

    again = world.replica.restarted().state.lanes.queues_of(GROUP, TOPIC)[0]

    for queue in (world.queue, again):
        assert [lane.key for lane in queue.in_state(LaneState.PARKED)] == ["z", "y", "x"]


def test_a_lane_whose_failed_messages_are_gone_from_the_store_is_not_parked_for_them() -> None:
    """Law: if a parked lane's failed message is gone from the store, the lane is ready and cannot be skipped."""
    count = RUN_MAX + 2
    world = LaneWorld(["x"] * count)
    (x,) = world.fetch(scan=count)
    world.say("a", ReportKind.RETRY, x)
    part = QueueFetch(0, count, count, (HandOut(x.lane, 0, gone=RUN_MAX),))

    world.take(LanesFetched(GROUP, TOPIC, "a", 2, 1_000, (part,)))

    assert (world.lane("x").state, world.lane("x").first) == (LaneState.READY, RUN_MAX)
    assert world.take(LaneFreed(GROUP, TOPIC, "x", skip=True)) == LanesMoved(())
    world.check()


@pytest.mark.parametrize(("head", "size", "mib_max"), [(1, 12, 10), (RUN_MAX, KEY_BYTES_MAX, 80)])
def test_a_lane_costs_no_more_memory_than_its_limit_counts_on(
    head: int, size: int, mib_max: int
) -> None:
    """Law: lanes take no more memory than the limit per consumer group assumes, with short and with the longest keys."""
    counts = dict.fromkeys(LaneState, 0)
    queue = LaneQueue(
        (GROUP, TOPIC, 0),
        1 << 40,
        1_024,
        busy=BusyQueues(),
        having={},
        counts=counts,
        totals=dict(counts),
    )
    tracemalloc.start()
    try:
        for number in range(1, 1_025):
            offsets = tuple(range(number << 20, (number << 20) + head))
            reason = f"{number:0{REASON_LENGTH_MAX if head > 1 else 1}}"
            lane = Lane(number, f"{number:0{size}}", offsets, LaneState.PARKED, reason=reason)
            queue.load(lane)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert taken * LANES_OF_GROUP_MAX / 1_024 <= mib_max << 20


class Unwalked(dict[str, Any]):
    """A table of consumer groups that fails if it is iterated over."""

    def values(self) -> NoReturn:
        raise AssertionError("went over all groups")


def test_what_a_queue_is_owed_of_is_found_without_a_walk_over_all_groups() -> None:
    """Law: first_owed of a queue visits no other consumer groups; retention asks for each queue,
    and there may be tens of thousands.
    """
    world = LaneWorld(["x", "y"])
    lanes = world.replica.state.lanes
    (x,) = world.fetch(scan=1)
    lanes._groups = Unwalked(lanes._groups)

    assert (lanes.first_owed(TOPIC, 0), lanes.first_owed("other", 0)) == (0, None)
    world.done(x)
    assert lanes.first_owed(TOPIC, 0) is None


def test_lanes_are_counted_without_a_walk_over_the_queues_of_a_group() -> None:
    """Law: lanes are counted without a walk over the group's queues, because each fetch and scrape asks."""
    world = LaneWorld(["x", "y", "z"])
    lanes = world.replica.state.lanes
    x, y, _ = world.fetch(scan=3)
    world.done(x)
    world.say("a", ReportKind.RELEASE, y)
    topics = lanes._groups[GROUP]
    lanes._groups[GROUP] = Unwalked(topics)

    assert lanes.counts() == {(GROUP, LaneState.READY): 1, (GROUP, LaneState.IN_HAND): 1}
    assert (lanes.count_of(GROUP), lanes.count_of("other")) == (2, 0)
    assert (lanes.count_in(LaneState.IN_HAND, GROUP), lanes.total) == (1, 2)
    lanes._groups[GROUP] = topics
    world.check()
    world.take(TopicDeleted(TOPIC))
    assert (lanes.counts(), lanes.count_of(GROUP), lanes.total) == ({}, 0, 0)
