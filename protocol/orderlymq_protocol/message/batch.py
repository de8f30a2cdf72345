"""
The body of a batch send: several messages of one topic, for one queue.

An entry is `int32 total | int32 magic 0 | int32 crc 0 | int32 flag | int32 n, body | int16 n, properties`,
all big-endian. Rule: the broker stores one message per entry, in this order and without a gap; an entry's
own properties stay unchanged. `record` makes a record of each entry.
"""

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from struct import Struct
from typing import Final

# As many as RocketMQ's own example of splitting puts into its 1 MB. Our brokers refuse more.
BATCH_COUNT_MAX: Final = 20_000

_HEAD: Final = Struct(">iiiii")
_UINT16: Final = Struct(">H")
_FIXED_SIZE: Final = _HEAD.size + _UINT16.size
_PROPERTIES_BYTES_MAX: Final = 32_767


class BatchError(ValueError):
    """The body is not a batch; none of it may be stored."""


@dataclass(frozen=True, slots=True)
class BatchEntry:
    """One message of a batch, as the producer wrote it."""

    flag: int
    body: bytes
    properties: bytes


def read_batch(body: bytes) -> Iterator[BatchEntry]:
    """Yield the messages of a batch body in their order, each only when it is asked for.

    Raises:
        BatchError: A length does not fit the body, or the body is empty.
    """
    number = at = 0
    try:
        while at < len(body):
            total, _magic, _crc, flag, body_size = _HEAD.unpack_from(body, at)
            body_at = at + _HEAD.size
            properties_at = body_at + body_size + _UINT16.size
            end = at + total
            if body_size < 0 or end > len(body) or properties_at > end:
                raise BatchError(f"message {number} of the batch does not fit the body")
            (properties_size,) = _UINT16.unpack_from(body, properties_at - _UINT16.size)
            if properties_at + properties_size != end:
                raise BatchError(f"message {number} of the batch states a wrong length")
            yield BatchEntry(flag, body[body_at : body_at + body_size], body[properties_at:end])
            number += 1
            at = end
    except struct.error as error:
        raise BatchError(f"message {number} of the batch is damaged: {error}") from error
    if not number:
        raise BatchError("the batch has no message")


def encode_batch(entries: Iterable[BatchEntry]) -> bytes:
    """Return the body of a batch send.

    Raises:
        BatchError: A message has too many properties, or a flag is not an int32.
    """
    parts: list[bytes] = []
    try:
        for entry in entries:
            if len(entry.properties) > _PROPERTIES_BYTES_MAX:
                raise BatchError(
                    f"the properties have {len(entry.properties)} bytes, the limit is "
                    f"{_PROPERTIES_BYTES_MAX}"
                )
            total = _FIXED_SIZE + len(entry.body) + len(entry.properties)
            parts.append(_HEAD.pack(total, 0, 0, entry.flag, len(entry.body)))
            parts.append(entry.body)
            parts.append(_UINT16.pack(len(entry.properties)))
            parts.append(entry.properties)
    except struct.error as error:
        raise BatchError(f"a number in the message does not fit its field: {error}") from error
    return b"".join(parts)
