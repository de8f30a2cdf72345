"""Stored messages: the exact layout, the template of a record, and the refusal of broken bytes."""

import dataclasses
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.message import record, sysflag
from orderlymq_protocol.message.record import (
    RecordError,
    RecordTemplate,
    StoredMessage,
    body_crc,
    decode_record,
    encode_with_positions,
    iter_records,
    pack_host,
    record_properties,
)
from tests.protocol import golden
from tests.protocol.records import encode_record

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
HOSTS = st.tuples(
    st.ip_addresses(v=4).map(str) | st.ip_addresses(v=6).map(str), st.integers(0, 2**32 - 1)
)


@st.composite
def messages(draw: st.DrawFn) -> StoredMessage:
    born_host, store_host = draw(HOSTS), draw(HOSTS)
    sys_flag = draw(INT32) & ~(sysflag.BORN_HOST_IPV6 | sysflag.STORE_HOST_IPV6)
    sys_flag |= record.host_flags(pack_host(*born_host), pack_host(*store_host))
    body = draw(st.binary(max_size=100))
    return StoredMessage(
        topic=draw(st.text(min_size=1, max_size=200).filter(_is_valid_unicode)),
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp=draw(INT64),
        born_host=born_host,
        store_timestamp=draw(INT64),
        store_host=store_host,
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
        body=body,
        properties=draw(st.binary(max_size=100)),
        body_crc=draw(st.just(body_crc(body)) | st.integers(0, 2**32 - 1)),
    )


