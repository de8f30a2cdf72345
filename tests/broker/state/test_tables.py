"""Locks, offsets, members, the window of known sends and the tail cache, table by table."""

from typing import Any

import msgspec
import pytest
from msgspec.msgpack import decode

from orderlymq_broker.state.groups.lockrecords import (
    ClientDead,
    LockRef,
    LocksExpired,
    LocksFreed,
    LocksGranted,
    LocksReleased,
    LocksRequested,
)
from orderlymq_broker.state.groups.locks import Lock, LockTable
from orderlymq_broker.state.groups.offsets import OffsetTable
from orderlymq_broker.state.records import (
    Append,
    Commit,
    DedupTrimmed,
    GroupDeleted,
    GroupSet,
    MemberLeft,
    MembersChanged,
    MemberSeen,
    OffsetsCommitted,
    OffsetsMoved,
    OffsetsReset,
    Record,
    Subscription,
    TopicDeleted,
    TopicSet,
    Trimmed,
    decode_records,
    encode_records,
)
from orderlymq_broker.state.send.duplicates import (
    DedupWindow,
    send_identity,
    with_origin,
)
from orderlymq_broker.state.send.firstsend import FirstSend
from orderlymq_broker.state.tables import TableWrites, read_pairs, read_rows
from orderlymq_broker.state.topics.queues import Queue, TailCache
from orderlymq_broker.state.topics.rows import TailEntry
from orderlymq_broker.store.kv import Batch, Family
from orderlymq_broker.store.layout import Table, table_bounds, table_key
from orderlymq_broker.store.pendingwrites import Layer
from tests.broker.state.entries import WALL_MS, Replica
from tests.broker.store.memory import MemoryStore

# The topics and consumer groups that locks and offsets need.
KNOWN = (TopicSet("t", 16, 16), GroupSet("g"))


def request(client: str, *queues: int, group: str = "g") -> LocksRequested:
    return LocksRequested(group, client, "h:1", 1_000, tuple(("t", queue) for queue in queues))


def granted(client: str, *pairs: tuple[int, int]) -> LocksGranted:
    return LocksGranted("g", client, 1_000, tuple(("t", queue, epoch) for queue, epoch in pairs))


def freed(*queues: int, reason: str) -> LocksFreed:
    return LocksFreed(tuple(("g", "t", queue) for queue in queues), reason)


def test_the_life_of_a_lock(replica: Replica) -> None:
    """Law: a lock is granted, renewed, refused to others, released and expired, with the right epochs."""
    replica.take(*KNOWN)
    script: list[tuple[Record, object]] = [
        (request("a", 0, 1), granted("a", (0, 1), (1, 1))),
        (request("a", 0), granted("a", (0, 1))),
        (request("b", 0, 1, 2), granted("b", (2, 1))),
        (LocksReleased("g", "b", (("t", 0),)), freed(reason="released by b")),
        (LocksReleased("g", "a", (("t", 0), ("t", 9))), freed(0, reason="released by a")),
        (request("b", 0), granted("b", (0, 2))),
        (LocksExpired("g", (LockRef("t", 0, 6),)), freed(reason="lease over")),
        (LocksExpired("g", (LockRef("t", 0, 7),)), freed(0, reason="lease over")),
        (request("b", 0), granted("b", (0, 3))),
        (LocksReleased("g", "b", None), freed(2, 0, reason="released by b")),
    ]

    for record, outcome in script:
        (found,) = replica.take(record)
        if isinstance(found, LocksFreed) and isinstance(outcome, LocksFreed):
            assert (set(found.queues), found.reason) == (set(outcome.queues), outcome.reason)
        else:
            assert found == outcome
    assert [lock.queue_id for lock in replica.state.locks.held("g")] == [1]


def test_a_broadcasting_members_lock_does_not_make_the_group_ordered(replica: Replica) -> None:
    """Law: a broadcasting member's lock does not make its consumer group ordered, because such members never renew it."""
    replica.take(*KNOWN)
    replica.take(LocksRequested("g", "a", "h:1", 1_000, (("t", 0),), orderly=False))
    assert not replica.state.locks.takes_locks("g")

    replica.take(request("a", 0))

    assert replica.state.locks.takes_locks("g")
    assert replica.restarted().state.locks.takes_locks("g")


