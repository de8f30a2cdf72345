"""
What replicas write to each other: frames, the greeting, raft messages, forwarded client frames.

A frame is ``u32 length | u32 header length | u8 kind | header (msgpack) | payload``, big-endian;
``length`` counts everything after itself. The rule: the data of log entries travels as payload,
never inside msgpack, so that it is copied neither when it is written nor more than once when it
is read. Pure; ``transport.py`` moves the bytes, ``snapshots.py`` uses the same frames on its own
connections.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeVar

import msgspec

from orderlymq_protocol.unreadable import UNREADABLE
from orderlymq_raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    InstallSnapshotResponse,
    Message,
    PreVote,
    PreVoteResponse,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.types import Entry, EntryKind, Index, Membership, NodeId, SnapshotMeta, Term

# Raised when frames change their meaning; replicas of different versions refuse each other.
WIRE_VERSION: Final = 1

# One entry may be 4 MiB of messages beyond the one that passed the bound (at most 4 MiB and a
# little), several entries share an append: 64 MiB is far above all of it and still no danger.
FRAME_SIZE_MAX: Final = 64 << 20

_Header = TypeVar("_Header")

_PREFIX: Final = struct.Struct(">IIB")
_LENGTH_SIZE: Final = 4


class FrameKind(IntEnum):
    """What the header of a frame means; the number is on the wire and never reused."""

    HELLO = 1
    WELCOME = 2  # the header tells whether the one that was called has lost its log
    REFUSED = 3
    RAFT = 4
    FORWARD = 5  # a client's request, to the leader
    FORWARDED_SEND = 6  # a command for that client, from the leader
    FORWARDED_CLOSE = 7  # the leader closes that client's connection
    ORIGIN_CLOSED = 8  # that client's connection is gone
    SNAPSHOT_OFFER = 9
    SNAPSHOT_WANTED = 10
    SNAPSHOT_CHUNK = 11
    SNAPSHOT_DONE = 12


class FrameCorrupt(ValueError):  # noqa: N818 - named for what the caller must know
    """The peer does not speak this protocol; close the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame as it arrived; *payload* is a copy of its own."""

    kind: FrameKind
    header: bytes
    payload: bytes


class FrameReader:
    """Cuts the bytes of one connection into frames; holds at most one frame and one chunk."""

    __slots__ = ("_buffer", "_needed")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._needed = _PREFIX.size

    def receive_data(self, data: bytes) -> list[Frame]:
        """Take the next bytes and return the frames that they complete.

        Raises:
            FrameCorrupt: the bytes are no frames of this protocol.
        """
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []

        frames: list[Frame] = []
        position = 0
        size = len(self._buffer)
        with memoryview(self._buffer) as view:
            while size - position >= _PREFIX.size:
                length, header_length, kind = _PREFIX.unpack_from(view, position)
                end = position + _LENGTH_SIZE + length
                _check_prefix(length, header_length)
                if end > size:
                    break
                start = position + _PREFIX.size
                frames.append(
                    Frame(
                        _kind_of(kind),
                        bytes(view[start : start + header_length]),
                        bytes(view[start + header_length : end]),
                    )
                )
                position = end
            self._needed = self._needed_at(view, position)
        del self._buffer[:position]
        return frames

    @staticmethod
    def _needed_at(view: memoryview, position: int) -> int:
        if len(view) - position < _PREFIX.size:
            return _PREFIX.size
        return _LENGTH_SIZE + int.from_bytes(view[position : position + _LENGTH_SIZE], "big")


def encode_frame(kind: FrameKind, header: object, payload: Sequence[bytes] = ()) -> list[bytes]:
    """Return the pieces of a frame; *payload* is passed through, never copied."""
    head = msgspec.msgpack.encode(header)
    length = _PREFIX.size - _LENGTH_SIZE + len(head) + sum(map(len, payload))

    return [_PREFIX.pack(length, len(head), kind) + head, *payload]


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Return one frame that holds *messages*, which all go to the same peer."""
    payload: list[bytes] = []
    header = [_message_fields(message, payload) for message in messages]

    return encode_frame(FrameKind.RAFT, header, payload)


