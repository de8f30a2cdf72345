"""The durable log: entries are appended, truncated, compacted and read back complete."""

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_broker.store import layout
from orderlymq_broker.store.entry import (
    EntryCorrupt,
    cut_messages,
    encode_entry,
    head_length,
    split_entry,
)
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Applied
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_raft.log import Compacted, Unavailable
from orderlymq_raft.types import (
    Entry,
    EntryKind,
    HardState,
    Index,
    Membership,
    NodeId,
    SnapshotMeta,
    Term,
)
from tests.broker.store.memory import MemoryStore

NO_TAIL = 0  # No tail in memory, so entries are always read from the store.
HIGH = Index(1 << 40)


def message(fill: int, size: int = 100) -> bytes:
    return struct.pack(">I", size) + bytes((fill,)) * (size - 4)


class Log:
    """A log store that stages its appends, and a plain list of the same entries."""

    def __init__(self, tail_size_max: int = NO_TAIL) -> None:
        self.kv = MemoryStore()
        self.store = RaftLogStore(self.kv, tail_size_max)
        self.twin: list[Entry] = []

    def entry(self, index: int, term: int, fills: list[int]) -> Entry:
        """Return an entry for *index*, behind the list's entries before it."""
        physical = sum(
            len(split_entry(entry.data).blob)
            for entry in self.twin[: index - 1]
            if entry.kind is EntryKind.NORMAL
        )
        data = encode_entry(b"meta", [message(fill) for fill in fills], physical, 1000 + index)
        return Entry(Term(term), Index(index), data)

    def append(self, index: int, term: int, fills: list[int]) -> None:
        self.take(self.entry(index, term, fills))

    def take(self, entry: Entry) -> None:
        batch = Batch()
        self.store.append(batch, [entry])
        self.kv.stage(batch)
        self.twin[entry.index - 1 :] = [entry]

    def reopened(self) -> RaftLogStore:
        self.kv.write(Batch(), sync=True)
        return RaftLogStore(self.kv, NO_TAIL)


def test_an_entry_splits_into_the_parts_it_was_made_of() -> None:
    """Law: splitting is the inverse of encoding, and each message gets its physical offset."""
    messages = [message(1), message(2, 150)]

    data = encode_entry(b"records", messages, 7000, -5)
    parts = split_entry(data)

    assert (parts.physical_start, parts.wall_ms, bytes(parts.meta)) == (7000, -5, b"records")
    assert bytes(parts.blob) == b"".join(messages)
    assert cut_messages(data, head_length(data), 7000) == [
        (7000, messages[0]),
        (7100, messages[1]),
    ]
    assert parts.physical_end == 7250


@given(st.binary(max_size=60))
def test_garbage_is_no_entry(data: bytes) -> None:
    """Law: any bytes make the decoder raise only its own error, and it always ends."""
    with contextlib.suppress(EntryCorrupt):
        cut_messages(data, head_length(data), split_entry(data).physical_start)


@pytest.mark.parametrize("tail_size_max", [NO_TAIL, 350, 1 << 20])
def test_entries_are_read_back_as_they_were_appended(tail_size_max: int) -> None:
    """Law: an entry is read back exactly, from the tail, from staged writes or from the store."""
    log = Log(tail_size_max)
    log.append(1, 1, [1, 2])
    log.take(Entry(Term(2), Index(2), b"", EntryKind.NOOP))
    log.take(Entry(Term(2), Index(3), b"members", EntryKind.CONFIG))
    log.append(4, 2, [3])
    log.append(5, 3, [])

    reads = [
        list(store.entries(Index(low), Index(6), 1 << 20))
        for store in (log.store, log.reopened())
        for low in (1, 2, 4, 5)
    ]

    assert [read[0] for read in reads] == [log.twin[low - 1] for low in (1, 2, 4, 5)] * 2
    assert reads[4] == log.twin
    assert log.store.physical_end() == log.reopened().physical_end() == 300