def test_what_is_held_is_ordered_whatever_is_declared(replica: Replica) -> None:
    """Law: a held queue counts as ordered, whatever the consumer group declares, until its lock ends;
    a declaration changes no lock.
    """
    replica.take(*KNOWN, request("a", 0), GroupSet("g", retry_max_times=3))
    replica.take(GroupSet("g", concurrent=True))
    assert replica.state.is_ordered("g")

    replica.take(LocksReleased("g", "a", None))
    assert not replica.state.is_ordered("g")
    assert replica.take(request("a", 0)) == [granted("a", (0, 2))]
    for each in (replica, replica.restarted()):
        assert each.state.is_ordered("g")
    replica.take(LocksReleased("g", "a", None), GroupSet("g"))
    assert replica.state.is_ordered("g")


def test_an_old_record_of_a_group_declares_nothing() -> None:
    """Law: records of older and newer versions can be read; missing fields have their defaults."""
    row = encode_records([GroupSet("g", concurrent=True, retry_pause_max_ms=7)])
    (fields,) = msgspec.msgpack.decode(row)
    # The tag is before the fields.
    before = 1 + GroupSet.__struct_fields__.index("concurrent")

    assert decode_records(msgspec.msgpack.encode([fields[:before]])) == [GroupSet("g")]
    assert decode_records(msgspec.msgpack.encode([[*fields, "newer"]])) == [
        GroupSet("g", concurrent=True, retry_pause_max_ms=7)
    ]


@pytest.mark.parametrize("gone", [TopicDeleted("t"), GroupDeleted("g", clean_offsets=True)])
def test_rows_of_locks_go_and_epochs_rise_even_so(replica: Replica, gone: Record) -> None:
    """Law: rows of locks are deleted with topics and consumer groups, but epochs go on rising over re-creations."""
    for round_number in range(1, 4):
        replica.take(*KNOWN)
        for client in ("a", "b"):
            replica.take(request(client, 0, 1))
            replica.take(LocksReleased("g", client, None))
        replica.take(request("c", 0))
        epochs = [replica.state.locks.epoch("g", "t", queue) for queue in (0, 1)]
        assert min(epochs) > 2 * (round_number - 1)

        replica.take(gone)

        rows = [decode(row, type=Lock) for row in read_rows(replica.store, Table.LOCKS)]
        assert [row for row in rows if row.topic] == []
        assert list(replica.state.locks.rows())[1:] == []
        assert not replica.state.locks.holds_any("c")
        assert replica.restarted().state.digest() == replica.state.digest()
        late = OffsetsCommitted((Commit("g", "t", 0, 9, max(epochs)),))
        assert replica.take(late) == [OffsetsMoved(0, 1)]


def test_what_comes_behind_a_deletion_leaves_no_row(replica: Replica) -> None:
    """Law: a lock or offset that is applied after its topic or consumer group was deleted leaves no row."""
    replica.take(*KNOWN)
    commits = (Commit("g", "t", 0, 1),)
    replica.take(TopicDeleted("t"), request("a", 0), OffsetsCommitted(commits))
    replica.take(OffsetsReset(commits))
    replica.take(TopicSet("t", 1, 1), request("a", 1), GroupDeleted("g"), request("a", 0))

    assert list(replica.state.locks.rows()) == [((), 0)]
    assert list(replica.state.offsets.rows()) == []
    assert list(replica.state.offsets.groups()) == []


@pytest.mark.parametrize("others", [10, 1_000])
def test_a_client_that_goes_costs_what_it_held(replica: Replica, others: int) -> None:
    """Law: removing a client costs only what it held; not all locks are visited."""
    replica.take(TopicSet("t", 2_000, 2_000), GroupSet("g"))
    replica.take(request("many", *range(others)))
    replica.take(request("few", 1_500, 1_501))
    looked = _CountingRows(replica.state.locks)

    replica.take(ClientDead("few", "pod gone"))

    assert replica.state.locks.held_count == others
    assert looked.count <= 10


