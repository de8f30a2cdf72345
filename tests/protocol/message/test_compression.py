"""Compressed bodies: every type is compressed and inflated, and zip bombs are refused."""

import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message import record, sysflag
from orderlymq_protocol.message.compression import (
    CompressionError,
    CompressionType,
    compress,
    decompress,
)
from tests.protocol import golden

KINDS = st.sampled_from(CompressionType)
LIMIT = 4 * 1024 * 1024


@given(st.binary(max_size=2000), KINDS)
def test_every_body_survives(body: bytes, kind: CompressionType) -> None:
    """The flags alone decide how a body is inflated, up to exactly the limit."""
    flag = sysflag.with_compression(0, kind)

    assert decompress(compress(body, kind), flag, len(body)) == body


def test_bodies_of_real_clients_are_inflated() -> None:
    """4.3 marks a zlib body with 1, later versions with 0x301."""
    flags = set()
    for frame in golden.frames():
        if frame.is_request and frame.code == 310:
            flag = int(frame.fields["extFields"]["f"])
            if flag & sysflag.COMPRESSED:
                flags.add(flag)
                assert len(decompress(frame.body, flag, LIMIT)) >= 4096
    assert flags == {1, 769}


def test_stored_bodies_of_real_brokers_are_inflated_by_their_flag() -> None:
    """A broker stores body and flags unchanged, so that a consumer can inflate both."""
    for frame in golden.frames():
        if frame.body[4:8] == b"\xda\xa3\x20\xa7":
            for message in record.iter_records(frame.body):
                plain = decompress(message.body, message.sys_flag, LIMIT)
                assert (plain == message.body) != bool(message.sys_flag & sysflag.COMPRESSED)


def test_an_unmarked_body_is_returned_as_it_is() -> None:
    """An unmarked body of any length is returned unchanged, even if it looks compressed."""
    body = zlib.compress(b"x")

    assert decompress(body, 0x300, 1) is body


@pytest.mark.parametrize("kind", CompressionType)
def test_a_bomb_does_not_go_off(kind: CompressionType) -> None:
    """A small body that inflates to 64 MiB of zeros is refused; memory stays below the limit plus one buffer."""
    bomb = compress(bytes(64 * 1024 * 1024), kind)
    assert len(bomb) < 1024 * 1024
    tracemalloc.start()
    try:
        with pytest.raises(CompressionError, match="more than 1048576 bytes"):
            decompress(bomb, sysflag.with_compression(0, kind), 1024 * 1024)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8 * 1024 * 1024


@pytest.mark.parametrize("size", [0, 1, 100_000])
@pytest.mark.parametrize("kind", CompressionType)
def test_the_first_bytes_of_a_body_cost_no_more_than_they_are(
    kind: CompressionType, size: int
) -> None:
    """Reading the start of a bomb needs little memory; a shorter body is returned whole, and a torn one is refused."""
    bomb = compress(bytes(64 * 1024 * 1024), kind)
    flag = sysflag.with_compression(0, kind)
    short = compress(b"short", kind)
    tracemalloc.start()
    try:
        start = decompress(bomb, flag, size, cut=True)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert start == bytes(size)
    assert peak < 8 * 1024 * 1024
    assert decompress(short, flag, 5, cut=True) == b"short"
    assert decompress(b"unmarked", 0, 2, cut=True) == b"un"
    with pytest.raises(CompressionError):
        decompress(short[:-1], flag, LIMIT, cut=True)


@pytest.mark.parametrize("kind", CompressionType)
@pytest.mark.parametrize("cut", [1, 5, 1000])
def test_a_torn_body_is_refused(kind: CompressionType, cut: int) -> None:
    """A truncated body must never be taken for a complete one."""
    torn = compress(bytes(range(256)) * 10, kind)[:-cut]

    with pytest.raises(CompressionError):
        decompress(torn, sysflag.with_compression(0, kind), LIMIT)


def test_an_unknown_type_is_refused() -> None:
    """RocketMQ has not assigned the types four to seven yet."""
    with pytest.raises(CompressionError, match="type 7"):
        decompress(b"x", sysflag.with_compression(0, 7), LIMIT)


@given(
    st.binary(max_size=200), KINDS, st.lists(st.tuples(st.integers(0, 500), st.integers(0, 255)))
)
def test_arbitrary_bodies_raise_nothing_but_compression_errors(
    body: bytes, kind: CompressionType, mutations: list[tuple[int, int]]
) -> None:
    """The bodies are garbage, or compressed bodies with flipped bytes."""
    flag = sysflag.with_compression(0, kind)
    broken = bytearray(compress(body, kind))
    for place, value in mutations:
        broken[place % len(broken)] = value
    for data in (body, bytes(broken)):
        try:
            inflated = decompress(data, flag, 1000)
        except CompressionError:
            continue
        assert len(inflated) <= 1000
