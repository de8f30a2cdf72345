"""Stored records as columns: they equal the results of the protocol's own readers."""

import dataclasses
import tracemalloc
import zlib

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import sysflag
from orderlymq_protocol.message.properties import decode_properties
from orderlymq_protocol.message.record import (
    RecordError,
    StoredMessage,
    body_crc,
    decode_record,
    iter_records,
)
from orderlymq_spark.columns import COLUMNS
from orderlymq_spark.source.batches import ARROW_TYPES, BatchMaker, as_numbers
from orderlymq_spark.source.properties import PropertyTable
from orderlymq_spark.source.records import RecordBlock, parse_records
from tests.protocol.records import encode_record

SCHEMA = pa.schema([pa.field(name, ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])
QUEUE = MessageQueue("orders", "g", 3)
IPV6 = sysflag.BORN_HOST_IPV6 | sysflag.STORE_HOST_IPV6
END = 1 << 40
CUT = st.sampled_from([0, 0, 0, 1, 40, 90])
NUMBERS = (
    *("queue_offset", "physical_offset", "flag", "sys_flag"),
    *("born_ms", "store_ms", "reconsume_times"),
)
TEXT = st.text("ab\x01\x02é ", max_size=12)


def record(
    offset: int,
    body: bytes = b"body",
    properties: bytes = b"",
    topic: str = "orders",
    flags: int = 0,
) -> bytes:
    born, stored = (
        ("::1", 5) if flags & bit else ("127.0.0.1", 10911)
        for bit in (sysflag.BORN_HOST_IPV6, sysflag.STORE_HOST_IPV6)
    )
    return encode_record(
        StoredMessage(
            *(topic, 3, 7, offset, offset * 1000, flags, 1_000 + offset, born),
            *(2_000 + offset, stored, 1, 0, body, properties, body_crc(body)),
        )
    )


def only_batch(maker: BatchMaker, block: RecordBlock) -> pa.RecordBatch:
    (batch,) = maker.batches(block)
    return batch


@settings(deadline=None)  # Arrow's first call loads it
@given(st.lists(st.binary(max_size=40) | TEXT.map(str.encode), max_size=8))
def test_properties_are_read_as_the_protocol_reads_them(raws: list[bytes]) -> None:
    """For any bytes of clients, the maps and single values equal `decode_properties`."""
    expected = [decode_properties(raw) for raw in raws]

    table = PropertyTable(pa.array(raws, pa.binary()))

    assert [dict(each) for each in table.maps().to_pylist()] == expected
    for name in ("a", "b", "é"):
        assert table.values(name).to_pylist() == [each.get(name) for each in expected]


def test_names_of_their_own_take_memory_by_their_number() -> None:
    """A sender may name a property after each order: a column of every name for each message would take gigabytes."""
    raws = [
        b"\x02".join(b"order-%d-%d\x01x" % (message, each) for each in range(10))
        for message in range(4000)
    ]
    stored = pa.array([*raws, b"a\x011\x02b\x012\x02a\x013"], pa.binary())

    tracemalloc.start()
    try:
        table = PropertyTable(stored)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak_bytes < 64 << 20
    assert [table.values(name)[-1].as_py() for name in ("a", "b")] == ["3", "2"]


SHAPES = st.lists(
    st.tuples(
        st.binary(max_size=30),
        st.binary(max_size=9),
        st.sampled_from(["t", "t" * 127, "t" * 200]),
        st.sampled_from([0, sysflag.BORN_HOST_IPV6, sysflag.STORE_HOST_IPV6, IPV6]),
    ),
    max_size=6,
)


def chunks_of(shapes: list[tuple[bytes, bytes, str, int]], cut: int) -> list[bytes]:
    """Return records of these shapes in two chunks."""
    records = [
        record(number, body, properties, topic, flags)
        for number, (body, properties, topic, flags) in enumerate(shapes)
    ]
    return [b"".join(records[:cut]), b"".join(records[cut:])]


def as_read(stored: bytes) -> list[tuple[object, ...]]:
    """Return the values that the protocol's own reader finds in records."""
    return [
        (
            *(each.queue_offset, each.physical_offset, each.flag, each.sys_flag),
            *(each.born_timestamp, each.store_timestamp, each.reconsume_times),
            *(each.body, each.properties),
        )
        for each in iter_records(stored)
        if 0 <= each.queue_offset < END
    ]


def as_taken(block: RecordBlock) -> list[tuple[object, ...]]:
    numbers = [block.numbers[name].tolist() for name in NUMBERS]
    return list(zip(*numbers, block.bodies.to_pylist(), block.properties.to_pylist(), strict=True))


@settings(deadline=None)  # Arrow's first call loads it
@given(SHAPES, st.integers(0, 6))
def test_records_are_taken_apart_as_the_protocol_reads_them(
    shapes: list[tuple[bytes, bytes, str, int]], cut: int
) -> None:
    """Records have short or long topics, IPv4 or IPv6 hosts, any body and properties, in one chunk or two."""
    chunks = chunks_of(shapes, cut)

    block = parse_records(chunks, 0, END)

    assert as_taken(block) == as_read(b"".join(chunks))
    assert [decode_record(block.stored, at).queue_offset for at in block.starts.tolist()] == list(
        range(len(shapes))
    )


@settings(deadline=None, max_examples=300)
@example([(bytes(3), bytes(8), "t", 16), (b"", b"", "t", 0)], [(135, 1), (154, 16)], 0)
@given(SHAPES, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=3), CUT)
def test_damaged_records_are_an_error_or_what_the_protocol_reads(
    shapes: list[tuple[bytes, bytes, str, int]], changes: list[tuple[int, int]], torn: int
) -> None:
    """Bytes are changed anywhere, or the end is cut off: there are never other rows or other exceptions."""
    damaged = bytearray(b"".join(chunks_of(shapes, 0)))
    for at, value in changes:
        if at < len(damaged):
            damaged[at] = value
    content = bytes(damaged[: len(damaged) - torn])
    try:
        expected = as_read(content)
    except RecordError as error:
        if "utf-8" not in str(error):  # the text of a topic is not checked
            with pytest.raises(RecordError):
                parse_records([content], 0, END)
        return

    assert as_taken(parse_records([content], 0, END)) == expected


