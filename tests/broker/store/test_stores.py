"""Both stores compared with a simple model: what a read sees of staged, written and settled data."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orderlymq_broker.store.kv import Batch, Family, KeyValueStore, StoreFull, WriteTicket
from orderlymq_broker.store.pendingwrites import subtract
from orderlymq_broker.store.rocks import RocksStore
from tests.broker.store.memory import MemoryStore

KEYS = st.binary(min_size=1, max_size=2).map(lambda raw: bytes(byte % 5 for byte in raw))
FAMILIES = st.sampled_from([Family.META, Family.MESSAGES])


@dataclass(frozen=True)
class Stage:
    ranges: list[tuple[Family, bytes, bytes]]
    changes: dict[tuple[Family, bytes], bytes | None]
    dropped: bytes = b""
    # The values that the same batch puts before its ranges are deleted.
    before: dict[tuple[Family, bytes], bytes | None] = field(default_factory=dict)

    def above(self, floor: bytes) -> "Stage":
        """Return this batch without puts of messages below *floor*, which never occur."""
        before, changes = (
            {
                (family, key): value
                for (family, key), value in puts.items()
                if family is not Family.MESSAGES or key >= floor
            }
            for puts in (self.before, self.changes)
        )
        return replace(self, before=before, changes=changes)


@dataclass(frozen=True)
class Step:
    kind: str  # The three operations: prepare, commit, settle.


@dataclass(frozen=True)
class Read:
    family: Family
    keys: list[bytes]
    limit: int
    reverse: bool


PUTS = st.dictionaries(st.tuples(FAMILIES, KEYS), st.none() | st.binary(max_size=3), max_size=5)
STEPS = st.lists(
    st.one_of(
        st.builds(
            Stage,
            st.lists(st.tuples(FAMILIES, KEYS, KEYS), max_size=2),
            PUTS,
            st.just(b"") | KEYS,
            PUTS,
        ),
        st.builds(Step, st.sampled_from(["prepare", "commit", "settle"])),
        st.builds(
            Read,
            FAMILIES,
            st.lists(KEYS, min_size=2, max_size=4),
            st.integers(0, 6),
            st.booleans(),
        ),
    ),
    max_size=40,
)


class Naive:
    """The model: one dictionary in which a write is visible immediately."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[Family, bytes], bytes] = {}
        self.floor = b""

    def apply(self, stage: Stage) -> None:
        self.floor = max(self.floor, stage.dropped)
        for name in [name for name in self.pairs if name[0] is Family.MESSAGES]:
            if name[1] < self.floor:
                del self.pairs[name]
        self._put(stage.before)
        for family, start, end in stage.ranges:
            for key in [key for key in self.pairs if key[0] == family and start <= key[1] < end]:
                del self.pairs[key]
        self._put(stage.changes)

    def _put(self, puts: dict[tuple[Family, bytes], bytes | None]) -> None:
        for key, value in puts.items():
            self.pairs.pop(key, None)
            if value is not None:
                self.pairs[key] = value

    def read(self, read: Read) -> object:
        low, high = read.keys[0], read.keys[1]
        span = sorted(
            (
                (key, value)
                for (family, key), value in self.pairs.items()
                if family == read.family and low <= key < high
            ),
            reverse=read.reverse,
        )
        values = [self.pairs.get((read.family, key)) for key in read.keys]

        return values[0], values, span[: read.limit]


def read_store(store: KeyValueStore, read: Read) -> object:
    return (
        store.get(read.family, read.keys[0]),
        store.multi_get(read.family, read.keys),
        store.scan(read.family, read.keys[0], read.keys[1], limit=read.limit, reverse=read.reverse),
    )


def batch_of(stage: Stage) -> Batch:
    batch = Batch()
    put_all(batch, stage.before)
    for family, start, end in stage.ranges:
        batch.delete_range(family, start, end)
    if stage.dropped:
        batch.drop_messages(stage.dropped)
    put_all(batch, stage.changes)

    return batch


def put_all(batch: Batch, puts: dict[tuple[Family, bytes], bytes | None]) -> None:
    for (family, key), value in puts.items():
        if value is None:
            batch.delete(family, key)
        else:
            batch.put(family, key, value)


@contextmanager
def opened(kind: str) -> Iterator[KeyValueStore]:
    if kind == "memory":
        yield MemoryStore()
        return
    with tempfile.TemporaryDirectory() as directory:
        store = RocksStore(Path(directory), create=True)
        try:
            yield store
        finally:
            store.close()


def play(store: KeyValueStore, steps: list[Stage | Step | Read]) -> None:
    naive = Naive()
    prepared: list[WriteTicket] = []
    committed: list[WriteTicket] = []
    for step in steps:
        match step:
            case Stage():
                stage = step.above(max(naive.floor, step.dropped))
                store.stage(batch_of(stage))
                naive.apply(stage)
            case Read():
                assert read_store(store, step) == naive.read(step)
            case Step("prepare"):
                prepared.append(store.prepare())
            case Step("commit") if prepared:
                store.commit(prepared[0], sync=False)
                committed.append(prepared.pop(0))
            case Step("settle") if committed:
                store.settle(committed.pop(0))
            case _:
                pass
    for family in (Family.META, Family.MESSAGES):
        # Bounds of all `KEYS`; behind them the RocksDB store records in META what was dropped.
        everything = Read(family, [b"\x00", b"\x05"], 1000, False)
        assert read_store(store, everything) == naive.read(everything)


