"""Message ids: the offset id says where a message is stored, the unique key says who made it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message.ids import (
    MessageIdError,
    UniqueKeyFactory,
    decode_offset_message_id,
    encode_offset_message_id,
)
from tests.protocol.uniquekeys import UniqueKey, decode_unique_key

MARCH_2026_MS = 1_772_323_200_000


def test_the_documented_offset_id_is_read_and_written() -> None:
    """The id comes from a real broker."""
    text = "7F00000100002A9F0000000000001FF2"

    assert decode_offset_message_id(text) == ("127.0.0.1", 10911, 8178)
    assert encode_offset_message_id("127.0.0.1", 10911, 8178) == text


def test_the_documented_unique_key_is_taken_apart() -> None:
    """The key comes from a real client."""
    key = decode_unique_key("C0000202051E5FFD2B27654AE66E0000")

    assert key == UniqueKey("192.0.2.2", 0x051E, 0x5FFD2B27, 0x654AE66E, 0)


@given(st.ip_addresses().map(str), st.integers(0, 2**32 - 1), st.integers(-(2**63), 2**63 - 1))
def test_every_offset_id_survives(host: str, port: int, physical_offset: int) -> None:
    """An id has 32 characters for an IPv4 host and 56 for an IPv6 host."""
    text = encode_offset_message_id(host, port, physical_offset)

    assert len(text) == (56 if ":" in host else 32)
    assert text == text.upper()
    assert decode_offset_message_id(text) == (host, port, physical_offset)


@given(st.text(max_size=60) | st.text("0123456789ABCDEF \n", max_size=60))
def test_any_other_text_is_refused(text: str) -> None:
    """Users type ids, so a wrong one gives a clear error."""
    try:
        decode_offset_message_id(text)
    except MessageIdError:
        return
    assert len(text) in (32, 56)


@pytest.mark.parametrize("args", [("localhost", 1, 1), ("127.0.0.1", -1, 1), ("::1", 1, 2**63)])
def test_an_id_of_impossible_parts_is_refused(args: tuple[str, int, int]) -> None:
    """An id holds addresses, not host names: a client could not connect to a name."""
    with pytest.raises(MessageIdError):
        encode_offset_message_id(*args)


def test_keys_of_one_millisecond_differ_by_their_counter() -> None:
    """65 536 keys in a millisecond are all different."""
    factory = UniqueKeyFactory(bytes([10, 0, 0, 1]), 70_000, -1)

    keys = [factory.next(MARCH_2026_MS + 5) for _ in range(65_536)]

    assert len(set(keys)) == 65_536
    assert decode_unique_key(keys[258]) == UniqueKey("10.0.0.1", 70_000 - 65_536, 2**32 - 1, 5, 258)


def test_the_time_of_a_key_counts_from_the_first_of_the_month() -> None:
    """The last week of a month exceeds an int32 and wraps as in Java; the next month begins at 0."""
    factory = UniqueKeyFactory(bytes(4), 1, 1)
    day = 24 * 3600 * 1000

    times = [
        decode_unique_key(factory.next(MARCH_2026_MS + days * day)).ms_of_month
        for days in (0, 1, 30, 31, 29)
    ]

    assert times == [0, day, 30 * day, 0, 29 * day]


def test_the_year_turns() -> None:
    """December is followed by January."""
    factory = UniqueKeyFactory(bytes(4), 1, 1)

    assert decode_unique_key(factory.next(1_798_761_600_000 - 1)).ms_of_month == 31 * 86_400_000 - 1
    assert decode_unique_key(factory.next(1_798_761_600_000)).ms_of_month == 0
