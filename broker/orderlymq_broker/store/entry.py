"""
The payload of one raft entry: one group commit.

The rule: the metadata (records) and the message bodies are two adjacent parts. So the store can keep the
bodies once, under their physical offsets, and the head with the metadata in the raft log. ``raftlog.py``
splits entries and joins them again; the records themselves belong to the state machine.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from orderlymq_broker.store.kv import StoreError

ENTRY_VERSION: Final = 1

# version u8 | meta_length u32 | physical_start u64 | wall_ms of the leader i64
_HEAD: Final = struct.Struct(">BIQq")
HEAD_SIZE: Final = _HEAD.size

_SIZE: Final = struct.Struct(">I")

# The fixed part of a stored record with IPv4 hosts (RocketMQ MessageDecoder). Anything shorter is not a record,
# and with a size of zero the loop over the messages would never end.
MESSAGE_SIZE_MIN: Final = 91

# An alias, because a field of a compiled class cannot be annotated with the builtin itself.
View: TypeAlias = memoryview
Buffer = bytes | memoryview


class EntryCorrupt(StoreError):  # noqa: N818 - named for what the caller must know
    """The bytes are not an entry; the replica must be rebuilt from its peers."""


@dataclass(frozen=True, slots=True)
class EntryParts:
    """An entry split into its parts without copying its bodies.

    Attributes:
        physical_start: physical offset of the first byte of the messages.
        wall_ms: the leader's wall clock when it built the entry.
        meta: the encoded records.
        data: the whole entry.
        blob_start: where in *data* the stored messages begin, back to back, each beginning with its u32 size.
    """

    physical_start: int
    wall_ms: int
    meta: Buffer
    data: Buffer
    blob_start: int

    @property
    def blob(self) -> View:
        """The stored messages."""
        return memoryview(self.data)[self.blob_start :]

    @property
    def physical_end(self) -> int:
        """Physical offset of the byte after the messages."""
        return self.physical_start + len(self.data) - self.blob_start


def encode_entry(
    records_msgpack: bytes,
    messages: Sequence[bytes | bytearray],
    physical_start: int,
    wall_ms: int,
) -> bytes:
    """Return the payload of one raft entry."""
    head = _HEAD.pack(ENTRY_VERSION, len(records_msgpack), physical_start, wall_ms)

    return b"".join((head, records_msgpack, *messages))


def split_entry(data: Buffer) -> EntryParts:
    """Split an entry into its parts; *meta* is a view of *data*.

    Raises:
        EntryCorrupt: the head is too short, of another version, or its lengths do not fit.
    """
    head_length, physical_start, wall_ms = _split_head(data)
    meta = memoryview(data)[HEAD_SIZE:head_length]

    return EntryParts(physical_start, wall_ms, meta, data, head_length)


def head_length(data: Buffer) -> int:
    """Return how many leading bytes of *data* are head and metadata, that is, not bodies."""
    return _split_head(data)[0]


def cut_messages(data: bytes, start: int, physical_start: int) -> list[tuple[int, bytes]]:
    """Return the stored messages in ``data[start:]`` with their physical offsets, as copies.

    The hot path of every append, on leaders and followers: it slices bytes once each instead of using views.

    Raises:
        EntryCorrupt: a size field is too small or exceeds the data.
    """
    messages: list[tuple[int, bytes]] = []
    length = len(data)
    shift = physical_start - start
    unpack = _SIZE.unpack_from
    while start < length:
        size = unpack(data, start)[0] if start + 4 <= length else 0
        end = start + size
        if size < MESSAGE_SIZE_MIN or end > length:
            raise EntryCorrupt(
                f"the message at physical offset {start + shift} states {size} bytes, but "
                f"{length - start} are left in its entry"
            )
        messages.append((start + shift, data[start:end]))
        start = end

    return messages


def _split_head(data: Buffer) -> tuple[int, int, int]:
    if len(data) < HEAD_SIZE:
        raise EntryCorrupt(f"an entry of {len(data)} bytes is shorter than its head")
    version, meta_length, physical_start, wall_ms = _HEAD.unpack_from(data)
    if version != ENTRY_VERSION:
        raise EntryCorrupt(f"entry version {version} is unknown, this program knows 1")
    if HEAD_SIZE + meta_length > len(data):
        raise EntryCorrupt(
            f"the entry states {meta_length} bytes of metadata, but has {len(data)} bytes"
        )

    return HEAD_SIZE + meta_length, physical_start, wall_ms
