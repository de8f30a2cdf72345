"""The log's tail in memory, over storage that has not stored everything yet."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_raft import (
    Compacted,
    Entry,
    EntryKind,
    Index,
    Membership,
    SnapshotMeta,
    Term,
)
from orderlymq_raft import Unavailable as NotThere
from orderlymq_raft.log import RaftLog
from tests.raft.harness.memory import MemoryLogStorage
from tests.raft.harness.solo import entry, noop


def stored(*terms: int) -> MemoryLogStorage:
    storage = MemoryLogStorage()
    storage.append([entry(index, term) for index, term in enumerate(terms, 1)])
    return storage


def opened(*terms: int, commit: int = 0, applied: int = 0) -> RaftLog:
    return RaftLog(stored(*terms), commit=Index(commit), applied=Index(applied))


@given(
    st.lists(st.integers(1, 6), min_size=1, max_size=30).map(sorted),
    st.integers(0, 30),
    st.integers(0, 30),
    st.integers(0, 7),
)
def test_the_search_for_a_term_finds_what_a_walk_finds(
    terms: list[int], one: int, other: int, wanted: int
) -> None:
    """Law: the search finds the highest index of the range whose term is at most the wanted one,
    else the start of the range.
    """
    log = opened(*terms)
    low, high = sorted((min(one, len(terms)), min(other, len(terms))))
    fitting = [index for index in range(low, high + 1) if log.term(Index(index)) <= wanted]

    found = log.highest_with_term(Index(low), Index(high), Term(wanted))

    assert found == max(fitting, default=low)


def test_entries_are_handed_out_once_and_counted_when_they_land() -> None:
    """Law: each entry is handed out for persistence once, and counts as stable when its own write has ended."""
    log = opened(1)
    log.append((entry(2, 1),))
    first = log.hand_out()
    log.take_off()
    log.append((entry(3, 1), entry(4, 1)))
    second = log.hand_out()
    log.take_off()

    log.land(None)
    after_first = log.stable
    log.land(None)

    assert (first, second) == ((entry(2, 1),), (entry(3, 1), entry(4, 1)))
    assert (after_first, log.stable) == (2, 4)
    log.check()


def test_a_truncation_unlands_what_it_drops() -> None:
    """Law: entries that replace others are handed out again, and an earlier write of the replaced ones counts for nothing."""
    log = opened(1)
    log.append((entry(2, 1), entry(3, 1)))
    log.hand_out()
    log.take_off()

    log.truncate(Index(3))
    log.append([entry(3, 2)])
    again = log.hand_out()
    log.take_off()
    log.land(None)

    assert again == (entry(3, 2),)
    assert log.stable == 2
    log.check()


def test_what_is_committed_is_never_truncated() -> None:
    """Law: a truncation of committed entries breaks the protocol and is refused."""
    log = opened(1, 1, commit=2)

    with pytest.raises(AssertionError, match="committed"):
        log.truncate(Index(2))


def test_committed_entries_never_come_back_from_storage_on_the_usual_path() -> None:
    """Law: the tail keeps entries until they are applied, so committed entries are neither read from storage nor copied."""
    log = opened(1, commit=1, applied=1)
    added = entry(2, 1, b"payload")
    log.append((added,))
    log.hand_out()
    log.take_off()
    log.land(None)
    log.commit_to(Index(2))

    (delivered,) = log.deliver(1000)

    assert delivered is added
    assert log.tail == []


def test_after_a_restart_committed_entries_come_from_storage_in_portions() -> None:
    """Law: after a restart, committed entries are read from storage in portions of bounded size, at least one entry each."""
    log = opened(1, 1, 1, commit=3, applied=1)

    portions = [log.deliver(1), log.deliver(1), log.deliver(1)]

    assert portions == [(entry(2, 1),), (entry(3, 1),), ()]


def test_committed_entries_of_the_tail_come_in_portions() -> None:
    """Law: a follower applies many committed entries in portions of bounded size, at least one entry each."""
    log = opened(1, commit=1, applied=1)
    log.append((entry(2, 1, b"aa"), entry(3, 1, b"bb"), entry(4, 1, b"cc")))
    log.hand_out()
    log.take_off()
    log.land(None)
    log.commit_to(Index(4))

    portions = [[each.index for each in log.deliver(4)] for _ in range(3)]

    assert portions == [[2, 3], [4], []]
    assert log.tail == []


def test_a_read_stops_at_its_size() -> None:
    """Law: a read of the tail ends at its size limit, as a read from storage does, but returns at least one entry."""
    log = opened(1)
    log.append((entry(2, 1, b"aa"), entry(3, 1, b"bb"), entry(4, 1, b"cc")))

    def indexes(entries: tuple[Entry, ...]) -> list[int]:
        return [one.index for one in entries]

    assert indexes(log.entries(Index(2), 4)) == [2, 3]
    assert indexes(log.entries(Index(2), 1)) == [2]
    assert indexes(log.entries(Index(3), 99)) == [3, 4]
    assert indexes(log.entries(Index(1), 99)) == [1]


def test_a_snapshot_answers_for_its_own_index_before_it_is_durable() -> None:
    """Law: a snapshot that is not durable yet already answers the term of its index;
    all entries below it count as compacted.
    """
    log = opened(1, 1)
    meta = SnapshotMeta(Index(9), Term(3), Membership())

    log.restore(meta)

    assert log.term(Index(9)) == 3
    assert (log.first_index(), log.last_index, log.commit) == (10, 9, 9)
    with pytest.raises(Compacted):
        log.term(Index(2))
    with pytest.raises(NotThere):
        log.term(Index(10))
    log.append((entry(10, 3),))
    assert log.term(Index(9)) == 3
    with pytest.raises(Compacted):
        log.entries(Index(9), 99)
    log.check()


def test_a_log_with_a_hole_is_refused_at_the_start() -> None:
    """Law: a replica whose log ends before its commit index does not start; it must be restored from its peers."""
    with pytest.raises(AssertionError, match="restore the replica"):
        opened(1, commit=2)


def test_a_commit_index_is_news_once() -> None:
    """Law: commit_to returns True only if it raises the commit index."""
    log = opened(1, 1, 1)

    assert [log.commit_to(Index(index)) for index in (2, 2, 1, 3)] == [True, False, False, True]


def test_memory_keeps_only_what_is_not_durable_or_not_delivered() -> None:
    """Law: the tail drops an entry only when it is both durable and handed out to be applied."""
    log = opened(1)
    log.append((entry(2, 1), entry(3, 1)))
    log.hand_out()
    log.take_off()
    log.commit_to(Index(2))
    log.land(None)
    durable = list(log.tail)
    log.deliver(1 << 20)
    assert durable == [entry(2, 1), entry(3, 1)]


def test_what_is_read_behind_a_start_begins_there() -> None:
    """Law: a read begins at its start index and returns the entries that fit, at least one."""
    log = opened()
    log.append(tuple(entry(index, 1, b"12") for index in range(1, 5)))

    read = [
        [each.index for each in log.entries(Index(low), size)]
        for low, size in ((1, 1), (1, 4), (2, 5), (3, 9), (4, 0))
    ]

    assert read == [[1], [1, 2], [2, 3], [3, 4], [4]]


def test_a_log_of_openings_is_blank() -> None:
    """Law: a log is blank if it holds only the opening entries of terms; one proposal ends that."""
    opening = Entry(Term(1), Index(1), b"", EntryKind.NOOP)
    empty, opened_twice, used = opened(), opened(), opened()
    opened_twice.append((opening, Entry(Term(2), Index(2), b"", EntryKind.NOOP)))
    used.append((opening, entry(2, 1)))

    assert [log.is_blank() for log in (empty, opened_twice, used)] == [True, True, False]


def test_openings_of_two_lives_are_blank() -> None:
    """Law: opening entries count as blank both in storage and in memory."""
    storage = MemoryLogStorage()
    storage.append([noop(1, 1)])
    log = RaftLog(storage, commit=Index(0), applied=Index(0))
    log.append([noop(2, 2)])
    assert log.is_blank()

    log.append([entry(3, 2)])
    assert not log.is_blank()


def test_a_log_that_begins_behind_a_snapshot_is_not_blank() -> None:
    """Law: a log behind a snapshot is not blank, even if the snapshot holds a single entry."""
    log = opened()

    log.restore(SnapshotMeta(Index(1), Term(1), Membership()))

    assert not log.is_blank()


class TakenStorage(MemoryLogStorage):
    """A complete log from which retention has deleted the data of some messages."""

    def entries(self, low: Index, high: Index, size_bytes_max: int) -> list[Entry]:
        raise Compacted(low)


def test_a_log_whose_messages_retention_has_taken_is_not_blank() -> None:
    """Law: is_blank does not fail on deleted data, because a recovering replica calls it at each election time-out."""
    storage = TakenStorage()
    storage.append([entry(1, 1)])

    assert not RaftLog(storage, commit=Index(1), applied=Index(1)).is_blank()


def test_a_truncation_keeps_what_stands_before_it() -> None:
    """Law: a truncation keeps the entries before it, also those in memory only; last_term is that of the last entry left."""
    log = opened(1)
    log.append((entry(2, 1), entry(3, 2), entry(4, 3)))

    seen = []
    for index in (4, 3):
        log.truncate(Index(index))
        left = [each.index for each in log.entries(Index(2), 99)]
        seen.append((log.last_index, log.last_term, left))

    assert seen == [(3, 2, [2, 3]), (2, 1, [2])]
    log.check()


def test_an_older_snapshot_that_lands_leaves_the_newer_one() -> None:
    """Law: when an older snapshot becomes durable, a newer one that is not durable yet still answers for its index."""
    log = opened()
    first, second = (SnapshotMeta(Index(at), Term(at), Membership()) for at in (5, 9))
    log.restore(first)
    log.take_off()
    log.restore(second)
    log.take_off()

    log.land(first)

    assert (log.snapshot, log.term(Index(9))) == (second, 9)
    log.land(second)
    assert log.snapshot is None


def test_a_truncation_below_the_tail_leaves_nothing_of_it() -> None:
    """Law: after a truncation below the tail, the log ends with the entries that are appended next."""
    log = opened(1, 1)
    log.append((entry(3, 1), entry(4, 1)))

    log.truncate(Index(2))
    log.append((entry(2, 2),))

    assert (log.last_index, log.last_term) == (2, 2)
    assert log.entries(Index(2), 99) == (entry(2, 2),)
    log.check()


def test_a_snapshot_takes_the_place_of_all_that_was_not_committed() -> None:
    """Law: a snapshot replaces all uncommitted entries, whether stored, in memory or on their way to the disk."""
    log = opened(1, 1, commit=1, applied=1)
    log.append((entry(3, 1),))
    log.hand_out()
    log.take_off()
    meta = SnapshotMeta(Index(9), Term(3), Membership())

    log.restore(meta)
    log.take_off()
    stable = [log.stable]
    for landed in (None, meta):
        log.land(landed)
        stable.append(log.stable)

    assert log.tail == []
    assert stable == [1, 1, 9]
    assert (log.applied, log.commit) == (9, 9)
    log.check()
