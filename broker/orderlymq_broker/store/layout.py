"""
Keys and values of every column family, as bytes.

The rule: keys are big-endian, so that their byte order is their scan order, and the length of each value with
a layout is checked when it is decoded. Pure; ``kv.py`` names the families, and ``doctor`` decodes all of
them.
"""

import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum, unique
from typing import Final

from orderlymq_broker.store.kv import StoreError

FORMAT_VERSION: Final = 1  # of the whole directory; increased when older releases must not open it

# A message key or a token of KEYS may be any text that a client sends; the index stores only this much of it.
INDEX_TEXT_SIZE_MAX: Final = 255

U64_MAX: Final = (1 << 64) - 1

_U64: Final = struct.Struct(">Q")
_QUEUE_PREFIX: Final = struct.Struct(">II")
_CONSUME_QUEUE_KEY: Final = struct.Struct(">IIQ")
_CONSUME_QUEUE_VALUE: Final = struct.Struct(">QIqQ")
_INDEX_PREFIX: Final = struct.Struct(">IB")
_LOG_HEAD: Final = struct.Struct(">QBII")
_APPLIED: Final = struct.Struct(">QQQQ")
_HARD_STATE: Final = struct.Struct(">QqQ")
_COMPACTED: Final = struct.Struct(">QQQ")

# META keys
META_FORMAT: Final = b"format"
META_IDENTITY: Final = b"identity"
META_HARD_STATE: Final = b"hard_state"
META_MEMBERSHIP: Final = b"membership"
META_COMPACTED: Final = b"compacted"  # see `Compaction`
META_APPLIED: Final = b"applied"  # see `Applied`
META_RECOVERY: Final = b"amnesia"  # replication's mark: this replica may have lost its disk
META_PEERS: Final = b"peers"  # replication's address book
META_STICKINESS: Final = b"stickiness"  # replication: for how many ms it sticks to a leader
META_RESTORED: Final = (
    b"restored"  # names of broker groups restored together, until all have registered
)
META_DROPPED: Final = (
    b"dropped"  # messages below this key are deleted, though files may still hold them
)

# Keys that belong to the replica and not to its broker group: a snapshot of a peer must not overwrite them.
META_OF_REPLICA: Final = frozenset({META_IDENTITY, META_RECOVERY, META_STICKINESS, META_RESTORED})


@unique
class Table(IntEnum):
    """Tables of the state machine inside the TABLES family; the number is the key's first byte.

    A number is never reused. 9, 11, 12 and 17 to 19 were used by earlier releases.
    """

    TOPICS = 1
    GROUPS = 2
    OFFSETS = 3
    LOCKS = 4
    MEMBERS = 5
    DELAY = 6
    QUEUES = 7
    DEDUP = 8
    COUNTERS = 10
    TRANSACTIONS = 13
    ACCOUNTS = 14
    ACCESS = 15
    SETTINGS = 16
    EXPANSIONS = 20
    ASSIGNMENTS = 21
    TIMERS = 22  # by due time: one scan finds the due ones
    TIMER_PLACES = 23  # by place in the timer topic: the first is the oldest waiting message
    HELD_KEYS = 24
    LET_GO_KEYS = 25
    LANES = 26
    LANE_QUEUES = 27
    LANE_OFFSETS = 28  # by first offset: runs of offsets that a lane owes after its head


class IndexKind(IntEnum):
    """Source of a key in KEY_INDEX."""

    KEY = 0  # one token of the KEYS property
    UNIQUE = 1  # the UNIQ_KEY property


@dataclass(frozen=True, slots=True)
class QueueEntry:
    """The position of a queue's message, and the fields that a pull filters by before it reads the message."""

    physical: int
    size: int
    tags_code: int
    store_timestamp: int


class KeyCorrupt(StoreError):  # noqa: N818 - named for what the caller must know
    """A key or value does not have the layout of its family."""


# -- numbers -----------------------------------------------------------------------------------


def encode_u64(value: int) -> bytes:
    """Return the eight bytes of a raft index or a physical offset as a key."""
    return _U64.pack(value)


U64_END: Final = encode_u64(U64_MAX)  # after every index and offset that is in use


def decode_u64(data: bytes) -> int:
    """Return the number that `encode_u64` encoded as *data*."""
    if len(data) != _U64.size:
        raise KeyCorrupt(f"{len(data)} bytes instead of 8")

    return int(_U64.unpack(data)[0])


