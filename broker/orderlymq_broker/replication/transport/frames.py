"""
Frames between replicas: their format, the greeting, raft messages, forwarded client frames.

A frame is ``u32 length | u32 checksum | u32 header length | u8 kind | header (msgpack) | payload``,
big-endian. ``length`` counts everything after itself. ``checksum`` is the CRC-32 of everything after itself,
because TCP's checksum misses one of many thousands of damaged segments. The rule: the data of log entries is
payload, never inside msgpack, so that it is not copied when it is written and copied only once when it is
read. Pure; ``server.py`` transports the bytes, and ``snapshots.py`` uses the same frames on its own
connections.
"""

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import Any, Final, TypeVar, Union, get_origin, get_type_hints

import msgspec

from orderlymq_broker.replication.transport.frameheaders import NodeNumber
from orderlymq_broker.state.integerranges import Natural, Position
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.frame.codec import oversize
from orderlymq_raft.messages import (
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshotResponse,
    Message,
    PreVote,
    PreVoteResponse,
    TimeoutNow,
    Vote,
    VoteResponse,
)
from orderlymq_raft.types import Entry, EntryKind, Index, NodeId, Term

# Increased when the meaning of frames changes; replicas of different versions refuse each other.
WIRE_VERSION: Final = 4

# An entry is one proposal of at most 16 MiB, or several that have 4 MiB together (``core/entrybuilder.py``).
# Entries share an append up to ``append_size_max``. 64 MiB is far above all of these and still harmless.
FRAME_SIZE_MAX: Final = 64 << 20

# Reading a header of this size takes tens of milliseconds. It has room for 100 000 entries or 40 000 files of a
# snapshot.
HEADER_SIZE_MAX: Final = 4 << 20
# A greeting with names and host of 255 characters each, or a reason to refuse it, is smaller than this.
GREETING_SIZE_MAX: Final = 4 << 10
# Messages share a frame up to this size, so that 64 appends of 1 MiB do not form a frame beyond the limit.
MESSAGES_SIZE_USUAL: Final = 4 << 20

_Header = TypeVar("_Header")

_SUM: Final = struct.Struct(">II")
_HEAD: Final = struct.Struct(">IB")
_LENGTH_SIZE: Final = 4
_PREFIX_SIZE: Final = _SUM.size + _HEAD.size


class FrameKind(IntEnum):
    """The meaning of a frame's header; the number is on the wire and never reused."""

    HELLO = 1
    WELCOME = 2
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
    CHALLENGE = 13
    PROOF = 14
    SNAPSHOT_VERIFYING = 15  # the receiver is still verifying what has arrived
    CLOCK = 16  # the sender's time of day, each second


class FrameCorrupt(ValueError):  # noqa: N818 - named for what the caller must know
    """The peer does not use this protocol correctly; close the connection."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One received frame; *payload* is a separate copy."""

    kind: FrameKind
    header: bytes
    payload: bytes


class FrameReader:
    """Splits the bytes of one connection into frames; holds at most one frame and one chunk.

    Attributes:
        size_max: a longer frame is refused.
    """

    __slots__ = ("_buffer", "_needed", "size_max")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self.size_max = size_max
        self._buffer = bytearray()
        self._needed = _PREFIX_SIZE

    def receive_data(self, data: bytes) -> list[Frame]:
        """Add the next bytes and return the frames that they complete.

        Raises:
            FrameCorrupt: the bytes are not frames of this protocol.
        """
        self._buffer += data
        if len(self._buffer) < self._needed:
            return []

        frames: list[Frame] = []
        position = 0
        size = len(self._buffer)
        with memoryview(self._buffer) as view:
            while size - position >= _PREFIX_SIZE:
                length, checksum = _SUM.unpack_from(view, position)
                header_length, kind = _HEAD.unpack_from(view, position + _SUM.size)
                end = position + _LENGTH_SIZE + length
                _check_prefix(length, header_length, self.size_max)
                if end > size:
                    break
                if zlib.crc32(view[position + _SUM.size : end]) != checksum:
                    raise FrameCorrupt(f"a frame of {length} bytes was damaged in transit")
                start = position + _PREFIX_SIZE
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
        if len(view) - position < _PREFIX_SIZE:
            return _PREFIX_SIZE
        return _LENGTH_SIZE + int.from_bytes(view[position : position + _LENGTH_SIZE], "big")


def encode_frame(kind: FrameKind, header: object, payload: Sequence[bytes] = ()) -> list[bytes]:
    """Return the pieces of a frame; *payload* is passed through, never copied."""
    encoded = msgspec.msgpack.encode(header)
    head = _HEAD.pack(len(encoded), kind) + encoded
    length = _SUM.size - _LENGTH_SIZE + len(head)
    checksum = zlib.crc32(head)
    for piece in payload:
        length += len(piece)
        checksum = zlib.crc32(piece, checksum)

    return [_SUM.pack(length, checksum) + head, *payload]