def test_a_read_gives_as_many_entries_as_fit_but_always_one() -> None:
    """Law: a read returns as many whole entries as its size limit allows, but at least one."""
    log = Log()
    for index in range(1, 6):
        log.append(index, 1, [index, index])
    size = len(log.twin[0].data)

    counts = [
        len(log.store.entries(Index(1), Index(6), limit))
        for limit in (0, size, size * 2 - 1, size * 2, 1 << 20)
    ]

    assert counts == [1, 1, 1, 2, 5]


def test_a_conflicting_tail_is_replaced_with_its_bodies() -> None:
    """Law: truncated entries leave neither head nor body in the store."""
    log = Log()
    log.append(1, 1, [1])
    log.append(2, 1, [2, 2, 2])
    log.append(3, 1, [3])

    log.append(2, 2, [9])

    store = log.reopened()
    assert list(store.entries(Index(1), Index(3), 1 << 20)) == log.twin
    assert log.kv.scan(Family.MESSAGES, b"\x00", layout.U64_END, limit=9) == [
        (layout.message_key(0), message(1)),
        (layout.message_key(100), message(9)),
    ]
    assert (store.last_index(), store.physical_end()) == (2, 200)


def test_a_tail_replaced_within_one_batch_is_gone() -> None:
    """Law: entries that are appended and truncated in one batch do not return with its puts."""
    log = Log(1 << 20)
    batch = Batch()
    first, second = log.entry(1, 1, [1]), log.entry(1, 2, [2])
    log.store.append(batch, [first, Entry(Term(1), Index(2), b"", EntryKind.NOOP)])
    log.store.append(batch, [second])
    log.kv.stage(batch)

    assert list(log.reopened().entries(Index(1), Index(2), 1 << 20)) == [second]
    assert log.kv.scan(Family.RAFT_LOG, b"\x00", layout.U64_END, limit=9)[1:] == []


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 3)), max_size=25),
    st.sampled_from([NO_TAIL, 400, 1 << 20]),
)
@settings(max_examples=80, deadline=None)
def test_the_log_equals_a_list_after_any_appends_and_truncations(
    steps: list[tuple[int, int, int]], tail_size_max: int
) -> None:
    """Law: after any appends and truncations, the log equals a plain list, also after a restart."""
    log = Log(tail_size_max)
    term = 1
    for back, rise, count in steps:
        index = max(1, len(log.twin) + 1 - back)
        term += rise or (back > 0)
        log.append(index, term, list(range(count)))

    for store in (log.store, log.reopened()):
        assert store.last_index() == len(log.twin)
        assert [store.term(entry.index) for entry in log.twin] == [e.term for e in log.twin]
        read: list[Entry] = []
        while len(read) < len(log.twin):
            low = Index(len(read) + 1)
            read.extend(store.entries(low, Index(len(log.twin) + 1), 500))
        assert read == log.twin
        with pytest.raises(Unavailable):
            store.term(Index(len(log.twin) + 1))


def test_compaction_drops_heads_and_keeps_bodies() -> None:
    """Law: compaction deletes heads but keeps bodies; the term of the last compacted entry stays known."""
    log = Log(1 << 20)
    for index in range(1, 5):
        log.append(index, index, [index])
    batch = Batch()
    log.store.compact(batch, Index(3))
    log.kv.stage(batch)

    for store in (log.store, log.reopened()):
        assert (store.first_index(), store.last_index(), store.physical_end()) == (4, 4, 400)
        assert [store.term(Index(index)) for index in (3, 4)] == [3, 4]
        with pytest.raises(Compacted):
            store.term(Index(2))
        with pytest.raises(Compacted):
            store.entries(Index(3), Index(5), 1)
        assert list(store.entries(Index(4), Index(5), 1)) == log.twin[3:]
    assert len(log.kv.scan(Family.MESSAGES, b"\x00", layout.U64_END, limit=9)) == 4


def test_a_log_compacted_to_its_end_goes_on() -> None:
    """Law: a log that is compacted to its end remembers that entry's index, term and physical end."""
    log = Log()
    log.append(1, 5, [1, 1])
    batch = Batch()
    log.store.compact(batch, Index(1))
    log.kv.stage(batch)

    log.store = log.reopened()
    log.append(2, 5, [2])

    store = log.reopened()
    assert (store.first_index(), store.last_index(), store.physical_end()) == (2, 2, 300)
    assert [store.term(Index(1)), store.term(Index(2))] == [5, 5]


