"""
Stored messages: the unit of the log, of a pull body, and of every message that a broker hands out.

The layout is RocketMQ's stored record, v1 for topics up to 127 bytes and v2 above. A record is written
once, when the leader assigns its two offsets, and is never re-encoded on the way to a consumer.
Hot path: `RecordTemplate` knows its size before the offsets are known, so that the leader can lay out a
whole turn of records; `encode_with_positions` finishes one. For the content of `properties`, see `properties`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from struct import Struct
from typing import Final
from zlib import crc32

from orderlymq_protocol.message.sysflag import BORN_HOST_IPV6, STORE_HOST_IPV6

POSITION_SYS_FLAG: Final = 36

MAGIC_V1: Final = 0xDAA320A7
MAGIC_V2: Final = 0xDAA320AB
TOPIC_V1_BYTES_MAX: Final = 127  # the length is one signed byte in Java
TOPIC_V2_BYTES_MAX: Final = 32_767  # two signed bytes
PROPERTIES_BYTES_MAX: Final = 32_767

_FIXED_SIZE_V1: Final = 91
_IPV6_EXTRA: Final = 12
_HOST_BITS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6
_CRC_MASK: Final = 0x7FFFFFFF
# `_MAGIC_END_OF_FILE` ends a log file in RocketMQ; it is never sent, but an importer may meet it.
_MAGIC_V1_BYTES: Final = MAGIC_V1.to_bytes(4, "big")
_MAGIC_END_OF_FILE: Final = 0xCBD43194

_START: Final = Struct(">IIIii")  # size, magic, checksum, queue id, flag
_POSITIONS: Final = Struct(">qq")
# From sysFlag to bodyLength; the size of a host depends on its family, so there is one layout per pair.
_MIDDLES: Final = {
    0: Struct(">iq8sq8siqi"),
    BORN_HOST_IPV6: Struct(">iq20sq8siqi"),
    STORE_HOST_IPV6: Struct(">iq8sq20siqi"),
    _HOST_BITS: Struct(">iq20sq20siqi"),
}
# The same with the fields before it, for reading in one step.
_HEADS: Final = {
    bits: Struct(f"{_START.format}qq{middle.format[1:]}") for bits, middle in _MIDDLES.items()
}
_SYS_FLAG: Final = Struct(">i")
_PORT: Final = Struct(">I")
_UINT16: Final = Struct(">H")
_INT16: Final = Struct(">h")
_ONE_BYTE: Final = tuple(bytes((size,)) for size in range(TOPIC_V1_BYTES_MAX + 1))

# As many peers as a broker talks to at the same time; a miss costs a microsecond.
_HOST_CACHE_SIZE: Final = 16_384


class RecordError(ValueError):
    """The bytes are not a stored message, or the message cannot be stored."""


@dataclass(slots=True)
class StoredMessage:
    """One stored message, field by field; `properties` and `body` are as stored.

    Offsets count messages (`queue_offset`) and bytes (`physical_offset`); timestamps are milliseconds.
    The bits BORN_HOST_IPV6 and STORE_HOST_IPV6 of `sys_flag` agree with the hosts.
    """

    topic: str
    queue_id: int
    flag: int
    queue_offset: int
    physical_offset: int
    sys_flag: int
    born_timestamp: int
    born_host: tuple[str, int]
    store_timestamp: int
    store_host: tuple[str, int]
    reconsume_times: int
    prepared_transaction_offset: int
    body: bytes
    properties: bytes
    body_crc: int


def body_crc(body: bytes) -> int:
    """Return the checksum of the body of a message or a registration: CRC-32 without the sign bit."""
    return crc32(body) & _CRC_MASK


@lru_cache(maxsize=_HOST_CACHE_SIZE)
def pack_host(ip: str, port: int) -> bytes:
    """Return address and port as a record holds them: 8 bytes for IPv4, 20 for IPv6.

    Raises:
        RecordError: *ip* is not an address, or *port* is not a port.
    """
    try:
        address = IPv6Address(ip).packed if ":" in ip else IPv4Address(ip).packed
        return address + _PORT.pack(port)
    except (AddressValueError, struct.error) as error:
        raise RecordError(f"not an address and port: {ip!r}, {port!r}") from error


def host_flags(born_host: bytes, store_host: bytes) -> int:
    """Return the IPv6 bits that belong to two packed hosts."""
    return (BORN_HOST_IPV6 if len(born_host) > 8 else 0) | (
        STORE_HOST_IPV6 if len(store_host) > 8 else 0
    )


class RecordTemplate:
    """A record that lacks only its two offsets; `size` is known, so the place of the next record is, too.

    The IPv6 bits of *sys_flag* are set from the packed hosts (`pack_host`); the other bits are kept.
    *checksum* is given to copy a stored message; otherwise it is computed from the body.

    Raises:
        RecordError: Topic or properties are too long, there is no topic, or a number does not fit.
    """

    __slots__ = ("_middle", "_start", "_tail", "body", "body_crc", "size", "sys_flag")

    def __init__(  # noqa: PLR0913 - one argument per field of the record; a message object on top of them would double the cost
        self,
        *,
        topic: bytes,
        queue_id: int,
        body: bytes,
        properties: bytes,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        store_timestamp: int,
        store_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
        checksum: int | None = None,
    ) -> None:
        topic_size = len(topic)
        size = _FIXED_SIZE_V1 + len(body) + topic_size + len(properties)
        sys_flag &= ~_HOST_BITS
        if len(born_host) != 8 or len(store_host) != 8:
            sys_flag |= host_flags(born_host, store_host)
            size += _IPV6_EXTRA * (sys_flag & _HOST_BITS).bit_count()
        if 0 < topic_size <= TOPIC_V1_BYTES_MAX:
            magic, topic_head = MAGIC_V1, _ONE_BYTE[topic_size]
        else:
            magic, topic_head = MAGIC_V2, _UINT16.pack(_long_topic(topic_size))
            size += 1
        if checksum is None:
            checksum = crc32(body) & _CRC_MASK
        try:
            self._start = _START.pack(size, magic, checksum, queue_id, flag)
            self._middle = _MIDDLES[sys_flag & _HOST_BITS].pack(
                sys_flag,
                born_timestamp,
                born_host,
                store_timestamp,
                store_host,
                reconsume_times,
                prepared_transaction_offset,
                len(body),
            )
            # Signed, because Java reads it as signed; longer properties cannot be stored.
            properties_head = _INT16.pack(len(properties))
        except struct.error as error:
            raise RecordError(f"a part of the message does not fit its field: {error}") from error
        self._tail = b"".join((topic_head, topic, properties_head, properties))
        self.body = body
        self.body_crc = checksum
        self.size = size
        self.sys_flag = sys_flag


def encode_with_positions(
    template: RecordTemplate, queue_offset: int, physical_offset: int
) -> bytes:
    """Return the record of *template* at these offsets.

    Raises:
        RecordError: An offset is not an int64.
    """
    try:
        positions = _POSITIONS.pack(queue_offset, physical_offset)
    except struct.error as error:
        raise RecordError(f"an offset does not fit its field: {error}") from error
    return b"".join((template._start, positions, template._middle, template.body, template._tail))


def _long_topic(size: int) -> int:
    if not 0 < size <= TOPIC_V2_BYTES_MAX:
        raise RecordError(f"the topic has {size} bytes and cannot be stored")
    return size


def decode_record(buffer: bytes | bytearray | memoryview, offset: int = 0) -> StoredMessage:
    """Return the record that begins at *offset*; the checksum is read, not verified.

    Raises:
        RecordError: The bytes are not exactly one record of the length they state.
    """
    return _decode(buffer, offset)[0]


def record_properties(record: bytes | memoryview) -> bytes:
    """Return the stored properties of one record without decoding anything else.

    Raises:
        RecordError: The bytes are not a whole record.
    """
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(record, POSITION_SYS_FLAG)
        body_at = _HEADS[sys_flag & _HOST_BITS].size
        (body_size,) = _SYS_FLAG.unpack_from(record, body_at - 4)
        topic_at = body_at + body_size + 1
        if record[4:8] == _MAGIC_V1_BYTES:
            topic_size = record[topic_at - 1]
        else:
            (topic_size,) = _INT16.unpack_from(record, topic_at - 1)
            topic_at += 1
        return bytes(record[topic_at + topic_size + 2 :])
    except (struct.error, IndexError) as error:
        raise RecordError(f"the record is damaged: {error}") from error


def iter_records(body: bytes | bytearray | memoryview) -> Iterator[StoredMessage]:
    """Yield the records of a pull body one after the other.

    Raises:
        RecordError: At the first record that cannot be read; the records before it have been yielded.
    """
    offset = 0
    while offset < len(body):
        message, offset = _decode(body, offset)
        yield message


def _decode(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[StoredMessage, int]:
    """Return the record at *offset* and the offset where it ends."""
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(buffer, offset + POSITION_SYS_FLAG)
        head = _HEADS[sys_flag & _HOST_BITS]
        fields = head.unpack_from(buffer, offset)
        size, magic = fields[0], fields[1]
        body_at = offset + head.size
        topic_at = body_at + fields[14] + 1
        end = offset + size
        if magic == MAGIC_V1:
            # Signed in Java, so 128 and more would be negative there.
            topic_size = buffer[topic_at - 1]
        elif magic == MAGIC_V2:
            (topic_size,) = _INT16.unpack_from(buffer, topic_at - 1)
            topic_at += 1
        else:
            raise RecordError(_foreign(magic, offset))
        properties_at = topic_at + topic_size + 2
        (properties_size,) = _INT16.unpack_from(buffer, properties_at - 2)
        if (
            fields[14] < 0
            or topic_size < 0
            or properties_size < 0
            or properties_at + properties_size != end
            or end > len(buffer)
        ):
            raise RecordError(
                f"the record at {offset} states {size} bytes, but its parts have another size"
            )
        topic = str(buffer[topic_at : properties_at - 2], "utf-8")
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise RecordError(f"the record at {offset} is damaged: {error}") from error

    message = StoredMessage(
        topic,
        fields[3],
        fields[4],
        fields[5],
        fields[6],
        sys_flag,
        fields[8],
        _unpack_host(fields[9]),
        fields[10],
        _unpack_host(fields[11]),
        fields[12],
        fields[13],
        bytes(buffer[body_at : body_at + fields[14]]),
        bytes(buffer[properties_at:end]),
        fields[2],
    )
    return message, end


def _foreign(magic: int, offset: int) -> str:
    if magic == _MAGIC_END_OF_FILE:
        return f"the record at {offset} is the end-of-file filler"
    return f"the record at {offset} has the unknown magic {magic:#010x}"


@lru_cache(maxsize=_HOST_CACHE_SIZE)
def _unpack_host(packed: bytes) -> tuple[str, int]:
    address, port = packed[:-4], _PORT.unpack(packed[-4:])[0]
    ip = IPv4Address(address) if len(address) == 4 else IPv6Address(address)
    return str(ip), port
