"""A state restored from a backup: what of the former cluster's clients no longer counts, and what stays."""

import msgspec

from orderlymq_broker.state.admin.accessrecords import AccountSet
from orderlymq_broker.state.groups.lockrecords import LocksGranted, LocksReleased, LocksRequested
from orderlymq_broker.state.lanes.lane import LaneState
from orderlymq_broker.state.lanes.lanerecords import ReportKind
from orderlymq_broker.state.records import (
    AssignmentSet,
    Commit,
    GroupSet,
    MemberSeen,
    OffsetsCommitted,
    OffsetsMoved,
    TopicSet,
)
from orderlymq_broker.state.restoration import FENCE_STEP, fence
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_protocol.body import lanes as wire
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.state.lanes.world import LaneWorld
from tests.broker.store.memory import MemoryStore

RESTORED_MS = WALL_MS + 86_400_000


def copied(store: MemoryStore) -> MemoryStore:
    """Return a store with the same rows."""
    copy, batch = MemoryStore(), Batch()
    for family in Family:
        for key, value in store.scan(family, b"", b"\xff" * 64, limit=10_000):
            batch.put(family, key, value)
    copy.write(batch, sync=True)
    return copy


def restored(replica: Replica) -> Replica:
    """Return a replica that starts from a fenced copy of this one's state."""
    copy = Replica(copied(replica.store))
    writes, batch = TableWrites(), Batch()
    fence(copy.state, writes, taken_ms=WALL_MS, restored_ms=RESTORED_MS)
    writes.flush(batch)
    copy.store.write(batch, sync=True)
    copy.state.check_invariants()
    again = copy.restarted()
    assert again.state.digest() == copy.state.digest()
    return again


def test_locks_are_free_and_every_later_epoch_is_above_those_of_before(replica: Replica) -> None:
    """Law: after a restore all locks are free, and new epochs are above all former ones,
    also for queues without a lock in the backup.
    """
    replica.take(TopicSet("t", 4, 4), GroupSet("g"))
    wanted = LocksRequested("g", "a", "a:1", 1_000, (("t", 0), ("t", 1)))
    replica.take(wanted)
    replica.take(LocksReleased("g", "a", (("t", 1),)))
    after = restored(replica)
    # The former cluster goes on working for a while.
    former = msgspec.structs.replace(wanted, client_id="b", queues=(("t", 1), ("t", 2)))
    (old,) = replica.take(former)

    held = list(after.state.locks.held())
    released = after.state.locks.released("g", "t", 1)
    (new,) = after.take(msgspec.structs.replace(former, client_id="c"))

    assert isinstance(old, LocksGranted)
    assert isinstance(new, LocksGranted)
    assert (held, released) == ([], None)
    assert [epoch - FENCE_STEP for _, _, epoch in new.granted] == [e for _, _, e in old.granted]
    stale = OffsetsCommitted(tuple(Commit("g", "t", q, 3, epoch) for _, q, epoch in old.granted))
    assert after.take(stale) == [OffsetsMoved(0, 2)]
    assert after.state.locks.takes_locks("g")


def test_lanes_in_hand_are_handed_out_again_under_numbers_of_their_own() -> None:
    """Law: after a restore, attempts of the former members are stale; their lanes are handed out again with new numbers."""
    world = LaneWorld(["x", "y", "x"])
    old = world.fetch(scan=3)
    world.replica = restored(world.replica)

    ready = [world.lane(key).state for key in "xy"]
    stale = [world.say("a", ReportKind.DONE, each, each.offsets[-1]) for each in old]
    world.replica.take(MemberSeen("g", "a", "h:1"))
    new = world.fetch()

    assert ready == [LaneState.READY, LaneState.READY]
    assert stale == [wire.STALE, wire.STALE]
    assert {each.attempt - FENCE_STEP > 0 for each in new} == {True}
    assert [each.offsets for each in new] == [each.offsets for each in old]


def test_members_assignments_and_the_operators_token_go_and_the_rest_stays(
    replica: Replica,
) -> None:
    """Law: a restore drops members, assignments and the operator token; topics, offsets,
    consumer groups and accounts stay.
    """
    replica.take(
        TopicSet("t", 4, 4),
        GroupSet("g"),
        MemberSeen("g", "a", "h:1"),
        AccountSet("user", "secret-of-it"),
        OffsetsCommitted((Commit("g", "t", 0, 0),)),
        AssignmentSet("g", "t", (("demo-0", 0, "a"),), 77),
    )
    after = restored(replica)
    (taken,) = after.take(AssignmentSet("g", "t", (("new-0", 0, "b"),), 1))
    state = after.state

    assert list(state.members.groups()) == []
    assert getattr(taken, "changed", False)
    assert state.assignments.get("g", "t") == {("new-0", 0): "b"}
    assert state.offsets.get("g", "t", 0) == replica.state.offsets.get("g", "t", 0) == 0
    for table in ("topics", "groups", "offsets", "access", "dedup", "transactions", "timers"):
        former, kept = getattr(replica.state, table), getattr(state, table)
        assert list(kept.rows()) == list(former.rows()), table


def test_ages_count_from_the_restore(replica: Replica) -> None:
    """Law: restored data counts as old as the restore, also after a restart and a second restore."""
    day_ms = RESTORED_MS - WALL_MS
    twice = restored(restored(replica).restarted()).state

    assert twice.restored_ms == RESTORED_MS
    assert twice.oldest_kept_ms(RESTORED_MS + day_ms, day_ms) == 0
    assert twice.oldest_kept_ms(RESTORED_MS + day_ms + 1, day_ms) == RESTORED_MS + 1
    assert replica.state.oldest_kept_ms(RESTORED_MS, day_ms) == WALL_MS
    # The time of the restore is not in the digest, because replicas are restored one after the other.
    twice.restored_ms += 1
    assert twice.digest() == restored(restored(replica)).state.digest()
