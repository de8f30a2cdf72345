"""Records that remove rows from several tables: reset offsets, fewer queues, dead clients, retention."""

from cProfile import Profile

import pytest

from orderlymq_broker.state.groups.lockrecords import ClientDead, LocksRequested
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    MembersChanged,
    MemberSeen,
    OffsetsCommitted,
    OffsetsReset,
    QueueFloor,
    Record,
    Refused,
    RetentionAdvanced,
    TopicSet,
    Trimmed,
)
from orderlymq_broker.state.removals import refuse_fewer
from orderlymq_broker.state.send.duplicates import send_identity, with_origin
from orderlymq_broker.state.transactions.halfrecords import HalfGivenUp, HalfOpened
from tests.broker.state.entries import Replica
from tests.broker.state.lanes.world import GROUP, TOPIC, LaneWorld

QUEUES, GROUPS = 50, 20
COMMITS = (Commit("g", "t", 0, 5),)


def with_copies(replica: Replica, group: GroupSet) -> dict[bytes, str]:
    """Store copies of failed messages of two topics, in the retry and dead-letter topics of two consumer groups."""
    found = {}
    names = [f"%{kind}%{name}" for kind in ("RETRY", "DLQ") for name in ("g", "h")]
    replica.take(*(TopicSet(name, 1, 1) for name in ("t", "u", *names)), group)
    for name in names:
        topic_id = replica.topic_id(name)
        for origin in "tu":
            identity = send_identity(topic_id, f"{name} {origin}", 1, 5, {}, None)
            found[with_origin(identity, origin)] = f"{name} {origin}"
            replica.append(topic_id, identity=with_origin(identity, origin))
    return found


ALL = [f"%{kind}%{name} {origin}" for kind in ("RETRY", "DLQ") for name in "gh" for origin in "tu"]
OF_T = {"%RETRY%g t", "%DLQ%g t"}
OF_G = {each for each in ALL if "%g " in each}


@pytest.mark.parametrize(
    ("group", "before", "record", "gone"),
    [
        (GroupSet("g"), (), OffsetsReset(COMMITS), OF_T),
        (GroupSet("g"), COMMITS, OffsetsReset((Commit("g", "t", 0, 4),)), OF_T),
        (GroupSet("g"), COMMITS, OffsetsReset(COMMITS), set()),
        (GroupSet("g"), COMMITS, OffsetsReset((Commit("g", "t", 0, 6),)), set()),
        (GroupSet("g", concurrency="Key"), (), OffsetsReset(COMMITS), OF_T),
        (GroupSet("g"), (), OffsetsReset((Commit("g", "%RETRY%g", 0, 0),)), OF_G),
        (GroupSet("g"), (), OffsetsReset((Commit("nobody", "t", 0, 0),)), set()),
        (GroupSet("g"), (), GroupDeleted("g", clean_offsets=True), OF_G),
        (GroupSet("g"), (), GroupDeleted("g"), set()),
    ],
)
def test_what_is_consumed_once_more_may_fail_once_more(
    replica: Replica, group: GroupSet, before: tuple[Commit, ...], record: Record, gone: set[str]
) -> None:
    """Law: when an offset is set back, the known copies of that consumer group and topic are forgotten,
    so that a message may fail again.
    """
    copies = with_copies(replica, group)
    replica.take(OffsetsCommitted(before))

    replica.take(record)

    assert [copies[each] for each in replica.state.dedup.sends] == [
        each for each in ALL if each not in gone
    ]


def test_a_group_by_key_that_is_set_onwards_may_fail_once_more(replica: Replica) -> None:
    """Law: for a consumer group by key, copies are forgotten even if the offset is set forward,
    because lanes completed messages ahead of it.
    """
    copies = with_copies(replica, GroupSet("g"))
    replica.take(OffsetsCommitted(COMMITS), GroupSet("g", concurrency="Key"))

    replica.take(OffsetsReset((Commit("g", "t", 0, 6),)))

    assert [copies[each] for each in replica.state.dedup.sends] == [
        each for each in ALL if each not in OF_T
    ]


@pytest.mark.parametrize("fences", [False, True])
def test_an_offset_that_is_set_ends_an_epoch_where_that_is_asked_for(
    replica: Replica, *, fences: bool
) -> None:
    """Law: a reset with *fences* raises the epoch of the queues that it names; their holder keeps the locks."""
    replica.take(TopicSet("t", 2, 2), GroupSet("g"))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (("t", 0), ("t", 1))))

    replica.take(OffsetsReset(COMMITS, fences=fences))

    locks = replica.state.locks
    assert [locks.epoch("g", "t", queue) for queue in (0, 1)] == [1 + fences, 1]
    assert len(locks.held_by("c", "g")) == 2
    assert replica.state.offsets.get("g", "t", 0) == 5