@given(STEPS)
@settings(max_examples=200, deadline=None)
def test_memory_reads_what_was_staged_in_every_interleaving(
    steps: list[Stage | Step | Read],
) -> None:
    """Law: a read sees all staged writes in their order, whatever state their tickets are in."""
    with opened("memory") as store:
        play(store, steps)


@given(STEPS)
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
def test_rocksdb_reads_what_was_staged_in_every_interleaving(
    steps: list[Stage | Step | Read],
) -> None:
    """Law: the RocksDB store reads the same as the memory store, so that tests in memory are valid for it."""
    with opened("rocks") as store:
        play(store, steps)


@pytest.mark.parametrize("kind", ["memory", "rocks"])
def test_tickets_settled_out_of_order_never_show_an_old_value(kind: str) -> None:
    """Law: if an older ticket is settled last, it does not hide a newer value."""
    with opened(kind) as store:
        tickets = []
        for value in (b"old", b"new"):
            batch = Batch()
            batch.put(Family.META, b"k", value)
            tickets.append(store.prepare(batch))
        for ticket in tickets:
            store.commit(ticket, sync=False)

        store.settle(tickets[1])

        assert store.get(Family.META, b"k") == b"new"
        store.settle(tickets[0])
        assert store.get(Family.META, b"k") == b"new"


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=6),
    st.integers(0, 20),
    st.integers(0, 20),
)
def test_subtracting_spans_leaves_what_no_hole_covers(
    holes: list[tuple[int, int]], low: int, high: int
) -> None:
    """Law: a point is in the rest exactly if it is in the span and in no hole."""
    holes = [(a, b) for a, b in holes if a < b]
    if low >= high:
        return

    rest = subtract((bytes((low,)), bytes((high,))), [(bytes((a,)), bytes((b,))) for a, b in holes])

    covered = [
        point for point in range(21) for start, end in rest if start <= bytes((point,)) < end
    ]
    assert covered == [
        point for point in range(low, high) if not any(a <= point < b for a, b in holes)
    ]


def test_a_crash_keeps_synced_tickets_and_a_prefix_of_the_rest() -> None:
    """Law: after a crash all synced tickets are there, and a prefix of the later ones."""
    store = MemoryStore()
    for number, sync in enumerate([True, False, False]):
        batch = Batch()
        batch.put(Family.META, bytes((number,)), b"x")
        store.write(batch, sync=sync)
    batch = Batch()
    batch.put(Family.META, b"\x03", b"x")
    store.prepare(batch)

    kept = [
        [key for key, _ in store.crash(n).scan(Family.META, b"\x00", b"\xff", limit=9)]
        for n in range(store.at_risk + 1)
    ]

    assert kept == [
        [b"\x00"],
        [b"\x00", b"\x01"],
        [b"\x00", b"\x01", b"\x02"],
        [b"\x00", b"\x01", b"\x02", b"\x03"],
    ]


def test_a_write_refused_for_space_stays_staged_for_the_next_try() -> None:
    """Law: a batch refused with StoreFull stays staged; the next successful write stores it."""
    store = MemoryStore()
    store.full = True
    batch = Batch()
    batch.put(Family.META, b"k", b"v")

    with pytest.raises(StoreFull):
        store.write(batch, sync=True)
    store.full = False
    store.write(Batch(), sync=True)

    assert store.crash().get(Family.META, b"k") == b"v"


class CountingStore(MemoryStore):
    """A store that counts its scans and the pairs that they read."""

    def __init__(self) -> None:
        super().__init__()
        self.scans = self.pairs_read = 0

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        found = super().base_scan(family, start, end, limit, reverse=reverse)
        self.scans += 1
        self.pairs_read += len(found)
        return found


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_for_one_pair_reads_one_below_thousands_of_staged_ones(reverse: bool) -> None:
    """Law: a scan for one pair reads one stored pair, even with thousands of staged ones,
    because stored pairs may have megabytes.
    """
    store, stored, staged = CountingStore(), Batch(), Batch()
    for number in range(1_000):
        stored.put(Family.MESSAGES, b"%05d" % (2 * number), b"stored")
        staged.put(Family.MESSAGES, b"%05d" % (2 * number + 1), b"staged")
    store.write(stored, sync=True)
    store.stage(staged)

    found = store.scan(Family.MESSAGES, b"", b"a", limit=1, reverse=reverse)

    assert found == [(b"01999", b"staged") if reverse else (b"00000", b"stored")]
    assert (store.scans, store.pairs_read) == (1, 1)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_scan_over_thousands_of_masked_pairs_takes_few_reads(reverse: bool) -> None:
    """Law: a scan over thousands of deleted pairs takes few reads, because each read is twice as large as the last."""
    store, stored, staged = CountingStore(), Batch(), Batch()
    for number in range(2_001):
        stored.put(Family.MESSAGES, b"%05d" % number, b"stored")
        if number != 1_000:
            staged.delete(Family.MESSAGES, b"%05d" % number)
    store.write(stored, sync=True)
    store.stage(staged)

    found = store.scan(Family.MESSAGES, b"", b"a", limit=1, reverse=reverse)

    assert found == [(b"01000", b"stored")]
    assert store.scans <= 11