def decode_messages(frame: Frame) -> list[Message]:
    """Return the messages of a RAFT frame.

    Raises:
        FrameCorrupt: the header names what this version does not know, or sizes do not fit.
    """
    reader = _PayloadReader(frame.payload)
    try:
        header = msgspec.msgpack.decode(frame.header, type=list[list[Any]])
        return [_message(values, reader) for values in header]
    except (*UNREADABLE, KeyError, IndexError, TypeError, ValueError) as error:
        raise FrameCorrupt(f"a frame of raft messages cannot be read: {error}") from error


def decode_header(frame: Frame, kind: type[_Header]) -> _Header:
    """Return the header of *frame* as *kind*.

    Raises:
        FrameCorrupt: the header has another shape.
    """
    try:
        return msgspec.msgpack.decode(frame.header, type=kind)
    except UNREADABLE as error:
        raise FrameCorrupt(f"a frame of kind {frame.kind.name} cannot be read: {error}") from error


# Tag on the wire -> message; a number is never used again for something else.
_TYPES: Final[dict[int, type[Any]]] = {
    1: PreVote,
    2: PreVoteResponse,
    3: Vote,
    4: VoteResponse,
    5: Append,
    6: AppendResponse,
    7: Heartbeat,
    8: HeartbeatResponse,
    9: InstallSnapshot,
    10: InstallSnapshotResponse,
    11: TimeoutNow,
}
_TAGS: Final = {kind: tag for tag, kind in _TYPES.items()}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGS}


class _PayloadReader:
    """Hands out the data of entries one after the other."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    def take(self, size: int) -> bytes:
        start = self._position
        if size < 0 or start + size > len(self._payload):
            raise ValueError("an entry passes the end of its frame")
        self._position = start + size
        return self._payload[start : start + size]


def _message_fields(message: Message, payload: list[bytes]) -> list[object]:
    kind = type(message)
    tag = _TAGS[kind]
    values: list[object] = [tag]
    values.extend(getattr(message, name) for name in _FIELDS[kind])
    if isinstance(message, Append):
        payload.extend(entry.data for entry in message.entries)
        values[-1] = [
            (entry.term, entry.index, int(entry.kind), len(entry.data)) for entry in message.entries
        ]
    elif isinstance(message, InstallSnapshot):
        meta = message.meta
        values[-1] = (meta.index, meta.term, meta.membership.encode())
    return values


def _message(values: list[Any], reader: _PayloadReader) -> Message:
    kind = _TYPES[values[0]]
    if kind is Append:
        sender, target, term, prev_index, prev_term, commit, entries = values[1:]
        taken = tuple(
            Entry(Term(entry_term), Index(index), reader.take(size), EntryKind(entry_kind))
            for entry_term, index, entry_kind, size in entries
        )
        return Append(sender, target, term, prev_index, prev_term, commit, taken)
    if kind is InstallSnapshot:
        sender, target, term, (index, meta_term, membership) = values[1:]
        meta = SnapshotMeta(Index(index), Term(meta_term), Membership.decode(membership))
        return InstallSnapshot(NodeId(sender), NodeId(target), Term(term), meta)
    message: Message = kind(*values[1:])
    return message


def _check_prefix(length: int, header_length: int) -> None:
    if length > FRAME_SIZE_MAX:
        raise FrameCorrupt(f"a frame of {length} bytes is announced, the limit is {FRAME_SIZE_MAX}")
    if header_length + _PREFIX.size - _LENGTH_SIZE > length:
        raise FrameCorrupt(f"a header of {header_length} bytes in a frame of {length}")


def _kind_of(number: int) -> FrameKind:
    try:
        return FrameKind(number)
    except ValueError as error:
        raise FrameCorrupt(f"frame kind {number} is unknown") from error