class _CountingRows:
    """A table of locks that counts the rows that are visited."""

    def __init__(self, table: LockTable) -> None:
        self.count = 0
        for topics in table._groups.values():
            for topic in topics:
                topics[topic] = self._counted(topics[topic])

    def _counted(self, rows: dict[int, Lock]) -> dict[int, Lock]:
        counter = self

        class Counted(dict[int, Lock]):
            def values(self) -> Any:
                for value in super().values():
                    counter.count += 1
                    yield value

            def items(self) -> Any:
                for item in super().items():
                    counter.count += 1
                    yield item

        return Counted(rows)


def test_commits_go_forward_under_the_newest_epoch(replica: Replica) -> None:
    """Law: a commit counts only if it is higher and of the newest epoch; without an epoch, only if nobody holds the queue.
    A reset always sets the offset.
    """
    replica.take(*KNOWN)
    replica.take(request("a", 0))

    def commit(*pairs: tuple[int, int]) -> object:
        commits = tuple(Commit("g", "t", 0, offset, epoch) for offset, epoch in pairs)
        return replica.take(OffsetsCommitted(commits))[0]

    assert commit((5, 1)) == OffsetsMoved(1)
    assert commit((4, 1), (5, 1), (6, 2)) == OffsetsMoved(0, 3)
    replica.take(LocksReleased("g", "a", None))
    assert commit((6, 1)) == OffsetsMoved(1)
    replica.take(request("b", 0))
    assert commit((9, 1)) == OffsetsMoved(0, 1)
    assert commit((7, 0)) == OffsetsMoved(0, 1)
    replica.take(LocksReleased("g", "b", None))
    assert commit((7, 0)) == OffsetsMoved(1)
    moved = OffsetsMoved(1, reset=(("g", "t"),))
    assert replica.take(OffsetsReset((Commit("g", "t", 0, 2),))) == [moved]
    assert replica.state.offsets.of_group("g") == {"t": {0: 2}}
    assert list(replica.state.offsets.groups()) == ["g"]


def test_the_subscription_of_a_group_is_its_members_newest(replica: Replica) -> None:
    """Law: a consumer group subscribes to each topic as its newest member says;
    a member that leaves takes its subscriptions with it.
    """

    def see(client: str, *subscriptions: Subscription) -> object:
        return replica.take(MemberSeen("g", client, "h:1", subscriptions=subscriptions))[0]

    assert see("a", Subscription("t", "x", version=1)) == MembersChanged(("g",))
    assert see("a", Subscription("t", "y", version=2)) == MembersChanged(())
    assert see("b", Subscription("t", "z", version=1), Subscription("u")) == MembersChanged(("g",))
    subscriptions = replica.state.members.subscriptions("g")
    assert {topic: subscription.expression for topic, subscription in subscriptions.items()} == {
        "t": "y",
        "u": "*",
    }
    assert replica.take(MemberLeft("g", "a"), MemberLeft("g", "a")) == [
        MembersChanged(("g",)),
        MembersChanged(()),
    ]
    assert replica.state.members.subscriptions("g")["t"].expression == "z"
    assert replica.state.members.groups_of("b") == ["g"]
    assert replica.state.members.subscriptions("nobody") == {}


def test_the_first_send_of_an_identity_stands_until_the_window_passes(replica: Replica) -> None:
    """Law: the first send of an identity counts until the window has moved past it; a second one changes nothing."""
    replica.take(TopicSet("orders", 2, 2))
    topic_id = replica.topic_id()
    first = replica.append(topic_id, 1, identity=b"A")
    replica.append(topic_id, 0, identity=b"A")
    last = replica.append(topic_id, 0, identity=b"B")
    assert isinstance(first, Append)
    assert isinstance(last, Append)

    window = replica.state.dedup
    assert window.sends.get(b"A") == FirstSend(1, 0, first.physical, WALL_MS)
    assert replica.restarted().state.dedup.sends == window.sends
    assert window.floor(count_max=1, oldest_ms=0, most=9) == (first.physical + 1, True)
    assert window.floor(count_max=9, oldest_ms=WALL_MS + 1, most=2) == (last.physical + 1, True)
    assert window.floor(count_max=9, oldest_ms=WALL_MS + 1, most=1) == (first.physical + 1, False)
    assert window.floor(count_max=9, oldest_ms=WALL_MS, most=9) == (0, True)
    assert replica.take(DedupTrimmed(first.physical + 1)) == [Trimmed(1)]
    assert (window.sends.get(b"A"), len(window)) == (None, 1)