message_key = encode_u64
log_key = encode_u64
# Called for a whole window of keys, so it avoids a Python function call.
dedup_key: Final[Callable[[int], bytes]] = _U64.pack


# -- consume queue -----------------------------------------------------------------------------


def queue_key(topic_id: int, queue_id: int, queue_offset: int) -> bytes:
    """Return the key of one entry of a consume queue."""
    return _CONSUME_QUEUE_KEY.pack(topic_id, queue_id, queue_offset)


def queue_bounds(topic_id: int, queue_id: int) -> tuple[bytes, bytes]:
    """Return start and end of a scan over one queue."""
    return _QUEUE_PREFIX.pack(topic_id, queue_id), prefix_end(
        _QUEUE_PREFIX.pack(topic_id, queue_id)
    )


def decode_queue_key(key: bytes) -> tuple[int, int, int]:
    """Return topic id, queue id and queue offset."""
    if len(key) != _CONSUME_QUEUE_KEY.size:
        raise KeyCorrupt(f"a consume queue key has {len(key)} bytes")
    topic_id, queue_id, queue_offset = _CONSUME_QUEUE_KEY.unpack(key)

    return topic_id, queue_id, queue_offset


def encode_queue_entry(entry: QueueEntry) -> bytes:
    """Return the value of one entry of a consume queue."""
    return _CONSUME_QUEUE_VALUE.pack(
        entry.physical, entry.size, entry.tags_code, entry.store_timestamp
    )


def decode_queue_entry(value: bytes) -> QueueEntry:
    """Return the entry that `encode_queue_entry` encoded as *value*."""
    if len(value) != _CONSUME_QUEUE_VALUE.size:
        raise KeyCorrupt(f"a consume queue value has {len(value)} bytes")

    return QueueEntry(*_CONSUME_QUEUE_VALUE.unpack(value))


# -- key index ---------------------------------------------------------------------------------


def index_prefix(topic_id: int, kind: IndexKind, text: str) -> bytes:
    """Return the common prefix of all index keys of *text*.

    A zero byte ends the text. A zero byte inside it (clients may send anything) ends it early. That costs a
    reader a comparison with the message itself, but never gives a wrong answer.
    """
    data = text.encode("utf-8", "surrogatepass")[:INDEX_TEXT_SIZE_MAX]

    return _INDEX_PREFIX.pack(topic_id, kind) + data.partition(b"\x00")[0] + b"\x00"


def index_key(topic_id: int, kind: IndexKind, text: str, physical: int) -> bytes:
    """Return the key under which a message is found by *text*."""
    return index_prefix(topic_id, kind, text) + _U64.pack(physical)


def decode_index_key(key: bytes) -> tuple[int, IndexKind, bytes, int]:
    """Return topic id, kind, the (truncated) text as bytes, and the physical offset."""
    if len(key) < _INDEX_PREFIX.size + 1 + 8 or key[-9] != 0:
        raise KeyCorrupt("an index key has no end mark")
    topic_id, kind = _INDEX_PREFIX.unpack_from(key)
    try:
        index_kind = IndexKind(kind)
    except ValueError as error:
        raise KeyCorrupt(f"index kind {kind} is unknown") from error

    return topic_id, index_kind, key[_INDEX_PREFIX.size : -9], decode_u64(key[-8:])


def encode_timestamp(store_timestamp: int) -> bytes:
    """Return the value of an index key: the store time in ms."""
    return _U64.pack(store_timestamp)


decode_timestamp = decode_u64


# -- raft log ----------------------------------------------------------------------------------


def encode_log_value(
    *, term: int, kind: int, blob_length: int, checksum: int, head: bytes
) -> bytes:
    """Return the value of one raft entry without its bodies.

    *head* is the entry's head and metadata; *checksum* is CRC-32 over these and the bodies.
    """
    return _LOG_HEAD.pack(term, kind, blob_length, checksum) + head


@dataclass(frozen=True, slots=True)
class LogValue:
    """A raft entry as stored in RAFT_LOG: everything but the bodies."""

    term: int
    kind: int
    blob_length: int
    checksum: int
    head: bytes


