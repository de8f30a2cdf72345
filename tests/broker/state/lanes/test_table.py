"""Lanes by consumer group and topic: what is deleted with them, and when a group may change its mode."""

import gc
import tracemalloc
from functools import partial

import msgspec
import pytest

from orderlymq_broker.state.groups.failurepolicy import DeadPolicy
from orderlymq_broker.state.groups.lockrecords import LocksGranted, LocksReleased, LocksRequested
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import (
    Found,
    LaneFreed,
    LanesFetched,
    LanesGranted,
    LanesMoved,
    LanesReported,
    LanesReturned,
    QueueFetch,
    Report,
    ReportKind,
)
from orderlymq_broker.state.lanes.table import LaneTable
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    MemberSeen,
    OffsetsCommitted,
    OffsetsMoved,
    OffsetsReset,
    Record,
    Refused,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Table, table_bounds
from tests.broker.calls import calls_in
from tests.broker.state.entries import WALL_MS
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld

BY_QUEUE = GroupSet(GROUP)
BY_KEY = GroupSet(GROUP, concurrency="Key")
LOCK = LocksRequested(GROUP, "a", "h:1", 1_000, ((TOPIC, 0),))


def rows(world: LaneWorld) -> int:
    """Return how many rows the three tables of lanes have."""
    store = world.replica.store
    return sum(
        len(store.scan(Family.TABLES, *table_bounds(table), limit=1_000))
        for table in (Table.LANES, Table.LANE_QUEUES, Table.LANE_OFFSETS)
    )


@pytest.mark.parametrize("record", [TopicDeleted(TOPIC), GroupDeleted(GROUP)])
@pytest.mark.parametrize("at_once", [False, True], ids=["later", "in the same entry"])
def test_lanes_go_with_their_topic_and_their_group(record: Record, *, at_once: bool) -> None:
    """Law: no row of a lane outlives its topic or consumer group, also if it was written in the same entry."""
    world = LaneWorld(["x"] * 200 + ["y"])
    plan = world.plan("a", scan=201)
    if at_once:
        world.replica.take(plan, record)
    else:
        world.replica.take(plan)
        assert rows(world) > 3
        world.replica.take(record)

    assert rows(world) == 0
    assert not world.replica.state.lanes.holds_any("a")
    world.replica.state.check_invariants()


def test_no_number_of_a_former_life_is_given_again() -> None:
    """Law: attempt numbers are not reused after a consumer group is deleted and created again,
    so that old reports match nothing.
    """
    world = LaneWorld(["x", "y"])
    before = world.fetch(scan=2)
    world.take(GroupDeleted(GROUP, clean_offsets=True))
    world.create()
    after = world.fetch(scan=2)

    assert not {each.attempt for each in before} & {each.attempt for each in after}
    for granted in before:
        world.done(granted)
    assert world.committed == 0


@pytest.mark.parametrize(
    "ends",
    [
        (OffsetsReset((Commit(GROUP, TOPIC, 0, 0, 0),)), GroupDeleted(GROUP)),
        (GroupDeleted(GROUP, clean_offsets=True),),
    ],
    ids=["reset and deleted", "deleted with its offsets"],
)
def test_a_fetch_of_a_former_life_begins_nothing(ends: tuple[Record, ...]) -> None:
    """Law: a fetch planned before a reset or re-creation is refused; it would skip messages that are owed again."""
    world = LaneWorld(["x", "y"])
    world.fetch(scan=1)
    late = world.plan("a", scan=1, ready=0)
    world.replica.take(*ends)
    world.create()

    assert isinstance(world.take(late), Refused)
    assert [each.offsets for each in world.fetch(scan=2)] == [(0,), (1,)]


def test_a_group_changes_to_keys_when_nobody_holds_a_lock() -> None:
    """Law: a consumer group changes to keys only if it holds no locks.

    Lanes begin at the committed offset, and a late commit of the former holder counts nothing.
    """
    world = LaneWorld(["x", "y", "z"])
    world.take(BY_QUEUE)
    world.replica.take(LOCK, OffsetsCommitted((Commit(GROUP, TOPIC, 0, 1, 1),)))
    refused = world.take(BY_KEY)
    world.take(LocksReleased(GROUP, "a", None))

    world.take(BY_KEY)
    late = world.take(OffsetsCommitted((Commit(GROUP, TOPIC, 0, 3, 1),)))

    assert isinstance(refused, Refused)
    assert "hold queue locks (1): stop its consumers" in refused.reason
    assert late == OffsetsMoved(0)
    assert [each.offsets for each in world.fetch(scan=9)] == [(1,), (2,)]