class _CountedIdentity(bytes):
    """An identity that counts how often it is hashed or compared."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        _CountedIdentity.read += 1
        return bytes.__getitem__(self, key)


def test_forgetting_copies_looks_at_nothing_else_in_the_window() -> None:
    """Law: a reset of a consumer group's offset costs only its own copies from that topic, however many sends are known,
    also after a restart.
    """
    store, batch = MemoryStore(), Batch()
    window = DedupWindow(store)

    def known(number: int, topic_id: int, *origin: str) -> bytes:
        identity = with_origin(send_identity(topic_id, f"U{number}", 1, 5, {}, 0), *origin)
        made = _CountedIdentity(identity)
        window.add(Append(topic_id, 0, number, number, 9, 7, WALL_MS, "", "", made), batch)
        return identity

    sends = [known(number, 1) for number in range(50)]
    others = [known(number, 2, "other") for number in range(50, 100)]
    elsewhere = [known(100, 3, "orders", "A")]
    copies = [known(101, 2, "orders"), known(102, 2, "orders", "A")]
    read = _CountedIdentity.read

    for _ in range(3):
        window.forget_copies({2: {"orders"}, 9: {"orders"}}, batch)

    assert _CountedIdentity.read - read <= 2 * len(copies)
    assert list(window.sends) == [*sends, *others, *elsewhere]
    window.check()
    store.write(batch, sync=True)
    again = DedupWindow(store)
    assert again.sends == window.sends
    again.forget_copies({2: {""}}, batch)
    again.trim(1, batch)
    assert list(again.sends) == [*sends[1:], *elsewhere]
    again.check()


def test_an_identity_is_topic_key_tries_and_body() -> None:
    """Law: topic, key, tries and body each distinguish two sends; without a usable key a send has no identity."""
    plain = send_identity(1, "U", 0, 5, {}, 0)

    assert len({plain, *(send_identity(*parts, {}, 0) for parts in DIFFERENT)}) == 5
    assert send_identity(1, "", 0, 5, {}, 0) == b""
    assert send_identity(1, "U" * 256, 0, 5, {}, 0) == b""


DIFFERENT = [(2, "U", 0, 5), (1, "V", 0, 5), (1, "U", 1, 5), (1, "U", 0, 6)]


def test_the_tail_keeps_the_newest_messages_of_all_queues() -> None:
    """Law: the tail cache keeps the newest messages of all queues, first in, first out."""
    cache = TailCache(250)
    queues = [Queue(1, 0), Queue(1, 1)]
    for number in range(6):
        queue = queues[number % 2]
        queue.next_offset += 1
        queue.last_timestamp = number
        cache.add(queue, TailEntry(number, 0, number, bytes(100), 0, 100))

    assert [entry.physical for queue in queues for entry in queue.tail] == [4, 5]
    assert [(queue.tail_start, queue.next_offset) for queue in queues] == [(2, 3), (2, 3)]
    cache.resize(100)
    assert (len(cache), cache.size) == (1, 100)
    cache.resize(0)
    assert (len(cache), queues[1].tail_start) == (0, 3)


def test_rows_are_written_once_with_their_last_value() -> None:
    """Law: a row is written once per batch with its last value; a row that an earlier entry wrote can be taken back."""
    replica = Replica()
    writes, batch = TableWrites(), Batch()
    writes.put(Table.TOPICS, "a", value=1)
    writes.put(Table.TOPICS, "a", value=2)
    writes.put(Table.TOPICS, "b", value=3)
    writes.flush(batch)
    writes.delete(Table.TOPICS, "b")
    writes.flush(batch)
    writes.flush(batch)

    assert len(batch.puts) == 3
    replica.store.write(batch, sync=True)
    assert list(read_rows(replica.store, Table.TOPICS)) == [b"\x02"]


class _CountingKey(bytes):
    """A key that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _CountingKey.compared += 1
        return bytes.__eq__(self, other)

    def __lt__(self, other: bytes) -> bool:
        _CountingKey.compared += 1
        return bytes.__lt__(self, other)

    def __le__(self, other: bytes) -> bool:
        _CountingKey.compared += 1
        return bytes.__le__(self, other)

    __hash__ = bytes.__hash__


