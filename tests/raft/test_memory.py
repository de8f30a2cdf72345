"""The in-memory storage of the tests keeps the same contract as the durable log."""

import pytest

from orderlymq_raft import (
    Compacted,
    HardState,
    Index,
    Membership,
    NodeId,
    SnapshotMeta,
    Term,
    Unavailable,
)
from tests.raft.harness.memory import MemoryLogStorage
from tests.raft.harness.solo import entry

MEMBERSHIP = Membership(frozenset({NodeId(1)}))


def filled() -> MemoryLogStorage:
    storage = MemoryLogStorage(MEMBERSHIP)
    storage.append([entry(1, 1), entry(2, 1), entry(3, 2)])
    storage.set_applied(Index(2))
    return storage


def test_an_empty_log_begins_at_one() -> None:
    """Law: in an empty log, index 0 has term 0 and no snapshot can be made."""
    storage = MemoryLogStorage(MEMBERSHIP)

    assert (storage.first_index(), storage.last_index(), storage.term(Index(0))) == (1, 0, 0)
    assert storage.initial_state() == (HardState(), MEMBERSHIP)
    with pytest.raises(Unavailable):
        storage.snapshot()


def test_an_append_replaces_what_stands_from_its_first_index_on() -> None:
    """Law: an append replaces the stored entries from its first index on, as a Ready demands."""
    storage = filled()

    storage.append([entry(2, 5)])

    assert storage.entries(Index(1), Index(3), 99) == [entry(1, 1), entry(2, 5)]
    assert storage.last_index() == 2


def test_compaction_keeps_the_term_of_the_last_dropped_entry() -> None:
    """Law: after compaction the log still answers the term of the last dropped entry, which the next append names."""
    storage = filled()

    storage.compact(Index(2))

    assert (storage.first_index(), storage.last_index()) == (3, 3)
    assert storage.term(Index(2)) == 1
    with pytest.raises(Compacted):
        storage.term(Index(1))
    with pytest.raises(Compacted):
        storage.entries(Index(2), Index(4), 99)
    with pytest.raises(Unavailable):
        storage.term(Index(4))
    with pytest.raises(Unavailable):
        storage.entries(Index(3), Index(5), 99)


def test_only_what_is_applied_is_compacted() -> None:
    """Law: entries that are not applied are in no snapshot, so compaction refuses them."""
    with pytest.raises(AssertionError, match="snapshot"):
        filled().compact(Index(3))


def test_a_snapshot_names_the_applied_state_and_replaces_all() -> None:
    """Law: a snapshot names the applied index, its term and the membership; another storage can install it."""
    meta = filled().snapshot()
    other = MemoryLogStorage()
    other.append([entry(1, 9), entry(2, 9), entry(3, 9)])

    other.apply_snapshot(meta)

    assert meta == SnapshotMeta(Index(2), Term(1), MEMBERSHIP)
    assert (other.first_index(), other.last_index(), other.applied) == (3, 2, 2)
    assert other.initial_state()[1] == MEMBERSHIP
