"""The rows that are deleted with a topic or a consumer group: no table keeps a row that nothing would remove."""

from orderlymq_broker.state.groups.lockrecords import LocksRequested
from orderlymq_broker.state.groups.parkedkeyrecords import KeyParked, KeyReleased
from orderlymq_broker.state.records import (
    AssignmentSet,
    Commit,
    GroupChanged,
    GroupDeleted,
    GroupSet,
    MemberSeen,
    OffsetsCommitted,
    QueueFloor,
    RetentionAdvanced,
    TopicChanged,
    TopicDeleted,
    TopicSet,
    encode_records,
)
from orderlymq_broker.state.topics.expansionrecords import ExpansionFenced
from orderlymq_broker.store.entry import encode_entry, split_entry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Table
from tests.broker.state.entries import WALL_MS, Replica


def every_table(replica: Replica) -> None:
    """Give a topic and a consumer group a row in each table that can hold one."""
    place = ("orders", 0)
    replica.take(TopicSet("orders", 2, 2, order=True), GroupSet("g"))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (place, ("orders", 1))))
    for _ in range(2):
        replica.append(replica.topic_id(), keys="k")
    replica.take(
        RetentionAdvanced((QueueFloor(replica.topic_id(), 0, 1),)),
        OffsetsCommitted((Commit("g", "orders", 0, 1, 1),)),
        KeyParked("g", *place, "k", 1, "M", 1),
        KeyParked("g", *place, "l", 1, "M", 1),
        KeyReleased("g", "orders", "l"),
        AssignmentSet("g", "orders", (("b", 0, "c"),)),
        ExpansionFenced("orders", 1, 8, 4, 60_000),
        MemberSeen("g", "c", "h:1"),
    )
    assert tables(replica) >= _OF_THE_TOPIC | _OF_THE_GROUP


_OF_THE_TOPIC = {
    *(Table.TOPICS, Table.OFFSETS, Table.LOCKS, Table.QUEUES, Table.EXPANSIONS),
    *(Table.ASSIGNMENTS, Table.HELD_KEYS, Table.LET_GO_KEYS),
}
_OF_THE_GROUP = {
    *(Table.GROUPS, Table.OFFSETS, Table.LOCKS, Table.MEMBERS),
    *(Table.ASSIGNMENTS, Table.HELD_KEYS, Table.LET_GO_KEYS),
}


def tables(replica: Replica) -> set[Table]:
    pairs = replica.store.scan(Family.TABLES, b"", b"\xff", limit=1_000)
    return {Table(key[0]) for key, _ in pairs}


def test_a_deleted_topic_takes_its_rows_of_every_table_along(replica: Replica) -> None:
    """Law: a deleted topic's rows leave every table; its consumer groups stay, still ordered.

    A second deletion changes nothing.
    """
    every_table(replica)
    version = replica.state.topics_version

    replica.take(TopicDeleted("orders"))

    assert tables(replica) == {Table.COUNTERS, Table.GROUPS, Table.LOCKS, Table.MEMBERS}
    assert replica.state.topics_version == version + 1
    assert replica.take(TopicDeleted("orders")) == [TopicChanged("orders", changed=False)]
    assert replica.state.topics_version == version + 1


def test_a_deleted_group_takes_its_rows_of_every_table_along(replica: Replica) -> None:
    """Law: a deleted consumer group's rows leave every table; topics stay with their queues and expansions.

    A second deletion changes nothing.
    """
    every_table(replica)
    version = replica.state.groups.version.counter

    assert replica.take(GroupDeleted("g", clean_offsets=True)) == [
        GroupChanged("g", changed=True, deleted=True)
    ]

    assert tables(replica) == {*(Table.COUNTERS, Table.TOPICS, Table.QUEUES, Table.EXPANSIONS)}
    assert replica.take(GroupDeleted("g")) == [GroupChanged("g", changed=False, deleted=True)]
    assert replica.state.groups.version.counter == version + 1


def test_many_rows_of_a_topic_go_as_one_range(replica: Replica) -> None:
    """Law: many rows of a topic are deleted as a range, because single deletions would block the leader;
    rows written afterwards stay.
    """
    count = 300
    names = tuple(("orders", queue) for queue in range(count))
    commits = tuple(Commit("g", "orders", queue, 0) for queue in range(count))
    replica.take(TopicSet("orders", count, count), TopicSet("others", 1, 1), GroupSet("g"))
    replica.take(OffsetsCommitted((*commits, Commit("g", "others", 0, 0))))
    replica.take(LocksRequested("g", "c", "h:1", 1_000, (*names, ("others", 0))))

    batch = Batch()
    again = (TopicSet("orders", count, count), OffsetsCommitted(commits[:1]))
    records = encode_records((TopicDeleted("orders"), *again))
    entry = encode_entry(records, (), replica.state.physical_end, WALL_MS)
    replica.machine.apply(replica.state.applied_index + 1, 1, split_entry(entry), batch)
    replica.store.write(batch, sync=True)

    assert len(batch.puts) < 20
    left = replica.restarted().state
    assert list(left.offsets.rows()) == [("g", "orders", 0, 0), ("g", "others", 0, 0)]
    assert [lock.topic for lock in left.locks.held()] == ["others"]


def test_what_a_group_has_in_many_topics_goes_as_one_range(replica: Replica) -> None:
    """Law: a consumer group's rows in many topics are deleted as one range, because it may have half a million;
    rows of others stay.
    """
    names = [f"t{number}" for number in range(300)]
    replica.take(*(TopicSet(name, 1, 1) for name in names), GroupSet("g"), GroupSet("g2"))
    for group, client, wanted in (("g", "d", names[:1]), ("g", "c", names), ("g2", "c", names)):
        replica.take(OffsetsCommitted(tuple(Commit(group, name, 0, 0) for name in names)))
        queues = tuple((name, 0) for name in wanted)
        replica.take(LocksRequested(group, client, "h:1", 1_000, queues))
    epoch = replica.state.locks.epoch("g2", "t7", 0)

    batch = Batch()
    again = (GroupSet("g"), LocksRequested("g", "d", "h:1", 1_000, (("t7", 0),)))
    records = encode_records((GroupDeleted("g", clean_offsets=True), *again))
    entry = encode_entry(records, (), replica.state.physical_end, WALL_MS)
    replica.machine.apply(replica.state.applied_index + 1, 1, split_entry(entry), batch)
    replica.store.write(batch, sync=True)

    assert len(batch.puts) < 20
    replica.state.check_invariants()
    left = replica.restarted().state
    assert left.digest() == replica.state.digest()
    assert {row[0] for row in left.offsets.rows()} == {"g2"}
    assert [lock.client_id for lock in left.locks.of_group("g")] == ["d"]
    assert left.locks.epoch("g", "t7", 0) > epoch
    assert left.locks.count_of("c") == len(names)