@pytest.mark.parametrize("count", [100, 400])
def test_removing_rows_looks_at_no_other_row_of_the_batch(count: int) -> None:
    """Law: removing a row compares no other keys, however many rows the batch holds."""
    batch = Batch()
    keys = [_CountingKey(number.to_bytes(4, "big")) for number in range(count)]
    for key in keys:
        batch.put(Family.TABLES, key, b"")
    _CountingKey.compared = 0

    for key in keys:
        batch.delete(Family.TABLES, key)
    for key in keys:
        batch.delete_range(Family.TABLES, key, key + b"\x00")

    assert _CountingKey.compared == 0


@pytest.mark.parametrize("count", [100, 400])
def test_many_ranges_that_go_sort_the_keys_of_a_layer_once(count: int) -> None:
    """Law: many deleted ranges, one per queue in a retention, cost a few comparisons each and not one per key."""
    batch = Batch()
    for number in range(count):
        batch.put(Family.CONSUME_QUEUE, _CountingKey(number.to_bytes(4, "big")), b"")
    for number in range(count):
        key = number.to_bytes(4, "big")
        batch.delete_range(Family.CONSUME_QUEUE, key, key + b"\x00")
    _CountingKey.compared = 0

    layer = Layer()
    layer.merge(batch)

    assert layer.keys_between(Family.CONSUME_QUEUE, b"", b"\xff" * 5) == []
    assert _CountingKey.compared <= 40 * count


def test_a_batch_has_the_effect_of_the_order_it_was_filled_in() -> None:
    """Law: a batch acts in the order in which it was filled: a row removed and put again exists,
    one put and removed does not.
    """
    store = MemoryStore()
    family = Family.TABLES
    batch = Batch()
    batch.put(family, b"a", b"1")
    batch.put(family, b"b", b"1")
    batch.put(family, b"c", b"1")
    batch.delete(family, b"a")
    batch.delete_range(family, b"b", b"d")
    batch.put(family, b"c", b"2")
    batch.delete(family, b"d")
    batch.put(family, b"d", b"2")

    store.write(batch, sync=True)

    assert store.scan(family, b"", b"z", limit=9) == [(b"c", b"2"), (b"d", b"2")]


def test_a_large_table_is_read_in_pages() -> None:
    """Law: a table of several pages is read completely, each row once."""
    replica = Replica()
    writes, batch = TableWrites(), Batch()
    for number in range(2_500):
        writes.put(Table.OFFSETS, "g", number, value=number)
    writes.flush(batch)
    replica.store.write(batch, sync=True)

    assert len(set(read_rows(replica.store, Table.OFFSETS))) == 2_500


def rows_of(store: MemoryStore) -> list[tuple[bytes, bytes]]:
    start, end = table_bounds(Table.OFFSETS)
    return list(read_pairs(store, Family.TABLES, start, end))


def flushed(store: MemoryStore, writes: TableWrites) -> None:
    batch = Batch()
    writes.flush(batch)
    store.write(batch, sync=True)


def test_a_range_that_goes_takes_its_rows_and_no_neighbour() -> None:
    """Law: a deleted range takes its own rows only, also those that the same entry wrote; rows written after it stay."""
    store, writes = MemoryStore(), TableWrites()
    start, end = table_bounds(Table.OFFSETS, "g", "t")
    (name, begin, next_) = (table_key(Table.OFFSETS, "g", each) for each in ("s", "t", "u"))
    for queue in range(2):
        writes.put(Table.OFFSETS, "g", "t", queue, value="old")
    flushed(store, writes)
    writes._rows |= {start: b"first", end: b"behind", name: b"before", next_: b"after"}

    writes.delete_range(Table.OFFSETS, "g", "t")
    writes.put(Table.OFFSETS, "g", "t", 7, value="new")
    flushed(store, writes)
    kept = rows_of(store)
    writes.put(Table.OFFSETS, "h", value="of the next entry")
    flushed(store, writes)

    assert begin == start
    found = [key for key, _ in kept]
    assert found == sorted({name, end, next_, table_key(Table.OFFSETS, "g", "t", 7)})
    assert rows_of(store)[:-1] == kept


