"""
Stored messages: the unit of the log, of a pull body and of every message a broker hands out.

The layout is RocketMQ's stored record, v1 for topics up to 127 bytes and v2 above; a record is written
once, when the leader gives it its two offsets, and never re-encoded on the way to a consumer.
Hot path: `RecordTemplate` knows its size before the offsets are known, so that the leader can lay out a
whole turn of records; `encode_with_positions` finishes one. What `properties` hold: see `properties`.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from struct import Struct
from typing import Final
from zlib import crc32

from orderlymq_protocol.sysflag import BORN_HOST_IPV6, STORE_HOST_IPV6

POSITION_QUEUE_OFFSET: Final = 20
POSITION_PHYSICAL_OFFSET: Final = 28
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
# Ends a log file in RocketMQ; it is never sent, but an importer may meet it.
_MAGIC_END_OF_FILE: Final = 0xCBD43194

# Everything up to and including bodyLength; the hosts differ by family, hence one layout per pair.
_HEADS: Final = {
    0: Struct(">IIIiiqqiq8sq8siqi"),
    BORN_HOST_IPV6: Struct(">IIIiiqqiq20sq8siqi"),
    STORE_HOST_IPV6: Struct(">IIIiiqqiq8sq20siqi"),
    _HOST_BITS: Struct(">IIIiiqqiq20sq20siqi"),
}
_HEAD_V4: Final = _HEADS[0]
_START: Final = Struct(">II")
_SYS_FLAG: Final = Struct(">i")
_PORT: Final = Struct(">I")
_UINT16: Final = Struct(">H")
_TAILS_V1: Final = tuple(bytes((size,)) for size in range(TOPIC_V1_BYTES_MAX + 1))

# As many peers as a broker talks to at once; a miss costs a microsecond.
_HOST_CACHE_SIZE: Final = 16_384


class RecordError(ValueError):
    """The bytes are no stored message, or the message cannot be stored."""


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
    """Return the checksum of a body as it is stored: CRC-32 without the sign bit."""
    return crc32(body) & _CRC_MASK


def record_size(body_len: int, topic_bytes_len: int, properties_len: int, sys_flag: int = 0) -> int:
    """Return the bytes of a record; of *sys_flag* only the two IPv6 bits count."""
    return (
        _FIXED_SIZE_V1
        + (topic_bytes_len > TOPIC_V1_BYTES_MAX)
        + (_IPV6_EXTRA if sys_flag & BORN_HOST_IPV6 else 0)
        + (_IPV6_EXTRA if sys_flag & STORE_HOST_IPV6 else 0)
        + body_len
        + topic_bytes_len
        + properties_len
    )


@lru_cache(maxsize=_HOST_CACHE_SIZE)
def pack_host(ip: str, port: int) -> bytes:
    """Return address and port as a record holds them: 8 bytes for IPv4, 20 for IPv6.

    Raises:
        RecordError: *ip* is no address, or *port* no port.
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
    """A record that lacks only its two offsets; `size` is known, so the next one's place is too.

    The IPv6 bits of *sys_flag* are set from the packed hosts (`pack_host`); the other bits are kept.
    Raises RecordError when topic or properties are too long.
    """

    __slots__ = (
        "body",
        "body_crc",
        "born_host",
        "born_timestamp",
        "flag",
        "prepared_transaction_offset",
        "properties",
        "queue_id",
        "reconsume_times",
        "size",
        "store_host",
        "store_timestamp",
        "sys_flag",
        "topic",
    )

    def __init__(  # noqa: PLR0913 - one argument per field of the record; an object per message would cost more than the encoding
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
    ) -> None:
        topic_size = len(topic)
        if len(properties) > PROPERTIES_BYTES_MAX:
            raise RecordError(
                f"{len(properties)} bytes of properties, the limit is {PROPERTIES_BYTES_MAX}"
            )
        if not 0 < topic_size <= TOPIC_V2_BYTES_MAX:
            raise RecordError(f"a topic of {topic_size} bytes cannot be stored")
        if len(born_host) == 8 and len(store_host) == 8:
            sys_flag &= ~_HOST_BITS
        else:
            sys_flag = sys_flag & ~_HOST_BITS | host_flags(born_host, store_host)
        self.topic = topic
        self.queue_id = queue_id
        self.body = body
        self.body_crc = crc32(body) & _CRC_MASK
        self.properties = properties
        self.flag = flag
        self.sys_flag = sys_flag
        self.born_timestamp = born_timestamp
        self.born_host = born_host
        self.store_timestamp = store_timestamp
        self.store_host = store_host
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self.size = record_size(len(body), topic_size, len(properties), sys_flag)


