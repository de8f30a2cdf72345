"""Offsets: which commits count, and what is deleted with a topic or a consumer group."""

from orderlymq_broker.state.groups.lockrecords import LocksReleased, LocksRequested
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.records import (
    Commit,
    GroupDeleted,
    GroupSet,
    OffsetsCommitted,
    OffsetsMoved,
    OffsetsReset,
    TopicDeleted,
    TopicSet,
)
from orderlymq_broker.state.tables import TableWrites
from tests.broker.state.entries import Replica
from tests.broker.store.memory import MemoryStore

TOPICS = (TopicSet("t", 4, 4), TopicSet("u", 4, 4))


def commit(group: str, topic: str, queue: int, offset: int, epoch: int = 0) -> OffsetsCommitted:
    return OffsetsCommitted((Commit(group, topic, queue, offset, epoch),))


def test_a_first_commit_counts_whatever_it_says(replica: Replica) -> None:
    """Law: the first commit of a queue counts, also 0; without a commit there is no offset."""
    replica.take(*TOPICS)

    assert replica.take(commit("g", "t", 0, 0), commit("g", "t", 0, 0)) == [
        OffsetsMoved(1),
        OffsetsMoved(0, 1),
    ]
    offsets = replica.state.offsets
    places = (("g", "t", 0), ("g", "t", 1), ("g", "u", 0), ("h", "t", 0))
    assert [offsets.get(*place) for place in places] == [0, None, None, None]
    assert offsets.of_group("h") == {}


def test_a_commit_without_an_epoch_counts_while_nobody_holds_the_queue(replica: Replica) -> None:
    """Law: a commit without an epoch counts if the consumer group never took a lock, or if nobody holds that queue."""
    replica.take(*TOPICS, GroupSet("g"))
    moved = [replica.take(commit("g", "t", 0, 1))[0]]
    replica.take(LocksRequested("g", "a", "h:1", 1_000, (("t", 0),)))

    moved += replica.take(commit("g", "t", 0, 2), commit("g", "t", 1, 2), commit("h", "t", 0, 2))

    assert moved == [OffsetsMoved(1), OffsetsMoved(0, 1), OffsetsMoved(1), OffsetsMoved(1)]


def test_the_lock_of_a_broadcasting_member_is_in_no_commits_way(replica: Replica) -> None:
    """Law: a broadcasting member's lock does not block commits without an epoch."""
    replica.take(*TOPICS, GroupSet("g"))
    replica.take(LocksRequested("g", "a", "h:1", 1_000, (("t", 0),), orderly=False))

    assert replica.take(commit("g", "t", 0, 1)) == [OffsetsMoved(1)]


def test_a_commit_with_an_epoch_needs_that_very_lock(replica: Replica) -> None:
    """Law: a commit with an epoch counts only if it is the newest epoch of that queue, held or released."""
    replica.take(*TOPICS, GroupSet("g"))
    for client in ("a", "b"):
        replica.take(LocksRequested("g", client, "h:1", 1_000, (("t", 0),)))
        replica.take(LocksReleased("g", client, None))

    found = replica.take(*(commit("g", "t", 0, 9, epoch) for epoch in (1, 3, 2)))
    found += replica.take(commit("g", "t", 1, 9, 1))

    assert found == [OffsetsMoved(0, 1), OffsetsMoved(0, 1), OffsetsMoved(1), OffsetsMoved(0, 1)]


def test_each_commit_of_a_record_is_judged_by_itself(replica: Replica) -> None:
    """Law: each commit of a record is checked by itself; commits and resets of a deleted topic are skipped."""
    replica.take(*TOPICS, commit("g", "t", 0, 5))
    commits = (Commit("g", "t", 0, 4), Commit("g", "gone", 0, 9), Commit("g", "u", 1, 7))

    assert replica.take(OffsetsCommitted(commits)) == [OffsetsMoved(1, 2)]
    assert replica.state.offsets.of_group("g") == {"t": {0: 5}, "u": {1: 7}}
    reset = (("g", "t"), ("g", "u"))
    assert replica.take(OffsetsReset(commits)) == [OffsetsMoved(2, 1, reset)]
    assert replica.state.offsets.of_group("g") == {"t": {0: 4}, "u": {1: 7}}


def test_a_topic_takes_its_offsets_along_and_leaves_the_others(replica: Replica) -> None:
    """Law: a deleted topic takes its own offsets with it, in memory and in the store (the fixture compares a restart)."""
    replica.take(*TOPICS)
    replica.take(commit("g", "t", 0, 1), commit("g", "u", 0, 2), commit("h", "t", 1, 3))

    replica.take(TopicDeleted("t"))

    assert list(replica.state.offsets.rows()) == [("g", "u", 0, 2)]
    assert list(replica.state.offsets.groups()) == ["g"]


def test_a_group_takes_its_offsets_along_when_the_record_says_so(replica: Replica) -> None:
    """Law: a deleted consumer group takes its own offsets with it if the record says so."""
    replica.take(*TOPICS, GroupSet("g"))
    replica.take(commit("g", "t", 0, 1), commit("g", "u", 0, 2), commit("h", "t", 1, 3))

    replica.take(GroupDeleted("g", clean_offsets=True))

    assert list(replica.state.offsets.rows()) == [("h", "t", 1, 3)]


def test_all_that_moves_is_counted(replica: Replica) -> None:
    """Law: the outcome counts the commits that moved an offset and those that did not."""
    replica.take(*TOPICS, commit("g", "t", 0, 5))
    commits = (Commit("g", "t", 0, 4), Commit("g", "t", 1, 9), Commit("g", "u", 1, 7))

    assert replica.take(OffsetsCommitted(commits)) == [OffsetsMoved(2, 1)]


def test_the_offset_of_a_queue_by_key_only_rises() -> None:
    """Law: the offset of a queue by key only rises, because completed messages must not be owed again."""
    offsets, seen = OffsetTable(MemoryStore()), list[int | None]()

    for offset in (0, 5, 3, 7):
        offsets.advance(Commit("g", "t", 0, offset), TableWrites())
        seen.append(offsets.get("g", "t", 0))

    assert seen == [0, 5, 5, 7]