def _is_valid_unicode(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def golden_bodies() -> list[bytes]:
    return [frame.body for frame in golden.frames() if frame.body[4:8] == b"\xda\xa3\x20\xa7"]


EXAMPLE = StoredMessage(
    topic="TA4b",
    queue_id=3,
    flag=0,
    queue_offset=1,
    physical_offset=8178,
    sys_flag=0,
    born_timestamp=0x1A1F9AC4713,
    born_host=("127.0.0.1", 0xB552),
    store_timestamp=0x1A1F9AC4725,
    store_host=("127.0.0.1", 10911),
    reconsume_times=0,
    prepared_transaction_offset=0,
    body=b"viewme",
    properties=b"KEYS\x01vk",
    body_crc=0x4856A39A,
)
EXAMPLE_BYTES = (
    bytes.fromhex(
        "0000006c daa320a7 4856a39a 00000003 00000000 0000000000000001 0000000000001ff2 00000000"
        "000001a1f9ac4713 7f000001 0000b552 000001a1f9ac4725 7f000001 00002a9f 00000000"
        "0000000000000000 00000006 766965776d65 04 54413462 0007"
    )
    + b"KEYS\x01vk"
)


def test_a_record_is_laid_out_as_documented() -> None:
    """Every field has the position at which RocketMQ's clients expect it."""
    assert encode_record(EXAMPLE) == EXAMPLE_BYTES
    assert decode_record(EXAMPLE_BYTES) == EXAMPLE
    assert body_crc(b"viewme") == 1_213_637_530


def test_the_flags_are_where_the_constant_says() -> None:
    """The flags can be read without decoding the record."""
    data = encode_record(dataclasses.replace(EXAMPLE, sys_flag=5))

    assert data[record.POSITION_SYS_FLAG :][:4] == b"\0\0\0\x05"


def test_all_88_golden_records_come_back_byte_by_byte() -> None:
    """Records of a real broker are read, checked and written without any change."""
    count = 0
    for body in golden_bodies():
        stored = list(iter_records(body))

        assert b"".join(map(encode_record, stored)) == body
        assert [body_crc(message.body) for message in stored] == [m.body_crc for m in stored]
        count += len(stored)
    assert count == 88


def test_a_template_knows_its_size_and_takes_its_offsets_later() -> None:
    """The leader lays out a turn's records before it assigns their offsets."""
    template = RecordTemplate(
        topic=b"TA4b",
        queue_id=3,
        body=b"viewme",
        properties=b"KEYS\x01vk",
        flag=0,
        sys_flag=0,
        born_timestamp=0x1A1F9AC4713,
        born_host=pack_host("127.0.0.1", 0xB552),
        store_timestamp=0x1A1F9AC4725,
        store_host=pack_host("127.0.0.1", 10911),
    )

    assert template.size == len(EXAMPLE_BYTES)
    assert encode_with_positions(template, 1, 8178) == EXAMPLE_BYTES


def test_the_bits_of_the_hosts_follow_the_hosts() -> None:
    """The producer's flags are kept, except the two bits that give the length of the addresses."""
    template = RecordTemplate(
        topic=b"T",
        queue_id=0,
        body=b"",
        properties=b"",
        flag=0,
        sys_flag=0x301 | sysflag.STORE_HOST_IPV6,
        born_timestamp=0,
        born_host=pack_host("::1", 1),
        store_timestamp=0,
        store_host=pack_host("10.0.0.1", 2),
    )

    message = decode_record(encode_with_positions(template, 0, 0))

    assert message.sys_flag == 0x301 | sysflag.BORN_HOST_IPV6
    assert (message.born_host, message.store_host) == (("::1", 1), ("10.0.0.1", 2))


@pytest.mark.parametrize(("size", "magic"), [(127, record.MAGIC_V1), (128, record.MAGIC_V2)])
def test_only_a_long_topic_makes_a_version_2_record(size: int, magic: int) -> None:
    """4.x clients know version 1 only, and its topic length is one signed byte."""
    message = dataclasses.replace(EXAMPLE, topic="t" * size)

    data = encode_record(message)

    assert int.from_bytes(data[4:8], "big") == magic
    assert decode_record(data) == message


@given(messages())
def test_every_message_survives(message: StoredMessage) -> None:
    """Reading gives back what was written."""
    data = encode_record(message)

    assert decode_record(data) == message
    assert decode_record(memoryview(b"??" + data + b"?"), 2) == message


@given(st.lists(messages(), max_size=4))
def test_a_pull_body_is_records_back_to_back(stored: list[StoredMessage]) -> None:
    """Several records are read one after the other, from any type of bytes object."""
    body = b"".join(map(encode_record, stored))

    assert list(iter_records(body)) == stored
    assert list(iter_records(bytearray(body))) == stored
    assert list(iter_records(memoryview(body))) == stored


def test_good_records_before_a_torn_one_are_read() -> None:
    """As in Java, the reader stops at the first record that it cannot read."""
    records = iter_records(EXAMPLE_BYTES * 2 + EXAMPLE_BYTES[:-1])

    assert [next(records), next(records)] == [EXAMPLE, EXAMPLE]
    with pytest.raises(RecordError, match="216"):
        next(records)


@pytest.mark.parametrize(
    "change",
    [
        {"properties": b"x" * 32_768},
        {"topic": ""},
        {"topic": "t" * 32_768},
        {"queue_id": 2**31},
        {"physical_offset": 2**63},
        {"queue_offset": -(2**63) - 1},
        {"born_host": ("localhost", 1)},
        {"born_host": ("300.0.0.1", 1)},
        {"store_host": ("127.0.0.1", -1)},
    ],
    ids=str,
)
def test_a_message_that_cannot_be_stored_is_refused(change: dict[str, object]) -> None:
    """A field that does not fit raises an error; a record that readers would misread is never written."""
    with pytest.raises(RecordError):
        encode_record(dataclasses.replace(EXAMPLE, **change))  # type: ignore[arg-type]  # on purpose


def test_the_filler_at_the_end_of_a_log_file_is_no_record() -> None:
    """RocketMQ pads its log files; the error says that the bytes are padding."""
    with pytest.raises(RecordError, match="filler"):
        decode_record(EXAMPLE_BYTES[:4] + b"\xcb\xd4\x31\x94" + EXAMPLE_BYTES[8:])


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_refused_with_a_record_error(data: bytes) -> None:
    """The reader raises only RecordError, and always ends."""
    with pytest.raises(RecordError):
        decode_record(data)


@given(
    st.integers(0, 2**16),
    st.lists(st.tuples(st.integers(0, 2**16), st.integers(0, 255)), min_size=1, max_size=3),
    st.integers(0, 2**16),
)
def test_flipped_and_torn_golden_records_are_read_or_refused(
    index: int, mutations: list[tuple[int, int]], length: int
) -> None:
    """A flipped byte gives another message or a RecordError; a message that is read can be written again."""
    bodies = golden_bodies()
    data = bytearray(bodies[index % len(bodies)])
    for place, value in mutations:
        data[place % len(data)] = value
    if length % 3 == 0:
        del data[length % len(data) :]
    try:
        stored = list(iter_records(data))
    except RecordError:
        return
    assert b"".join(map(encode_record, stored)) == data


@given(st.ip_addresses(), st.integers(0, 2**32 - 1))
def test_a_packed_host_is_the_address_and_the_port(
    address: IPv4Address | IPv6Address, port: int
) -> None:
    """A packed host has 8 bytes for IPv4 and 20 for IPv6."""
    assert pack_host(str(address), port) == address.packed + port.to_bytes(4, "big")


@given(messages())
def test_properties_are_found_without_reading_the_rest(message: StoredMessage) -> None:
    """The bytes equal those of a fully decoded record, for both layouts and both address families."""
    encoded = encode_record(message)

    assert record_properties(encoded) == decode_record(encoded).properties
    assert record_properties(memoryview(encoded)) == message.properties


def test_properties_of_torn_bytes_are_an_error() -> None:
    """Torn bytes raise RecordError, and never an IndexError in the middle of a pull."""
    with pytest.raises(RecordError, match="damaged"):
        record_properties(b"too short")