def test_lanes_begin_again_where_an_offset_is_set() -> None:
    """Law: lanes start over at an offset that is set; messages from there on are scanned again."""
    world = LaneWorld(["x", "x"])
    world.fetch(scan=2)

    world.take(OffsetsReset((Commit(GROUP, TOPIC, 0, 1),)))

    assert (world.lane("x").head, world.queue.scanned) == ((), 1)


def test_a_topic_keeps_queues_that_somebody_still_has_to_read(replica: Replica) -> None:
    """Law: a queue that a consumer group has not read to its end is not removed; the refusal names both.

    Empty and consumed queues may go.
    """
    replica.take(TopicSet("t", 3, 3), GroupSet("g"), OffsetsCommitted((Commit("g", "t", 0, 0),)))
    replica.append(replica.topic_id("t"), 1)

    replica.take(TopicSet("t", 2, 2))
    (refused,) = replica.take(TopicSet("t", 1, 1))
    kept = replica.state.topics.by_name["t"].config
    replica.take(OffsetsCommitted((Commit("g", "t", 1, 1),)))
    replica.take(TopicSet("t", 1, 1))

    assert isinstance(refused, Refused)
    assert "queue 1 of topic[t] has messages that group g has not consumed" in refused.reason
    assert (kept.read_queues, replica.state.topics.by_name["t"].config.read_queues) == (2, 1)


def test_a_queue_that_retention_has_emptied_may_go(replica: Replica) -> None:
    """Law: a queue that retention has emptied may be removed, however far its consumer groups were."""
    replica.take(TopicSet("t", 2, 2), GroupSet("g"), OffsetsCommitted((Commit("g", "t", 0, 0),)))
    replica.append(replica.topic_id("t"), 1)
    replica.take(RetentionAdvanced((QueueFloor(replica.topic_id("t"), 1, 1),)))

    replica.take(TopicSet("t", 1, 1))

    assert replica.state.topics.by_name["t"].config.read_queues == 1


def test_reading_queues_alone_keep_what_is_in_them(replica: Replica) -> None:
    """Law: only fewer read queues are checked; fewer write queues, or creating a topic that exists, are never refused."""
    replica.take(TopicSet("t", 2, 2), GroupSet("g"), OffsetsCommitted((Commit("g", "t", 0, 0),)))
    replica.append(replica.topic_id("t"), 1)

    outcomes = replica.take(TopicSet("t", 1, 1, only_if_absent=True), TopicSet("t", 2, 1))

    assert not any(isinstance(each, Refused) for each in outcomes)
    config = replica.state.topics.by_name["t"].config
    assert (config.read_queues, config.write_queues) == (2, 1)


@pytest.mark.parametrize(
    ("addresses", "is_dead"),
    [(None, True), (("h:1",), True), (("h:1", "h:2"), True), (("h:2",), False), ((), False)],
)
def test_a_client_that_was_seen_elsewhere_is_not_dead(
    replica: Replica, addresses: tuple[str, ...] | None, *, is_dead: bool
) -> None:
    """Law: a proof of death counts only if the client was last seen at an address in the proof."""
    replica.take(TopicSet("t", 1, 1), GroupSet("g"), MemberSeen("g", "c", "h:1"))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (("t", 0),)))

    outcome = replica.take(ClientDead("c", "gone", addresses=addresses))

    gone = MembersChanged(("g",), (("g", "t", 0),))
    assert outcome == [gone if is_dead else MembersChanged(())]
    assert replica.state.locks.holds_any("c") != is_dead
    assert (replica.state.members.get("g", "c") is None) == is_dead


@pytest.mark.parametrize(("addresses", "is_dead"), [(("h:1",), True), (("h:2",), False)])
def test_a_member_with_lanes_that_was_seen_elsewhere_is_not_dead(
    addresses: tuple[str, ...], *, is_dead: bool
) -> None:
    """Law: for lanes, which have no address, the address of their member counts in a proof of death."""
    world = LaneWorld(["x"])
    world.fetch(scan=1)
    lanes = world.replica.state.lanes
    assert lanes.holds_any("a")

    world.take(ClientDead("a", "gone", addresses=addresses))

    assert lanes.holds_any("a") != is_dead
    assert (world.replica.state.members.get(GROUP, "a") is None) == is_dead