def encode_messages(messages: Sequence[Message]) -> list[bytes]:
    """Return the frames that contain *messages*, which all go to the same peer."""
    pieces: list[bytes] = []
    header: list[list[object]] = []
    payload: list[bytes] = []
    size = 0
    for message in messages:
        header.append(_message_fields(message))
        if isinstance(message, Append):
            data = [entry.data for entry in message.entries]
            payload += data
            size += sum(map(len, data)) + len(data)
            if size > MESSAGES_SIZE_USUAL:
                pieces += encode_frame(FrameKind.RAFT, header, payload)
                header, payload, size = [], [], 0
    if header:
        pieces += encode_frame(FrameKind.RAFT, header, payload)

    return pieces


def decode_messages(frame: Frame) -> list[Message]:
    """Return the messages of a RAFT frame.

    Raises:
        FrameCorrupt: the header has something that this version does not know, a number is not an integer or
            out of its range, or sizes do not fit.
    """
    reader = _PayloadReader(frame.payload)
    try:
        messages = [_message(each, reader) for each in _DECODER.decode(frame.header)]
    except (*UNREADABLE, ValueError) as error:
        raise FrameCorrupt(f"a frame of raft messages cannot be read: {error}") from error
    if reader.rest:
        raise FrameCorrupt(f"{reader.rest} bytes follow the last entry of a frame")

    return messages


def decode_header(frame: Frame, kind: type[_Header]) -> _Header:
    """Return the header of *frame* as *kind*.

    Raises:
        FrameCorrupt: the header has another shape.
    """
    try:
        return msgspec.msgpack.decode(frame.header, type=kind)
    except UNREADABLE as error:
        raise FrameCorrupt(f"a frame of kind {frame.kind.name} cannot be read: {error}") from error


# Tag on the wire -> message; a number is never reused. 9 was InstallSnapshot, which comes on a separate
# connection: one without its state would end the process.
_TYPES: Final[dict[int, type[Any]]] = {
    1: PreVote,
    2: PreVoteResponse,
    3: Vote,
    4: VoteResponse,
    5: Append,
    6: AppendResponse,
    7: Heartbeat,
    8: HeartbeatResponse,
    10: InstallSnapshotResponse,
    11: TimeoutNow,
}
_TAGS: Final = {kind: tag for tag, kind in _TYPES.items()}
_FIELDS: Final = {kind: tuple(field.name for field in fields(kind)) for kind in _TAGS}

# How a field is decoded, by its type in the message. For entries only the tuple counts, because a compiled module
# keeps no more of its annotations. An entry is its term, index, kind and size; its data is payload.
_WIRE_TYPES: Final[dict[Any, Any]] = {
    NodeId: NodeNumber,
    Term: Position,
    Index: Position,
    int: Position,
    bool: bool,
    tuple: list[tuple[Position, Position, EntryKind, Natural]],
}


def _wire_form(tag: int, kind: type[Any]) -> type[msgspec.Struct]:
    """Return the class that decodes one kind of message, with the types and ranges of its numbers."""
    hints = get_type_hints(kind)
    types = {name: get_origin(hint) or hint for name, hint in hints.items()}
    given = [(name, _WIRE_TYPES[types[name]]) for name in _FIELDS[kind]]
    return msgspec.defstruct(
        kind.__name__, given, array_like=True, tag=tag, forbid_unknown_fields=True
    )


_WIRE_FORMS: Final = {_wire_form(tag, kind): kind for tag, kind in _TYPES.items()}
_DECODER: Final = msgspec.msgpack.Decoder(list[Union[tuple(_WIRE_FORMS)]])  # type: ignore[misc]  # noqa: UP007


class _PayloadReader:
    """Returns the data of entries one after the other."""

    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        self._position = 0

    @property
    def rest(self) -> int:
        return len(self._payload) - self._position

    def take(self, size: int) -> bytes:
        start = self._position
        if size > self.rest:
            raise ValueError("an entry reaches past the end of its frame")
        self._position = start + size
        return self._payload[start : start + size]


def _message_fields(message: Message) -> list[object]:
    kind = type(message)
    values: list[object] = [_TAGS[kind]]
    values.extend(getattr(message, name) for name in _FIELDS[kind])
    if isinstance(message, Append):
        values[-1] = [
            (entry.term, entry.index, int(entry.kind), len(entry.data)) for entry in message.entries
        ]
    return values


def _message(form: msgspec.Struct, reader: _PayloadReader) -> Message:
    kind = _WIRE_FORMS[type(form)]
    values = msgspec.structs.astuple(form)
    if kind is Append:
        entries = tuple(
            Entry(term, index, reader.take(size), entry_kind)
            for term, index, entry_kind, size in values[-1]
        )
        values = (*values[:-1], entries)
    message: Message = kind(*values)
    return message


def _check_prefix(length: int, header_length: int, size_max: int) -> None:
    if length > size_max:
        raise FrameCorrupt(oversize(length, length, size_max))
    if header_length > HEADER_SIZE_MAX:
        raise FrameCorrupt(f"the header has {header_length} bytes, the limit is {HEADER_SIZE_MAX}")
    if header_length + _PREFIX_SIZE - _LENGTH_SIZE > length:
        raise FrameCorrupt(f"the header has {header_length} bytes, but its frame has {length}")


def _kind_of(number: int) -> FrameKind:
    try:
        return FrameKind(number)
    except ValueError as error:
        raise FrameCorrupt(f"frame kind {number} is unknown") from error