def test_a_snapshot_starts_the_log_again() -> None:
    """Law: after a snapshot is installed, the log is empty behind it and has its membership."""
    log = Log()
    log.append(1, 1, [1])
    membership = Membership(frozenset({NodeId(1), NodeId(2)}))
    batch = Batch()

    log.store.install(batch, SnapshotMeta(Index(9), Term(4), membership), physical_end=900)
    log.store.set_hard_state(batch, HardState(Term(6), NodeId(2), Index(9)))
    log.kv.stage(batch)

    store = log.reopened()
    assert (store.first_index(), store.last_index(), store.term(Index(9))) == (10, 9, 4)
    assert store.physical_end() == 900
    assert store.initial_state() == (HardState(Term(6), NodeId(2), Index(9)), membership)


def test_a_new_replica_knows_nothing() -> None:
    """Law: an empty store gives the initial state of a replica."""
    store = RaftLogStore(MemoryStore(), NO_TAIL)

    assert store.initial_state() == (HardState(), Membership())
    assert (store.first_index(), store.last_index(), store.term(Index(0))) == (1, 0, 0)
    with pytest.raises(Unavailable):
        store.snapshot()


def test_the_applied_state_is_the_snapshot_on_offer() -> None:
    """Law: a snapshot covers at least the entries that META records as applied."""
    log = Log()
    log.append(1, 3, [1])
    batch = Batch()
    batch.put(Family.META, layout.META_APPLIED, layout.encode_applied(Applied(1, 3)))
    log.kv.stage(batch)

    assert log.store.snapshot() == SnapshotMeta(Index(1), Term(3), Membership())


def test_an_entry_that_does_not_join_the_log_is_refused() -> None:
    """Law: an entry whose bodies do not begin at the log's physical end is refused, because physical offsets have no gaps."""
    log = Log()
    entry = Entry(Term(1), Index(1), encode_entry(b"", [message(1)], 50, 0))

    with pytest.raises(EntryCorrupt, match="begins at physical offset 50, but the log ends at 0"):
        log.store.append(Batch(), [entry])


def test_a_damaged_body_is_noticed_when_an_entry_is_read() -> None:
    """Law: a damaged body is detected when its entry is read, so that it is not sent to a peer."""
    log = Log()
    log.append(1, 1, [1, 2])
    batch = Batch()
    batch.put(Family.MESSAGES, layout.message_key(100), message(3))
    log.kv.stage(batch)

    with pytest.raises(EntryCorrupt, match="entry 1 is damaged"):
        log.store.entries(Index(1), Index(2), 1)


def test_entries_below_the_retention_floor_count_as_compacted() -> None:
    """Law: entries whose messages retention deleted count as compacted,
    so that a follower that needs them gets a snapshot.
    """
    log = Log()
    for index in range(1, 5):
        log.append(index, 1, [index])
    batch = Batch()
    batch.delete_range(Family.MESSAGES, layout.message_key(0), layout.message_key(200))
    applied = Applied(4, 1, physical_end=400, floor=200)
    batch.put(Family.META, layout.META_APPLIED, layout.encode_applied(applied))
    log.kv.stage(batch)

    with pytest.raises(Compacted):
        log.store.entries(Index(2), Index(5), 1 << 20)
    assert list(log.store.entries(Index(3), Index(5), 1 << 20)) == log.twin[2:]


def test_a_log_that_ends_before_what_is_applied_is_refused() -> None:
    """Law: a log that ends before the applied index is refused, because files of the store are lost."""
    log = Log()
    log.append(1, 1, [1])
    batch = Batch()
    batch.put(Family.META, layout.META_APPLIED, layout.encode_applied(Applied(2, 1, 200, 0)))
    log.kv.write(batch, sync=True)

    with pytest.raises(EntryCorrupt, match="the log ends at entry 1, but 2 is applied"):
        RaftLogStore(log.kv, NO_TAIL)