def test_lanes_at_the_dead_address_do_not_prove_the_locks_dead() -> None:
    """Law: a proof of death spares a client's locks that were taken from another address."""
    world = LaneWorld(["x"])
    world.fetch(scan=1)
    world.replica.take(GroupSet("other"))
    world.take(LocksRequested("other", "a", "h:2", 1_000, ((TOPIC, 0),)))

    world.take(ClientDead("a", "gone", addresses=("h:1",)))

    assert world.replica.state.locks.holds_any("a")
    assert world.replica.state.lanes.holds_any("a")


def test_a_client_that_holds_much_goes_in_pieces(replica: Replica) -> None:
    """Law: a dead client with many locks is removed in several records, and stays a member until the last one."""
    replica.take(TopicSet("t", 2, 2), GroupSet("g"), MemberSeen("g", "c", "h:1"))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (("t", 0), ("t", 1))))

    first = replica.take(ClientDead("c", "gone", most=1))

    assert first == [MembersChanged((), (("g", "t", 0),))]
    assert replica.state.members.get("g", "c") is not None
    assert replica.take(ClientDead("c", "gone")) == [MembersChanged(("g",), (("g", "t", 1),))]


def test_retention_counts_what_goes_now(replica: Replica) -> None:
    """Law: retention counts only the messages that this record removes."""
    replica.take(TopicSet("t", 1, 1))
    topic_id = replica.topic_id("t")
    for _ in range(5):
        replica.append(topic_id)

    counted = [
        replica.take(RetentionAdvanced((QueueFloor(topic_id, 0, floor),)))[0] for floor in (2, 2, 5)
    ]

    assert counted == [Trimmed(2), Trimmed(0), Trimmed(3)]


def test_retention_leaves_what_lanes_owe() -> None:
    """Law: retention keeps messages from the first one on that a lane has not completed."""
    world = LaneWorld(["x", "y", "x"])
    for each in world.fetch(scan=3):
        if 0 in each.offsets:
            first = each
    topic_id = world.replica.topic_id(TOPIC)

    kept = world.take(RetentionAdvanced((QueueFloor(topic_id, 0, 2),)))
    queue = world.replica.state.topics.by_id[topic_id].queues[0]

    assert first.offsets == (0,)
    assert (kept, queue.min_offset) == (Trimmed(0), 0)


def test_retention_leaves_the_log_from_the_first_open_half_on(replica: Replica) -> None:
    """Law: retention keeps the log from the first open half message on.

    A half that was given up is removed, and its message may be sent again.
    """
    replica.take(TopicSet("t", 1, 1), GroupSet("g"))
    places = [replica.state.physical_end]
    for number in range(3):
        replica.append(replica.topic_id("t"), identity=b"%d" % number)
        places.append(replica.state.physical_end)
    for number in (0, 1):
        replica.take(HalfOpened(number, places[number], "g", "t", f"U{number}", 0))
    replica.take(HalfGivenUp(0))

    replica.take(RetentionAdvanced((), places[3]))

    assert replica.state.floor == places[1]
    assert replica.state.transactions.given_up == {}
    assert list(replica.state.transactions.open) == [1]
    assert list(replica.state.dedup.sends) == [b"1", b"2"]


def consumed() -> Replica:
    """Return a replica with a message in each queue, all consumed by every consumer group."""
    replica = Replica()
    replica.take(TopicSet("orders", QUEUES, QUEUES))
    for number in range(QUEUES):
        replica.append(replica.topic_id(), number)
    commits = [Commit(f"g{n}", "orders", each, 1) for n in range(GROUPS) for each in range(QUEUES)]
    replica.take(OffsetsCommitted(tuple(commits)))
    return replica


def test_fewer_queues_cost_a_look_up_for_each_offset_that_is_there() -> None:
    """Law: removing queues costs one look-up per existing offset, because a replica applies the record without a pause."""
    state = consumed().state
    profile = Profile()

    assert profile.runcall(refuse_fewer, state, state.topics.by_name["orders"], 1) == ""

    assert sum(entry.callcount for entry in profile.getstats()) < 2 * QUEUES * GROUPS


def test_one_queue_that_one_group_has_not_consumed_stays() -> None:
    """Law: one queue that one consumer group has not consumed is kept; the refusal names both."""
    replica = consumed()
    replica.append(replica.topic_id(), 7)
    replica.take(
        OffsetsCommitted(tuple(Commit(f"g{n}", "orders", 7, 2) for n in range(GROUPS - 1)))
    )

    reason = refuse_fewer(replica.state, replica.state.topics.by_name["orders"], 1)

    assert reason.startswith("queue 7 of topic[orders] has messages that group g19 has not")
    assert refuse_fewer(replica.state, replica.state.topics.by_name["orders"], 8) == ""
