"""
The payload of one raft entry: one group commit.

The rule: the metadata (records) and the message bodies are two adjoining parts, so that the
store can keep the bodies once, under their physical offsets, and the head with the metadata in
the raft log. ``raftlog.py`` takes entries apart and joins them again; the records themselves
belong to the state machine.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.store.kv import StoreError

ENTRY_VERSION: Final = 1

# version u8 | meta_length u32 | physical_start u64 | wall_ms of the leader i64
_HEAD: Final = struct.Struct(">BIQq")
HEAD_SIZE: Final = _HEAD.size

_SIZE: Final = struct.Struct(">I")

# The fixed part of a stored record with IPv4 hosts (RocketMQ MessageDecoder): anything shorter
# is no record, and a size of zero would make the walk over a blob stand still.
MESSAGE_SIZE_MIN: Final = 91

Buffer = bytes | memoryview


class EntryCorrupt(StoreError):  # noqa: N818 - named for what the caller must know
    """The bytes are no entry; the replica must be rebuilt from its peers."""


@dataclass(frozen=True, slots=True)
class EntryParts:
    """An entry taken apart without copying its bodies.

    Attributes:
        physical_start: physical offset of the first byte of *blob*.
        wall_ms: the leader's wall clock when it built the entry.
        meta: the encoded records.
        blob: stored messages back to back, each beginning with its own u32 size.
    """

    physical_start: int
    wall_ms: int
    meta: Buffer
    blob: memoryview

    @property
    def physical_end(self) -> int:
        """Physical offset of the byte after *blob*."""
        return self.physical_start + len(self.blob)


def encode_entry(
    records_msgpack: bytes, messages: Sequence[bytes], physical_start: int, wall_ms: int
) -> bytes:
    """Return the payload of one raft entry."""
    head = _HEAD.pack(ENTRY_VERSION, len(records_msgpack), physical_start, wall_ms)

    return b"".join((head, records_msgpack, *messages))


def split_entry(data: Buffer) -> EntryParts:
    """Take an entry apart; *meta* and *blob* are views of *data*.

    Raises:
        EntryCorrupt: the head is cut short, of another version, or its lengths do not fit.
    """
    head_length, physical_start, wall_ms = _split_head(data)
    view = memoryview(data)

    return EntryParts(physical_start, wall_ms, view[HEAD_SIZE:head_length], view[head_length:])


def head_length(data: Buffer) -> int:
    """Return how many leading bytes of *data* are head and metadata, that is, not bodies."""
    return _split_head(data)[0]


def messages_of(parts: EntryParts) -> Iterator[tuple[int, memoryview]]:
    """Yield each stored message of the entry with its physical offset.

    Raises:
        EntryCorrupt: a size field is too small or passes the end of the blob.
    """
    blob = parts.blob
    position = 0
    while position < len(blob):
        size = _SIZE.unpack_from(blob, position)[0] if position + 4 <= len(blob) else 0
        if size < MESSAGE_SIZE_MIN or position + size > len(blob):
            raise EntryCorrupt(
                f"the message at physical offset {parts.physical_start + position} announces "
                f"{size} bytes, {len(blob) - position} are left in its entry"
            )
        yield parts.physical_start + position, blob[position : position + size]
        position += size


def _split_head(data: Buffer) -> tuple[int, int, int]:
    if len(data) < HEAD_SIZE:
        raise EntryCorrupt(f"an entry of {len(data)} bytes is shorter than its head")
    version, meta_length, physical_start, wall_ms = _HEAD.unpack_from(data)
    if version != ENTRY_VERSION:
        raise EntryCorrupt(f"entry version {version} is unknown, this program knows 1")
    if HEAD_SIZE + meta_length > len(data):
        raise EntryCorrupt(f"metadata of {meta_length} bytes in an entry of {len(data)}")

    return HEAD_SIZE + meta_length, physical_start, wall_ms