def encode_with_positions(
    template: RecordTemplate, queue_offset: int, physical_offset: int
) -> bytes:
    """Return the record of *template* at these offsets.

    Raises:
        RecordError: A number does not fit its field.
    """
    topic = template.topic
    topic_size = len(topic)
    long_topic = topic_size > TOPIC_V1_BYTES_MAX
    try:
        head = _HEADS[template.sys_flag & _HOST_BITS].pack(
            template.size,
            MAGIC_V2 if long_topic else MAGIC_V1,
            template.body_crc,
            template.queue_id,
            template.flag,
            queue_offset,
            physical_offset,
            template.sys_flag,
            template.born_timestamp,
            template.born_host,
            template.store_timestamp,
            template.store_host,
            template.reconsume_times,
            template.prepared_transaction_offset,
            len(template.body),
        )
    except struct.error as error:
        raise RecordError(f"a number of the message does not fit its field: {error}") from error
    return b"".join(
        (
            head,
            template.body,
            _UINT16.pack(topic_size) if long_topic else _TAILS_V1[topic_size],
            topic,
            _UINT16.pack(len(template.properties)),
            template.properties,
        )
    )


def encode_record(message: StoredMessage) -> bytes:
    """Return the record of *message*; the stored checksum is the message's, not computed anew.

    Raises:
        RecordError: A field does not fit, or an IPv6 bit of `sys_flag` contradicts its host.
    """
    born_host, store_host = pack_host(*message.born_host), pack_host(*message.store_host)
    if host_flags(born_host, store_host) != message.sys_flag & _HOST_BITS:
        raise RecordError("the IPv6 bits of sys_flag do not agree with the hosts")
    template = RecordTemplate(
        topic=message.topic.encode(),
        queue_id=message.queue_id,
        body=message.body,
        properties=message.properties,
        flag=message.flag,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=born_host,
        store_timestamp=message.store_timestamp,
        store_host=store_host,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
    )
    template.body_crc = message.body_crc
    return encode_with_positions(template, message.queue_offset, message.physical_offset)


def decode_record(buffer: bytes | bytearray | memoryview, offset: int = 0) -> StoredMessage:
    """Return the record that begins at *offset*; the checksum is read, not verified.

    Raises:
        RecordError: The bytes are not exactly one record of the length they state.
    """
    size, magic = _start(buffer, offset)
    long_topic = magic == MAGIC_V2
    view = memoryview(buffer)[offset : offset + size]
    try:
        (sys_flag,) = _SYS_FLAG.unpack_from(view, POSITION_SYS_FLAG)
        head = _HEADS[sys_flag & _HOST_BITS]
        fields = head.unpack_from(view)
        body, at = _take(view, head.size, fields[14])
        if long_topic:
            topic, at = _take(view, at + 2, _UINT16.unpack_from(view, at)[0])
        else:
            topic, at = _take(view, at + 1, view[at] if at < size else -1)
        properties, at = _take(view, at + 2, _UINT16.unpack_from(view, at)[0])
        topic_text = topic.decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise RecordError(f"the record at {offset} is torn: {error}") from error
    if at != size:
        raise RecordError(f"the record at {offset} states {size} bytes but fills {at}")

    return StoredMessage(
        topic_text,
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
        body,
        properties,
        fields[2],
    )


def iter_records(body: bytes | bytearray | memoryview) -> Iterator[StoredMessage]:
    """Yield the records of a pull body one after the other.

    Raises:
        RecordError: At the first record that cannot be read; those before it have been yielded.
    """
    offset = 0
    while offset < len(body):
        yield decode_record(body, offset)
        offset += _start(body, offset)[0]


def _start(buffer: bytes | bytearray | memoryview, offset: int) -> tuple[int, int]:
    try:
        size, magic = _START.unpack_from(buffer, offset)
    except struct.error as error:
        raise RecordError(f"no record begins at {offset}: {error}") from error
    if magic == _MAGIC_END_OF_FILE:
        raise RecordError(f"the record at {offset} is the end-of-file filler")
    if magic not in (MAGIC_V1, MAGIC_V2):
        raise RecordError(f"the record at {offset} has the unknown magic {magic:#010x}")
    if not _FIXED_SIZE_V1 <= size <= len(buffer) - offset:
        raise RecordError(
            f"the record at {offset} states {size} bytes, {len(buffer) - offset} are there"
        )
    return size, magic


def _take(view: memoryview, start: int, size: int) -> tuple[bytes, int]:
    if size < 0 or start + size > len(view):
        raise RecordError(f"a length of {size} points outside the record")
    return bytes(view[start : start + size]), start + size


@lru_cache(maxsize=_HOST_CACHE_SIZE)
def _unpack_host(packed: bytes) -> tuple[str, int]:
    address, port = packed[:-4], _PORT.unpack(packed[-4:])[0]
    ip = IPv4Address(address) if len(address) == 4 else IPv6Address(address)
    return str(ip), port