def decode_log_value(value: bytes) -> LogValue:
    """Return the fields that `encode_log_value` encoded."""
    if len(value) < _LOG_HEAD.size:
        raise KeyCorrupt(f"a raft log value has {len(value)} bytes")
    term, kind, blob_length, checksum = _LOG_HEAD.unpack_from(value)

    return LogValue(term, kind, blob_length, checksum, value[_LOG_HEAD.size :])


# -- positions of the replica ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Applied:
    """The position of the tables; the state machine writes it with every entry.

    Attributes:
        index: the last raft entry that the tables include.
        term: the term of that entry.
        physical_end: where the bodies of all entries up to *index* end.
        floor: retention has dropped the messages below this physical offset.
    """

    index: int = 0
    term: int = 0
    physical_end: int = 0
    floor: int = 0


def encode_applied(applied: Applied) -> bytes:
    """Return the value of META_APPLIED."""
    return _APPLIED.pack(applied.index, applied.term, applied.physical_end, applied.floor)


def decode_applied(value: bytes | None) -> Applied:
    """Return the position that `encode_applied` encoded; zeros if nothing was ever applied."""
    if value is None:
        return Applied()
    if len(value) != _APPLIED.size:
        raise KeyCorrupt(f"an applied position has {len(value)} bytes")

    return Applied(*_APPLIED.unpack(value))


def encode_hard_state(term: int, vote: int | None, commit: int) -> bytes:
    """Return the value of META_HARD_STATE."""
    return _HARD_STATE.pack(term, -1 if vote is None else vote, commit)


def decode_hard_state(value: bytes | None) -> tuple[int, int | None, int]:
    """Return term, vote and commit index; those of a new replica if there is no value."""
    if value is None:
        return 0, None, 0
    if len(value) != _HARD_STATE.size:
        raise KeyCorrupt(f"a hard state has {len(value)} bytes")
    term, vote, commit = _HARD_STATE.unpack(value)

    return term, None if vote < 0 else vote, commit


@dataclass(frozen=True, slots=True)
class Compaction:
    """The entry before the first one in the log, and where its bodies ended."""

    index: int = 0
    term: int = 0
    physical_end: int = 0


def encode_compaction(compaction: Compaction) -> bytes:
    """Return the value of META_COMPACTED."""
    return _COMPACTED.pack(compaction.index, compaction.term, compaction.physical_end)


def decode_compaction(value: bytes | None) -> Compaction:
    """Return the position that `encode_compaction` encoded; the start of the log if there is no value."""
    if value is None:
        return Compaction()
    if len(value) != _COMPACTED.size:
        raise KeyCorrupt(f"a compaction position has {len(value)} bytes")

    return Compaction(*_COMPACTED.unpack(value))


# -- tables ------------------------------------------------------------------------------------


def table_key(table: Table, *parts: str | int) -> bytes:
    """Return a key of TABLES: the table's number, then the parts.

    Text is UTF-8 ended by a zero byte (names never contain one), numbers are u64. So keys with equal leading
    parts are neighbours.
    """
    chunks = [bytes((table,))]
    for part in parts:
        if isinstance(part, int):
            chunks.append(_U64.pack(part))
        else:
            chunks.append(part.encode() + b"\x00")

    return b"".join(chunks)


def numbered_key(prefix: bytes, number: int) -> bytes:
    """Return the key of TABLES with the leading parts of *prefix*, a key itself, and *number* as its last part."""
    return prefix + _U64.pack(number)


def numbered_keys(
    table: Table, firsts: Iterable[tuple[str, Iterable[int]]], second: str
) -> list[bytes]:
    """Return the `table_key` of each first text in *firsts*, *second*, and each number given with the first text."""
    head, tail, pack = bytes((table,)), b"\x00" + second.encode() + b"\x00", _U64.pack
    return [
        head + first.encode() + tail + pack(number)
        for first, numbers in firsts
        for number in numbers
    ]


def table_bounds(table: Table, *parts: str | int) -> tuple[bytes, bytes]:
    """Return start and end of a scan over all keys that begin with *parts*."""
    prefix = table_key(table, *parts)

    return prefix, prefix_end(prefix)


def prefix_end(prefix: bytes) -> bytes:
    """Return the smallest key that is greater than every key with *prefix*."""
    trimmed = prefix.rstrip(b"\xff")
    assert trimmed, "a prefix of only 0xff bytes has no end; no family uses one"

    return trimmed[:-1] + bytes((trimmed[-1] + 1,))
