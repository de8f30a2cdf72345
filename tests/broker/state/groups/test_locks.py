"""Locks: what the table answers about held, released and never held queues."""

import pytest

from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRef,
    LocksExpired,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.locks import Lock
from orderlymq_broker.state.records import GroupDeleted, GroupSet, Record, TopicDeleted, TopicSet
from orderlymq_broker.state.tables import TableWrites
from tests.broker.calls import calls_in
from tests.broker.state.entries import WALL_MS, Replica


def known(replica: Replica) -> Replica:
    replica.take(TopicSet("t", 1_024, 1_024), TopicSet("u", 4, 4), GroupSet("g"), GroupSet("h"))
    return replica


def lock(replica: Replica, client: str, *queues: int, group: str = "g", topic: str = "t") -> None:
    wanted = tuple((topic, queue) for queue in queues)
    replica.take(LocksRequested(group, client, f"{client}:1", 1_000, wanted))


def test_a_queue_that_nobody_ever_held_has_no_lock_and_no_epoch(replica: Replica) -> None:
    """Law: a queue that was never held has no lock and epoch 0, even if another queue is held."""
    lock(known(replica), "a", 0)
    locks = replica.state.locks

    for place in (("g", "t", 1), ("g", "u", 0), ("h", "t", 0)):
        assert (locks.get(*place), locks.released(*place), locks.epoch(*place)) == (None, None, 0)
        assert not any(locks.is_current(*place, epoch) for epoch in (0, 1))


def test_a_lock_names_its_holder_and_since_when(replica: Replica) -> None:
    """Law: a renewal raises a lock's stamp, but not its epoch or the time of its grant."""
    lock(known(replica), "a", 0)
    first = Lock("g", "t", 0, "a", 1, 1_000, "a:1", replica.state.applied_index, WALL_MS)
    found = [replica.state.locks.get("g", "t", 0)]

    lock(replica, "a", 0)
    found.append(replica.state.locks.get("g", "t", 0))

    again = Lock("g", "t", 0, "a", 1, 1_000, "a:1", replica.state.applied_index, WALL_MS)
    assert found == [first, again]
    assert again.stamp == first.stamp + 1


def test_a_renewal_keeps_the_time_of_the_grant(replica: Replica) -> None:
    """Law: a renewal keeps the time of the grant; the next holder has its own."""
    known(replica)
    times = []
    for client, later_ms in (("a", 0), ("a", 7), ("b", 9)):
        if client == "b":
            replica.take(LocksReleased("g", "a", None))
        wanted = LocksRequested("g", client, "h:1", 1_000, (("t", 0),))
        replica.take(wanted, wall_ms=WALL_MS + later_ms)
        found = replica.state.locks.get("g", "t", 0)
        assert found is not None
        times.append(found.held_since_ms - WALL_MS)

    assert times == [0, 0, 9]


def test_only_a_lock_that_was_given_back_remembers_its_holder(replica: Replica) -> None:
    """Law: only a released lock remembers its holder, which may still commit.

    After an expired lease or a death nobody may.
    """
    lock(known(replica), "a", 0, 1, 2, 3)
    stamp = replica.state.applied_index
    replica.take(
        LocksReleased("g", "a", (("t", 0), ("t", 3))), LocksExpired("g", (LockRef("t", 1, stamp),))
    )
    replica.take(ClientDead("a", "pod gone"))
    lock(replica, "b", 3)
    locks = replica.state.locks

    assert [locks.released("g", "t", queue) for queue in range(4)] == [
        Lock("g", "t", 0, epoch=1, released_by="a"),
        None,
        None,
        None,
    ]
    assert [locks.epoch("g", "t", queue) for queue in range(4)] == [1, 1, 1, 2]
    assert [(each.queue_id, bool(each.client_id)) for each in locks.of_group("g")] == [
        (0, False),
        (1, False),
        (2, False),
        (3, True),
    ]
    assert list(locks.of_group("h")) == []