def test_a_topic_goes_from_all_groups_and_from_nothing_else() -> None:
    """Law: a deleted topic leaves the offsets of all consumer groups: as a range where it has many queues, else row by row.

    Other rows stay.
    """
    store, writes = MemoryStore(), TableWrites()
    offsets = OffsetTable(MemoryStore())
    rows = [
        (f"g{group}", topic, queue)
        for group in range(3)
        for topic in ("t", "u")
        for queue in (0, 7)
    ]
    rows += [("many", "t", queue) for queue in range(300)]
    for row in rows:
        offsets.advance(Commit(*row, 5), writes)
    flushed(store, writes)

    offsets.drop_topic("t", writes)
    flushed(store, writes)

    offsets.check()
    left = [row for row in rows if row[1] == "u"]
    assert [row[:3] for row in offsets.rows()] == left
    assert [key for key, _ in rows_of(store)] == [table_key(Table.OFFSETS, *row) for row in left]


@pytest.mark.parametrize("count", [0, 1, 1_023, 1_024, 1_025, 2_048, 2_049])
def test_every_row_is_read_once_whatever_page_it_is_on(count: int) -> None:
    """Law: rows are read in key order over page bounds, also if a key is the last one of a page plus a zero byte."""
    store, batch = MemoryStore(), Batch()
    keys = [bytes((Table.OFFSETS,)) + f"{number:04}".encode() for number in range(count)]
    keys += [key + b"\x00" for key in keys[1_023::1_024]]
    for key in keys:
        batch.put(Family.TABLES, key, key)
    store.write(batch, sync=True)

    assert rows_of(store) == [(key, key) for key in sorted(keys)]


def in_batch(writes: TableWrites) -> tuple[int, int]:
    """Return how many rows and ranges an entry deletes."""
    batch = Batch()
    writes.flush(batch)
    return len(batch.puts), len(batch.range_deletes)


@pytest.mark.parametrize(("count", "rows", "ranges"), [(255, 255, 0), (256, 0, 1)])
def test_many_rows_go_as_a_range_and_few_one_by_one(count: int, rows: int, ranges: int) -> None:
    """Law: many rows are deleted as a range and a few one by one; each consumer group's part is counted by itself."""
    writes, found = TableWrites(), []

    writes.delete_numbered(Table.OFFSETS, "g", "t", numbers=range(count))
    found.append(in_batch(writes))
    writes.delete_grouped(Table.OFFSETS, "g", {"t": range(200), "u": range(count - 200)})
    found.append(in_batch(writes))
    writes.delete_numbered_of(Table.OFFSETS, {"g": range(count), "h": range(7)}, "t")
    found.append(in_batch(writes))

    assert found == [(rows, ranges), (rows, ranges), (rows + 7, ranges)]


def test_few_rows_that_go_are_those_that_were_meant() -> None:
    """Law: a few rows are deleted one by one, and no other rows."""
    store, writes = MemoryStore(), TableWrites()
    places = [(group, topic, number) for group in "gh" for topic in "tu" for number in range(3)]
    for place in places:
        writes.put(Table.OFFSETS, *place, value=0)
    flushed(store, writes)

    writes.delete_numbered(Table.OFFSETS, "g", "t", numbers=[0, 2])
    writes.delete_grouped(Table.OFFSETS, "h", {"u": [1, 2]})
    flushed(store, writes)

    gone = {("g", "t", 0), ("g", "t", 2), ("h", "u", 1), ("h", "u", 2)}
    assert [key for key, _ in rows_of(store)] == [
        table_key(Table.OFFSETS, *place) for place in places if place not in gone
    ]