def test_a_group_by_key_gives_no_queue_locks() -> None:
    """Law: a consumer group by key grants no queue locks, so that clients that know no lanes get nothing."""
    world = LaneWorld(["x"])

    assert world.take(LOCK) == LocksGranted(GROUP, "a", 1_000, ())


def test_a_group_changes_to_queues_when_nothing_is_in_hand() -> None:
    """Law: a consumer group changes to queues only if no lane is in hand; it goes on at the first owed message,
    and a late fetch is refused.
    """
    world = LaneWorld(["x", "y", "z"])
    x, y, z = world.fetch(scan=3)
    world.done(y)
    world.say("a", ReportKind.RELEASE, z)
    plan = world.plan("b", scan=0)
    refused = world.take(BY_QUEUE)
    world.say("a", ReportKind.RETRY, x)

    world.take(BY_QUEUE)

    assert isinstance(refused, Refused)
    assert isinstance(world.take(plan), Refused)
    assert (world.committed, rows(world)) == (0, 0)


def test_the_property_of_the_key_changes_when_nothing_is_owed() -> None:
    """Law: the key property may change only while nothing is owed; else a message could be in two lanes."""
    world = LaneWorld(["x"])
    changed = GroupSet(GROUP, concurrency="Key", lane_key_property="orderId")
    (x,) = world.fetch(scan=1)

    assert isinstance(world.take(changed), Refused)
    world.done(x)
    assert not isinstance(world.take(changed), Refused)


def test_the_lanes_of_another_group_stay_when_a_group_goes() -> None:
    """Law: a deleted consumer group leaves the lanes of others; of its own only the floor of its numbers stays."""
    world = LaneWorld(["x"])
    lanes = world.replica.state.lanes
    assert list(lanes.rows()) == []
    other = GroupSet("other", concurrency="Key")
    world.replica.take(other, MemberSeen("other", "a", "h:1"))
    fetch = world.plan("a", scan=1)
    world.replica.take(fetch, msgspec.structs.replace(fetch, group="other"))

    world.take(GroupDeleted(GROUP))
    assert [queue.place for queue in lanes.all()] == [("other", TOPIC, 0)]
    world.take(GroupDeleted("other"))

    assert (list(lanes.rows()), lanes._groups) == ([(1,)], {})


@pytest.mark.parametrize(
    ("keys", "part"),
    [
        (["x"], QueueFetch(1, 0, 0, begins=True)),
        (["x"], QueueFetch(0, 0, 2, begins=True)),
        ([], QueueFetch(0, 0, 1, begins=True)),
    ],
    ids=["no such queue", "beyond its end", "an empty queue"],
)
def test_nothing_is_looked_at_where_nothing_is(keys: list[str], part: QueueFetch) -> None:
    """Law: a scan beyond the end of a queue or in a missing queue is refused; it would skip messages that come later."""
    world = LaneWorld(keys)

    assert isinstance(world.take(LanesFetched(GROUP, TOPIC, "a", 1, 1_000, (part,))), Refused)
    assert list(world.replica.state.lanes.all()) == []


def test_a_queue_that_is_empty_still_may_be_looked_at() -> None:
    """Law: an empty queue may be scanned, because members ask before the first message comes."""
    world = LaneWorld([])

    assert world.fetch() == ()
    assert (world.queue.scanned, world.committed) == (0, 0)


def test_who_ends_attempts_learns_which() -> None:
    """Law: a record that ends attempts returns which, so that the leader drops their leases."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)

    moved = world.take(LanesReturned(GROUP, "a"))

    assert moved == LanesMoved(((GROUP, TOPIC),), ((GROUP, TOPIC, 0, x.lane, x.attempt),))


def test_what_does_not_concern_lanes_changes_while_messages_are_owed() -> None:
    """Law: settings that do not move messages between lanes may change while messages are owed."""
    world = LaneWorld(["x"])
    world.fetch(scan=1)

    changed = world.take(GroupSet(GROUP, concurrency="Key", retry_max_times=7))

    assert not isinstance(changed, Refused)


def test_a_report_about_a_queue_without_lanes_keeps_none_of_the_others_back() -> None:
    """Law: a report about a queue without lanes is stale; the other reports of the record are answered in order."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)
    stray = Report(9, x.lane, x.attempt, ReportKind.DONE, 0)
    mine = Report(0, x.lane, x.attempt, ReportKind.DONE, 0)

    moved = world.take(LanesReported(GROUP, TOPIC, "a", (stray, mine)))

    assert isinstance(moved, LanesMoved)
    assert [each.verdict for each in moved.answers] == ["stale", "done"]