def test_offsets_outside_the_range_are_left_out_and_rows_say_where_they_are_from() -> None:
    chunk = b"".join(record(number) for number in range(4))

    rows = only_batch(BatchMaker(SCHEMA, QUEUE), parse_records([chunk], 1, 3)).to_pylist()

    assert [row["queue_offset"] for row in rows] == [1, 2]
    assert all(
        (row["topic"], row["broker"], row["queue_id"], row["flag"]) == (*QUEUE, 7) for row in rows
    )


def test_numbers_and_bodies_that_are_not_what_they_should_be_become_null_or_stay_raw() -> None:
    """A sequence that is not a number becomes null; a body that cannot be inflated is kept, with the reason."""
    flags = sysflag.with_compression(0, 3)
    chunk = b"".join(
        [
            record(0, zlib.compress(b"good"), b"n\x0112\x02", flags=flags),
            record(1, b"not zlib", b"n\x01twelve\x02", flags=flags),
        ]
    )

    maker = BatchMaker(SCHEMA, QUEUE, sequence_property="n")
    rows = only_batch(maker, parse_records([chunk], 0, 9)).to_pylist()

    assert [(row["seq"], row["body"]) for row in rows] == [(12, b"good"), (None, b"not zlib")]
    assert rows[0]["body_error"] is None
    assert "zlib" in rows[1]["body_error"]
    assert rows[1]["message_id"] == "7F00000100002A9F00000000000003E8"


def test_a_number_of_sixty_three_bits_is_one_and_a_larger_one_is_none() -> None:
    """An epoch may be a time in nanoseconds, which has 19 digits."""
    texts = ["1790000000000000000", "9223372036854775807", "-9223372036854775807", "-12"]
    wrong = ["9223372036854775808", "-9223372036854775809", "10000000000000000000", "", "-", None]

    assert as_numbers(pa.array([*texts, *wrong])).to_pylist() == [*map(int, texts), *[None] * 6]


@pytest.mark.parametrize("odd", [1_790_000_000_000_000, -(1 << 62), (1 << 63) - 1, 1 << 62])
def test_a_time_beyond_the_calendar_is_null(odd: int) -> None:
    """A sender may write any time, but readers of the row must be able to represent it."""
    stored = decode_record(record(0))
    chunk = record(1) + encode_record(dataclasses.replace(stored, born_timestamp=odd))

    rows = only_batch(BatchMaker(SCHEMA, QUEUE), parse_records([chunk], 0, 9)).to_pylist()

    assert [row["born_ts"] and row["born_ts"].timestamp() for row in rows] == [1.001, None]


def test_bodies_that_were_compressed_well_become_several_batches() -> None:
    """A block has a few MiB as stored but may inflate to GiB, which a task must not hold at one time."""
    body = bytes(8 << 20)
    packed, flags = zlib.compress(body), sysflag.with_compression(0, 3)
    count = 40  # 320 MiB in 320 KiB
    chunk = b"".join(record(number, packed, flags=flags) for number in range(count))

    offsets: list[int] = []
    for batch in BatchMaker(SCHEMA, QUEUE).batches(parse_records([chunk], 0, count)):
        assert batch.nbytes < 40 << 20
        assert all(each == pa.scalar(body, pa.binary()) for each in batch.column("body"))
        offsets += batch.column("queue_offset").to_pylist()

    assert offsets == list(range(count))


def test_an_empty_block_makes_an_empty_batch() -> None:
    assert only_batch(BatchMaker(SCHEMA, QUEUE), parse_records([], 0, 9)).num_rows == 0
