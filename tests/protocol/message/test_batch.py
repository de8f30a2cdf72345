"""Batch bodies: all entries of a batch send are read, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message.batch import BatchEntry, BatchError, encode_batch, read_batch
from orderlymq_protocol.message.properties import decode_properties
from tests.protocol import golden

ENTRIES = st.lists(
    st.builds(
        BatchEntry,
        st.integers(-(2**31), 2**31 - 1),
        st.binary(max_size=60),
        st.binary(max_size=60),
    ),
    min_size=1,
    max_size=5,
)


def test_golden_batches_are_read_and_written_byte_by_byte() -> None:
    """The batches come from real 4.x and 5.x clients."""
    bodies = golden.bodies(320, "request")
    assert len(bodies) == 4
    for body in bodies:
        entries = list(read_batch(body))

        assert encode_batch(entries) == body
        assert [entry.body for entry in entries] == [b"batch0", b"batch1", b"batch2"]
        assert all("UNIQ_KEY" in decode_properties(entry.properties) for entry in entries)


@given(ENTRIES)
def test_every_batch_survives(entries: list[BatchEntry]) -> None:
    """Reading a written batch gives the same messages in the same order."""
    assert list(read_batch(encode_batch(entries))) == entries


@given(ENTRIES, st.integers(1, 10_000))
def test_a_torn_batch_is_refused_as_a_whole(entries: list[BatchEntry], cut: int) -> None:
    """A batch is atomic: no part of a torn one may be stored."""
    body = encode_batch(entries)
    torn = body[: -(cut % len(body)) or None]
    if torn == body:
        torn = b""

    boundaries = {len(encode_batch(entries[:n])) for n in range(1, len(entries))}
    if len(torn) in boundaries:
        return
    with pytest.raises(BatchError):
        list(read_batch(torn))


@given(st.binary(max_size=100) | st.binary(max_size=80).map(lambda b: b"\x00\x00\x00\x20" + b))
def test_arbitrary_bytes_raise_nothing_but_batch_errors(body: bytes) -> None:
    """The bytes come from clients, which may send anything as a batch."""
    try:
        entries = list(read_batch(body))
    except BatchError:
        return
    assert entries


@pytest.mark.parametrize(
    "body",
    [
        b"",
        bytes(22),
        (21).to_bytes(4, "big") + bytes(18),
        (22).to_bytes(4, "big") + bytes(12) + b"\xff\xff\xff\xff" + bytes(2),
        (23).to_bytes(4, "big") + bytes(19),
        b"\xff\xff\xff\xff" + bytes(18),
    ],
    ids=["empty", "zero total", "short total", "negative body", "long total", "negative total"],
)
def test_lengths_of_a_batch_are_not_trusted(body: bytes) -> None:
    """Each length is checked against the length of the part that contains it."""
    with pytest.raises(BatchError):
        list(read_batch(body))


def test_a_message_with_too_many_properties_is_not_batched() -> None:
    """The length of properties is a signed int16 in Java."""
    with pytest.raises(BatchError, match="32768"):
        encode_batch([BatchEntry(0, b"", bytes(32_768))])
    with pytest.raises(BatchError):
        encode_batch([BatchEntry(2**31, b"", b"")])
