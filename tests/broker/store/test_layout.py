"""Keys sort in scan order, and every value decodes to what was encoded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_broker.store import layout
from orderlymq_broker.store.layout import (
    Applied,
    Compaction,
    IndexKind,
    KeyCorrupt,
    LogValue,
    QueueEntry,
    Table,
)

U32 = st.integers(0, (1 << 32) - 1)
U64 = st.integers(0, layout.U64_MAX)
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
QUEUE_KEYS = st.tuples(U32, U32, U64)


@given(QUEUE_KEYS, QUEUE_KEYS)
def test_queue_keys_sort_by_topic_queue_and_offset(
    one: tuple[int, int, int], other: tuple[int, int, int]
) -> None:
    """Law: keys sort by topic, queue and offset, and decode to them."""
    keys = [layout.queue_key(*one), layout.queue_key(*other)]

    assert (keys[0] < keys[1]) == (one < other)
    assert [layout.decode_queue_key(key) for key in keys] == [one, other]


@given(U32, st.integers(0, 1 << 31), U64)
def test_the_bounds_of_a_queue_hold_its_keys_and_no_others(
    topic_id: int, queue_id: int, offset: int
) -> None:
    """Law: a scan over the bounds meets exactly one queue."""
    start, end = layout.queue_bounds(topic_id, queue_id)

    assert start <= layout.queue_key(topic_id, queue_id, offset) < end
    assert not start <= layout.queue_key(topic_id, queue_id + 1, offset) < end


@given(U64, U32, I64, U64)
def test_queue_entries_survive(physical: int, size: int, tags_code: int, stamp: int) -> None:
    """Law: decoding is the inverse of encoding; tags codes are signed."""
    entry = QueueEntry(physical, size, tags_code, stamp)

    assert layout.decode_queue_entry(layout.encode_queue_entry(entry)) == entry


@given(U32, st.sampled_from(IndexKind), st.text(), U64)
def test_index_keys_survive_and_stand_behind_their_prefix(
    topic_id: int, kind: IndexKind, text: str, physical: int
) -> None:
    """Law: the index rows of a text are adjacent, ordered by physical offset."""
    key = layout.index_key(topic_id, kind, text, physical)
    prefix = layout.index_prefix(topic_id, kind, text)

    assert key.startswith(prefix)
    assert prefix <= key < layout.prefix_end(prefix)
    found = layout.decode_index_key(key)
    assert (found[0], found[1], found[3]) == (topic_id, kind, physical)
    assert len(found[2]) <= layout.INDEX_TEXT_SIZE_MAX


def test_an_index_text_does_not_find_what_begins_with_it() -> None:
    """Law: a scan for "a" does not find "ab", because an end mark follows each text."""
    start = layout.index_prefix(1, IndexKind.KEY, "a")

    key = layout.index_key(1, IndexKind.KEY, "ab", 5)

    assert not start <= key < layout.prefix_end(start)


@given(U64, st.none() | st.integers(0, 1 << 40), U64)
def test_positions_survive(one: int, vote: int | None, other: int) -> None:
    """Law: hard state, applied position and compaction decode to what was stored."""
    applied = Applied(one, other, one, other)
    compaction = Compaction(one, other, one)

    assert layout.decode_hard_state(layout.encode_hard_state(one, vote, other)) == (
        one,
        vote,
        other,
    )
    assert layout.decode_applied(layout.encode_applied(applied)) == applied
    assert layout.decode_compaction(layout.encode_compaction(compaction)) == compaction


def test_a_new_store_has_the_first_positions() -> None:
    """Law: a missing value decodes to the state of a new store."""
    assert layout.decode_hard_state(None) == (0, None, 0)
    assert layout.decode_applied(None) == Applied(0, 0, 0, 0)
    assert layout.decode_compaction(None) == Compaction(0, 0, 0)


@given(U64, st.integers(0, 2), U32, U32, st.binary())
def test_log_values_survive(
    term: int, kind: int, blob_length: int, checksum: int, head: bytes
) -> None:
    """Law: a log value decodes to what was encoded; the entry's head is stored unchanged."""
    value = layout.encode_log_value(
        term=term, kind=kind, blob_length=blob_length, checksum=checksum, head=head
    )

    assert layout.decode_log_value(value) == LogValue(term, kind, blob_length, checksum, head)


@given(st.text(alphabet="ab", max_size=3), st.text(alphabet="ab", max_size=3), U64)
def test_rows_with_equal_leading_parts_are_neighbours(one: str, other: str, number: int) -> None:
    """Law: a scan over a name's bounds finds that name's rows only."""
    start, end = layout.table_bounds(Table.OFFSETS, one)

    key = layout.table_key(Table.OFFSETS, other, number)

    assert (start <= key < end) == (one == other)


@given(
    st.dictionaries(st.text(max_size=3), st.sets(U64, max_size=3), max_size=4), st.text(max_size=3)
)
def test_keys_of_many_rows_are_those_of_each(firsts: dict[str, set[int]], second: str) -> None:
    """Law: numbered_keys makes the same keys as `table_key` makes one by one."""
    found = layout.numbered_keys(Table.OFFSETS, firsts.items(), second)

    assert found == [
        layout.table_key(Table.OFFSETS, first, second, number)
        for first, numbers in firsts.items()
        for number in numbers
    ]


@pytest.mark.parametrize(
    "decode",
    [
        layout.decode_u64,
        layout.decode_queue_key,
        layout.decode_queue_entry,
        layout.decode_index_key,
        layout.decode_applied,
        layout.decode_hard_state,
        layout.decode_compaction,
        layout.decode_log_value,
    ],
)
def test_bytes_of_another_shape_are_refused(decode: object) -> None:
    """Law: bytes of a wrong shape raise this package's error and no other."""
    assert callable(decode)

    for data in (b"", b"\x00" * 7, b"\xff" * 13):
        with pytest.raises(KeyCorrupt):
            decode(data)


@given(st.binary(min_size=1, max_size=4), st.binary(max_size=3))
def test_the_end_of_a_prefix_is_behind_all_its_keys(prefix: bytes, rest: bytes) -> None:
    """Law: all keys with a prefix sort below its end, and no other keys behind it do."""
    if set(prefix) == {255}:
        return

    assert prefix + rest < layout.prefix_end(prefix)
    assert layout.prefix_end(prefix) > prefix
    assert not layout.prefix_end(prefix).startswith(prefix)