def test_the_questions_about_holders_agree(replica: Replica) -> None:
    """Law: look-ups of holders by consumer group, by client and by topic agree."""
    known(replica)
    lock(replica, "a", 0, 1)
    lock(replica, "a", 2, group="h", topic="u")
    lock(replica, "b", 3)
    locks = replica.state.locks

    assert locks.held_count == 4
    assert [(each.client_id, each.queue_id) for each in locks.held("g")] == [
        ("a", 0),
        ("a", 1),
        ("b", 3),
    ]
    assert sorted((each.group, each.queue_id) for each in locks.held()) == [
        ("g", 0),
        ("g", 1),
        ("g", 3),
        ("h", 2),
    ]
    assert list(locks.held("nobody")) == []
    assert list(locks.held_by("a", "g")) == [("t", 0), ("t", 1)]
    assert list(locks.held_by("b", "h")) == []
    assert [locks.holds("h", client) for client in ("a", "b", "c")] == [True, False, False]
    assert [locks.holds_any(client) for client in ("a", "b", "c")] == [True, True, False]
    assert locks.groups_of("t") == ["g"]
    assert locks.groups_of("u") == ["h"]


def test_who_has_lost_its_last_lock_holds_nothing(replica: Replica) -> None:
    """Law: a client that lost its last lock in a consumer group holds nothing there; its locks in others stay."""
    known(replica)
    lock(replica, "a", 0, 1)
    lock(replica, "a", 0, group="h")
    locks, seen = replica.state.locks, []
    for record in (
        LocksReleased("g", "a", (("t", 0),)),
        LocksReleased("g", "a", None),
        LocksReleased("h", "a", None),
    ):
        replica.take(record)
        seen.append((locks.holds("g", "a"), locks.holds_any("a"), locks.held_count))

    assert seen == [(True, True, 2), (False, True, 1), (False, False, 0)]


def test_epochs_of_a_new_topic_begin_above_all_that_went(replica: Replica) -> None:
    """Law: epochs in a topic that is created again begin above the greatest epoch of all deleted rows."""
    known(replica)
    for client in ("a", "b", "c"):
        lock(replica, client, 0)
        lock(replica, client, 1, topic="u")
        replica.take(LocksReleased("g", client, None))
    lock(replica, "a", 1)
    replica.take(TopicDeleted("t"))
    lock(replica, "a", 2, topic="u")
    epochs = [replica.state.locks.epoch("g", "u", 2)]

    replica.take(LocksReleased("g", "a", (("u", 2),)))
    replica.take(TopicDeleted("u"), TopicSet("t", 4, 4))
    lock(replica, "a", 0)
    epochs.append(replica.state.locks.epoch("g", "t", 0))

    assert epochs == [4, 5]
    assert replica.state.locks.epoch("g", "u", 1) == 0


@pytest.mark.parametrize("gone", [TopicDeleted("t"), GroupDeleted("g")])
def test_a_group_without_locks_is_not_kept(replica: Replica, gone: Record) -> None:
    """Law: a consumer group whose locks are all gone is not listed."""
    lock(known(replica), "a", 0, 1)
    lock(replica, "b", 0, group="h", topic="u")

    replica.take(gone)

    assert list(replica.state.locks.groups()) == ["h"]


def test_a_topic_that_goes_with_many_locks_takes_no_call_for_each(replica: Replica) -> None:
    """Law: deleting a topic with many locks takes no call per lock; the holder's locks in other topics stay."""
    known(replica)
    calls = []
    for count in (300, 600):
        lock(replica, "a", *range(count))
        lock(replica, "b", count, count + 1)
        lock(replica, "b", 3, topic="u")
        locks = replica.restarted().state.locks
        calls.append(calls_in(lambda: locks.drop_topic("t", TableWrites())))  # noqa: B023 - called at once
        locks.check()
        assert list(locks.held_by("b", "g")) == [("u", 3)]
        assert (locks.count, locks.held_count, locks.held_of["g"]) == (1, 1, 1)
        assert not locks.holds_any("a")

    assert calls[1] - calls[0] < 50
