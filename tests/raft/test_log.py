"""The log's tail in memory, over storage that lags behind."""

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
    """The highest index of the range whose term is not above the wanted one, or its start."""
    log = opened(*terms)
    low, high = sorted((min(one, len(terms)), min(other, len(terms))))
    fitting = [index for index in range(low, high + 1) if log.term(Index(index)) <= wanted]

    found = log.highest_with_term(Index(low), Index(high), Term(wanted))

    assert found == max(fitting, default=low)


def test_entries_are_handed_out_once_and_counted_when_they_land() -> None:
    """Two flights, each with its own entries."""
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
    """The replaced entries are handed out again, and flights that held them do not count."""
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
    """A leader that asks for it breaks the protocol."""
    log = opened(1, 1, commit=2)

    with pytest.raises(AssertionError, match="committed"):
        log.truncate(Index(2))


def test_committed_entries_never_come_back_from_storage_on_the_usual_path() -> None:
    """The tail keeps them until they are handed out, the data uncopied."""
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
    """So that memory stays bounded; at least one entry each time."""
    log = opened(1, 1, 1, commit=3, applied=1)

    portions = [log.deliver(1), log.deliver(1), log.deliver(1)]

    assert portions == [(entry(2, 1),), (entry(3, 1),), ()]


def test_committed_entries_of_the_tail_come_in_portions() -> None:
    """So that a follower that gets a hundred at a time applies them with breaks; at least one entry each time."""
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
    """In memory as in storage, but never at nothing."""
    log = opened(1)
    log.append((entry(2, 1, b"aa"), entry(3, 1, b"bb"), entry(4, 1, b"cc")))

    def indexes(entries: tuple[Entry, ...]) -> list[int]:
        return [one.index for one in entries]

    assert indexes(log.entries(Index(2), 4)) == [2, 3]
    assert indexes(log.entries(Index(2), 1)) == [2]
    assert indexes(log.entries(Index(3), 99)) == [3, 4]
    assert indexes(log.entries(Index(1), 99)) == [1]


def test_a_snapshot_answers_for_its_own_index_before_it_is_durable() -> None:
    """Below it everything is compacted, immediately."""
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
    """A replica whose log ends before its commit index must be restored from its peers."""
    with pytest.raises(AssertionError, match="restore the replica"):
        opened(1, commit=2)


def test_a_commit_index_is_news_once() -> None:
    """A raise settles once what hangs on it."""
    log = opened(1, 1, 1)

    assert [log.commit_to(Index(index)) for index in (2, 2, 1, 3)] == [True, False, False, True]


def test_memory_keeps_only_what_is_not_durable_or_not_delivered() -> None:
    """In either order: applied after it is durable, or handed out before."""
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
    """At least one entry, and as many as fit."""
    log = opened()
    log.append(tuple(entry(index, 1, b"12") for index in range(1, 5)))

    read = [
        [each.index for each in log.entries(Index(low), size)]
        for low, size in ((1, 1), (1, 4), (2, 5), (3, 9), (4, 0))
    ]

    assert read == [[1], [1, 2], [2, 3], [3, 4], [4]]


def test_a_log_of_openings_is_blank() -> None:
    """One proposal, or anything compacted, and it is in use."""
    opening = Entry(Term(1), Index(1), b"", EntryKind.NOOP)
    empty, opened_twice, used = opened(), opened(), opened()
    opened_twice.append((opening, Entry(Term(2), Index(2), b"", EntryKind.NOOP)))
    used.append((opening, entry(2, 1)))

    assert [log.is_blank() for log in (empty, opened_twice, used)] == [True, True, False]


def test_openings_of_two_lives_are_blank() -> None:
    """Law: where they lie does not count; one is stored, the next still in memory."""
    storage = MemoryLogStorage()
    storage.append([noop(1, 1)])
    log = RaftLog(storage, commit=Index(0), applied=Index(0))
    log.append([noop(2, 2)])
    assert log.is_blank()

    log.append([entry(3, 2)])
    assert not log.is_blank()


def test_a_log_that_begins_behind_a_snapshot_is_not_blank() -> None:
    """Also when the snapshot holds a single entry."""
    log = opened()

    log.restore(SnapshotMeta(Index(1), Term(1), Membership()))

    assert not log.is_blank()


class TakenStorage(MemoryLogStorage):
    """A log that is whole, of whose messages retention has taken some."""

    def entries(self, low: Index, high: Index, size_bytes_max: int) -> list[Entry]:
        raise Compacted(low)


def test_a_log_whose_messages_retention_has_taken_is_not_blank() -> None:
    """Law: a replica that recovers asks this at each election time-out, and it must not end it."""
    storage = TakenStorage()
    storage.append([entry(1, 1)])

    assert not RaftLog(storage, commit=Index(1), applied=Index(1)).is_blank()


def test_a_truncation_keeps_what_stands_before_it() -> None:
    """In memory too, where it is all there is; the end has the term of its last entry."""
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
    """A snapshot that is not durable yet still answers for its index."""
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
    """Law: what follows it is read from where it is added again."""
    log = opened(1, 1)
    log.append((entry(3, 1), entry(4, 1)))

    log.truncate(Index(2))
    log.append((entry(2, 2),))

    assert (log.last_index, log.last_term) == (2, 2)
    assert log.entries(Index(2), 99) == (entry(2, 2),)
    log.check()


def test_a_snapshot_takes_the_place_of_all_that_was_not_committed() -> None:
    """Law: neither stored entries, nor those in memory, nor those on their way to the disk count any more."""
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
