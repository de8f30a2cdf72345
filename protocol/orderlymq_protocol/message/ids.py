"""
The two ids of a message.

The offset id says where a message is: address and port of its broker, and its physical offset. Clients
decode it and connect to that address to view the message. The unique key says which client made the message; it
is opaque to the broker, and a resend keeps it. Both are upper-case hexadecimal.
"""

import struct
from datetime import UTC, datetime
from ipaddress import ip_address
from struct import Struct
from typing import Final

from orderlymq_protocol.message.record import RecordError, pack_host

_OFFSET: Final = Struct(">q")
_PORT_AND_OFFSET: Final = Struct(">Iq")
_TAIL_SIZE: Final = 12
_ID_SIZES: Final = (16, 28)


class MessageIdError(ValueError):
    """The text is not a message id."""


def encode_offset_message_id(host: str, port: int, physical_offset: int) -> str:
    """Return the offset id: 32 characters, 56 for an IPv6 host.

    Raises:
        MessageIdError: *host* is not an address, or a number does not fit.
    """
    try:
        return (pack_host(host, port) + _OFFSET.pack(physical_offset)).hex().upper()
    except (RecordError, struct.error) as error:
        raise MessageIdError(f"{host}:{port} at {physical_offset} has no id: {error}") from error


def decode_offset_message_id(message_id: str) -> tuple[str, int, int]:
    """Return host, port and physical offset.

    Raises:
        MessageIdError: The text is not 32 or 56 hexadecimal characters.
    """
    data = _unhex(message_id)
    port, physical_offset = _PORT_AND_OFFSET.unpack(data[-_TAIL_SIZE:])
    return str(ip_address(data[:-_TAIL_SIZE])), port, physical_offset


def is_offset_message_id(text: str) -> bool:
    """Return whether a text is an offset id, and not a unique key, which has the same form.

    The upper halves of its port and its offset are zero. A unique key has the process id and a part of the hash there.
    """
    try:
        _, port, physical_offset = decode_offset_message_id(text)
    except MessageIdError:
        return False
    return 0 < port < 1 << 16 and 0 <= physical_offset < 1 << 48


class UniqueKeyFactory:
    """Makes the unique keys of one client process.

    The keys of one process differ as long as it makes fewer than 65 536 in a millisecond. The keys of two
    processes differ by address, process id and the hash, which should be random. Not thread-safe.
    """

    __slots__ = ("_counter", "_month_end_ms", "_month_start_ms", "_prefix")

    def __init__(self, ip: bytes, pid: int, class_loader_hash: int) -> None:
        self._prefix = ip + struct.pack(">HI", pid & 0xFFFF, class_loader_hash & 0xFFFFFFFF)
        self._counter = 0
        self._month_start_ms, self._month_end_ms = 0, 0

    def next(self, now_ms: int) -> str:
        """Return the next key; *now_ms* is the time of the call."""
        if not self._month_start_ms <= now_ms < self._month_end_ms:
            self._month_start_ms, self._month_end_ms = _month_of(now_ms)
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        # A month is longer than 2^31 ms. Java lets the number wrap, so it is negative in the last week.
        elapsed = (now_ms - self._month_start_ms) & 0xFFFFFFFF
        return (self._prefix + struct.pack(">IH", elapsed, counter)).hex().upper()


def _month_of(now_ms: int) -> tuple[int, int]:
    """Return the first millisecond of this month and of the next, in UTC."""
    now = datetime.fromtimestamp(now_ms / 1000, UTC)
    start = datetime(now.year, now.month, 1, tzinfo=UTC)
    following = (
        start.replace(year=now.year + 1, month=1)
        if now.month == 12
        else start.replace(month=now.month + 1)
    )
    return int(start.timestamp()) * 1000, int(following.timestamp()) * 1000


def _unhex(text: str) -> bytes:
    try:
        data = bytes.fromhex(text)
    except ValueError as error:
        raise MessageIdError(f"not hexadecimal: {text[:64]!r}") from error
    if len(data) not in _ID_SIZES or len(text) != 2 * len(data):
        raise MessageIdError(f"not 32 or 56 hexadecimal characters: {text[:64]!r}")
    return data