def test_nobody_is_asked_to_look_when_no_attempt_has_ended() -> None:
    """Law: a renewal wakes no member that waits for lanes."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)
    renewal = Report(0, x.lane, x.attempt, ReportKind.RENEW)

    moved = world.take(LanesReported(GROUP, TOPIC, "a", (renewal,)))

    assert isinstance(moved, LanesMoved)
    assert (moved.topics, moved.ended) == ((), ())


def test_messages_without_a_key_are_freed_together() -> None:
    """Law: an administrator frees parked messages without a key together; lanes with a key stay parked."""
    world = LaneWorld(["", "x", ""])
    for granted in world.fetch(scan=3):
        world.say("a", ReportKind.RETRY, granted)

    freed = world.take(LaneFreed(GROUP, TOPIC, "", skip=False))
    again = world.take(LaneFreed(GROUP, TOPIC, "", skip=False))

    assert isinstance(freed, LanesMoved)
    assert [(queue_id, lane.key, lane.state) for queue_id, lane in freed.freed] == [
        (0, "", LaneState.PARKED),
        (0, "", LaneState.PARKED),
    ]
    assert again == LanesMoved(())
    states = [(lane.key, lane.state) for lane in world.queue.lanes.values()]
    assert sorted(states) == [("", LaneState.READY), ("", LaneState.READY), ("x", LaneState.PARKED)]


def test_who_is_no_member_gets_nothing() -> None:
    """Law: a fetch of a client that is no member any more is refused."""
    world = LaneWorld(["x"])

    assert isinstance(world.take(world.plan("c", scan=1)), Refused)


def test_a_topic_that_is_made_again_begins_with_new_lanes() -> None:
    """Law: a topic that is created again begins with new lanes and a new scan."""
    world = LaneWorld(["x", "y"])
    world.fetch(scan=2)
    world.replica.take(TopicDeleted(TOPIC), TopicSet(TOPIC, 1, 1), MemberSeen(GROUP, "a", "h:1"))
    world.replica.append(world.replica.topic_id(TOPIC))

    assert [each.offsets for each in world.fetch(scan=1)] == [(0,)]


def begun(queues: int) -> LaneWorld:
    """Return a world whose group has scanned so many queues and has a lane of the first one in hand."""
    world = LaneWorld(["x"], queues=queues)
    parts = tuple(QueueFetch(number, 0, 0, begins=True) for number in range(1, queues))
    world.take(LanesFetched(GROUP, TOPIC, "a", 1, 1_000, parts))
    world.fetch(scan=1)
    return world


def test_a_queue_without_lanes_takes_little_memory() -> None:
    """Law: a queue without lanes takes less than 500 bytes of memory, because a group may have scanned a hundred thousand."""
    world, count = begun(500), 500
    gc.collect()

    tracemalloc.start()
    table = LaneTable(world.replica.store)
    gc.collect()
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(list(table.all())) == count
    assert memory < 500 * count


def test_a_deletion_takes_no_step_per_queue_without_lanes() -> None:
    """Law: a deletion takes no step per queue without lanes, because it counts as few changes."""
    tables = [begun(count).replica.state.lanes for count in (2, 200)]

    few, many = (calls_in(partial(each.drop, TableWrites(), group=GROUP)) for each in tables)

    assert few == many


def test_each_restore_begins_above_the_numbers_of_all_before() -> None:
    """Law: each restore begins above all numbers given before, in queues with lanes and in others."""
    world = LaneWorld(["x"], queues=2)
    world.fetch(scan=1)
    lanes, serials = world.replica.state.lanes, []

    for _ in range(2):
        lanes.fence(100, WALL_MS, TableWrites())
        serials.append((next(iter(lanes.rows())), world.queue.serial))

    first = serials[0][1]
    assert first > 100
    assert serials == [((100,), first), ((200,), first + 100)]


def test_a_fetch_gets_what_all_of_its_queues_give() -> None:
    """Law: a fetch from several queues returns the lanes of all of them;
    an unknown one would stay blocked until its lease ends.
    """
    world = LaneWorld(["x"], queues=2)

    granted = world.take(world.plan_in_two())

    assert isinstance(granted, LanesGranted)
    assert [(each.queue_id, each.key) for each in granted.granted] == [(0, "x"), (1, "x")]


def test_a_queue_that_was_stopped_wakes_those_who_wait_for_it() -> None:
    """Law: when a queue no longer is stopped, members that wait are woken,
    also if the member goes on with the lane's next message.
    """
    world = LaneWorld(["x", "x"])
    (x,) = world.fetch(scan=2)
    world.say("a", ReportKind.RETRY, x, tries_max=1, policy=DeadPolicy.STOP)
    (x,) = world.fetch(take=2)
    renew = Report(0, x.lane, x.attempt, ReportKind.RENEW)

    waiting = world.take(LanesReported(GROUP, TOPIC, "a", (renew,)))
    past = world.take(LanesReported(GROUP, TOPIC, "a", (msgspec.structs.replace(renew, offset=0),)))

    assert isinstance(waiting, LanesMoved)
    assert isinstance(past, LanesMoved)
    assert (waiting.topics, past.topics, past.ended) == ((), ((GROUP, TOPIC),), ())


def test_a_report_says_which_attempts_have_ended() -> None:
    """Law: the outcome of a report names the attempts that ended, so that their leases end and others may fetch."""
    world = LaneWorld(["x"])
    (x,) = world.fetch(scan=1)

    moved = world.take(
        LanesReported(GROUP, TOPIC, "a", (Report(0, x.lane, x.attempt, ReportKind.DONE, 0),))
    )

    assert isinstance(moved, LanesMoved)
    assert moved.topics == ((GROUP, TOPIC),)
    assert moved.ended == ((GROUP, TOPIC, 0, x.lane, x.attempt),)


def test_offsets_are_set_where_no_lane_is() -> None:
    """Law: an offset may be set before any lane exists."""
    world = LaneWorld(["x", "y"])

    world.take(OffsetsReset((Commit(GROUP, TOPIC, 0, 1, 0),)))

    assert world.committed == 1
    assert [each.offsets for each in world.fetch(scan=1)] == [(1,)]


def test_the_lanes_of_a_topic_that_goes_leave_those_of_the_others() -> None:
    """Law: a deleted topic's lanes leave memory, counts and store; lanes of other topics stay."""
    world = LaneWorld(["x", "y"], queues=3)
    world.take(TopicSet("u", 1, 1))
    world.replica.append(world.replica.topic_id("u"))
    world.fetch(scan=2)
    found = (Found("x", (0,), 1),)
    alone = QueueFetch(0, 0, 1, found=found, begins=True)
    world.take(LanesFetched(GROUP, "u", "a", 2, 1_000, (alone,)))
    # A queue without lanes comes before one with lanes.
    world.replica.append(world.replica.topic_id(TOPIC), 2)
    empty = QueueFetch(1, 0, 0, begins=True)
    last = QueueFetch(2, 0, 1, found=found, begins=True)
    world.take(LanesFetched(GROUP, TOPIC, "a", 3, 1_000, (empty, last)))

    world.take(TopicDeleted("u"))
    world.check()
    assert world.replica.state.lanes.count_of(GROUP) == 3
    world.take(TopicDeleted(TOPIC))

    assert world.replica.state.lanes.total == 0
    world.replica.state.check_invariants()


def test_a_topic_that_no_group_has_looked_at_goes_without_a_change_of_lanes() -> None:
    """Law: deleting a topic without lanes writes nothing to the lane tables."""
    world = LaneWorld(["x"])
    world.fetch(scan=1)
    writes, batch = TableWrites(), Batch()

    world.replica.state.lanes.drop(writes, topic="other")

    writes.flush(batch)
    assert not batch


def test_a_restore_ends_every_attempt_in_the_store_too() -> None:
    """Law: a restore ends every attempt in the store too, so that a restarted replica agrees with the others."""
    world = LaneWorld(["x", "y"], queues=2)
    x, _ = world.fetch(scan=2)
    world.take(LanesFetched(GROUP, TOPIC, "a", 2, 1_000, (QueueFetch(1, 0, 0, begins=True),)))
    lanes, writes, batch = world.replica.state.lanes, TableWrites(), Batch()

    lanes.fence(100, WALL_MS, writes)
    writes.flush(batch)
    world.replica.store.write(batch, sync=True)

    assert not lanes.holds_any("a")
    assert world.done(x) == "stale"
    assert list(lanes.rows()) == list(world.replica.restarted().state.lanes.rows())
    world.check()
