"""Stored records to columns: the same as the protocol's own readers say."""

import zlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from orderlymq_protocol import sysflag
from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_protocol.properties import decode_properties
from orderlymq_protocol.record import StoredMessage, body_crc, encode_record
from orderlymq_spark.columns import COLUMNS
from orderlymq_spark.rows import ARROW_TYPES, Block, PropertyTable, RowMaker, take_apart

SCHEMA = pa.schema([pa.field(name, ARROW_TYPES[kind]) for name, kind in COLUMNS.items()])
QUEUE = MessageQueue("orders", "g", 3)
TEXT = st.text("ab\x01\x02é ", max_size=12)


def record(
    offset: int,
    body: bytes = b"body",
    properties: bytes = b"",
    topic: str = "orders",
    flags: int = 0,
) -> bytes:
    host = ("::1", 5) if flags & sysflag.BORN_HOST_IPV6 else ("127.0.0.1", 5)
    return encode_record(
        StoredMessage(
            *(topic, 3, 7, offset, offset * 1000, flags, 1_000 + offset, host),
            *(2_000 + offset, ("127.0.0.1", 10911), 1, 0, body, properties, body_crc(body)),
        )
    )


def only_batch(maker: RowMaker, block: Block) -> pa.RecordBatch:
    (batch,) = maker.batches(block)
    return batch


@settings(deadline=None)  # Arrow's first call loads it
@given(st.lists(st.binary(max_size=40) | TEXT.map(str.encode), max_size=8))
def test_properties_are_read_as_the_protocol_reads_them(raws: list[bytes]) -> None:
    """Whatever bytes clients wrote: the maps and single values equal `decode_properties`."""
    expected = [decode_properties(raw) for raw in raws]

    table = PropertyTable(raws)

    assert [dict(each) for each in table.maps().to_pylist()] == expected
    for name in ("a", "b", "é"):
        assert table.values(name).to_pylist() == [each.get(name) for each in expected]


@settings(deadline=None)  # Arrow's first call loads it
@given(
    st.lists(st.tuples(st.binary(max_size=30), st.sampled_from(["t", "t" * 200]), st.booleans()))
)
def test_records_of_every_shape_become_rows(shapes: list[tuple[bytes, str, bool]]) -> None:
    """Short and long topics, IPv4 and IPv6, any body; offsets outside the range are left out."""
    chunk = b"".join(
        record(number, body, topic=topic, flags=sysflag.BORN_HOST_IPV6 if ipv6 else 0)
        for number, (body, topic, ipv6) in enumerate(shapes)
    )

    rows = only_batch(RowMaker(SCHEMA, QUEUE), take_apart([chunk], 1, 1 << 40)).to_pylist()

    assert [(row["queue_offset"], row["body"]) for row in rows] == [
        (number, body) for number, (body, _, _) in enumerate(shapes) if number
    ]
    assert all(
        (row["topic"], row["broker"], row["queue_id"], row["flag"]) == (*QUEUE, 7) for row in rows
    )


def test_numbers_and_bodies_that_are_not_what_they_should_be_become_null_or_stay_raw() -> None:
    """A sequence that is no number is null; a body that does not inflate is kept, with the reason."""
    flags = sysflag.with_compression(0, 3)
    chunk = b"".join(
        [
            record(0, zlib.compress(b"good"), b"n\x0112\x02", flags=flags),
            record(1, b"not zlib", b"n\x01twelve\x02", flags=flags),
        ]
    )

    maker = RowMaker(SCHEMA, QUEUE, sequence_property="n")
    rows = only_batch(maker, take_apart([chunk], 0, 9)).to_pylist()

    assert [(row["seq"], row["body"]) for row in rows] == [(12, b"good"), (None, b"not zlib")]
    assert rows[0]["body_error"] is None
    assert "zlib" in rows[1]["body_error"]
    assert rows[1]["message_id"] == "7F00000100002A9F00000000000003E8"


def test_bodies_that_were_compressed_well_become_several_batches() -> None:
    """A block is a few MiB as stored; what a task holds must not be all that this inflates to, which may be GiB."""
    body = bytes(8 << 20)
    packed, flags = zlib.compress(body), sysflag.with_compression(0, 3)
    count = 40  # 320 MiB in 320 KiB
    chunk = b"".join(record(number, packed, flags=flags) for number in range(count))

    offsets: list[int] = []
    for batch in RowMaker(SCHEMA, QUEUE).batches(take_apart([chunk], 0, count)):
        assert batch.nbytes < 40 << 20
        assert all(each == pa.scalar(body, pa.binary()) for each in batch.column("body"))
        offsets += batch.column("queue_offset").to_pylist()

    assert offsets == list(range(count))


def test_an_empty_block_makes_an_empty_batch() -> None:
    assert only_batch(RowMaker(SCHEMA, QUEUE), take_apart([], 0, 9)).num_rows == 0
