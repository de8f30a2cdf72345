"""
The ordered key-value store that holds all data of a replica.

The rule: reads on the event loop see staged writes immediately, and one write per replication turn makes them
durable. ``rocks.py`` implements this over RocksDB, ``tests/broker/store/memory.py`` over plain dictionaries
for tests and the simulator. Key layouts are in ``layout.py``.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol


class Family(IntEnum):
    """Column families; the number is stable, because snapshots and the doctor use it."""

    META = 0  # hard state, membership, applied index, identity, format version
    RAFT_LOG = 1  # index -> term, kind, entry without message bodies
    MESSAGES = 2  # physical offset -> stored message; written at append, may be uncommitted
    CONSUME_QUEUE = 3  # topic id, queue, queue offset -> where the message is; written by apply
    KEY_INDEX = 4  # topic id, kind, key, physical offset -> store time
    DEDUP = 5  # physical offset -> identity of an ordered send, the window of known sends
    TABLES = 6  # topics, groups, offsets, locks, members, progress of services


@dataclass(slots=True)
class Batch:
    """Operations that become visible and durable together, as if performed in the order in which they were added.

    Attributes:
        puts: family, key and value; None removes the key.
        range_deletes: the number of puts that come before it, family, start and end.
    """

    puts: list[tuple[Family, bytes, bytes | None]] = field(default_factory=list)
    range_deletes: list[tuple[int, Family, bytes, bytes]] = field(default_factory=list)
    dropped: bytes = b""

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Set *key* to *value*."""
        self.puts.append((family, key, value))

    def delete(self, family: Family, key: bytes) -> None:
        """Remove *key*; it is not an error if the key does not exist."""
        self.puts.append((family, key, None))

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Remove every key with ``start <= key < end``, including keys that this batch has put so far."""
        self.range_deletes.append((len(self.puts), family, start, end))

    def drop_messages(self, end: bytes) -> None:
        """Remove every key of `MESSAGES` below *end* for good: none of them will be put again."""
        self.dropped = max(self.dropped, end)

    def __bool__(self) -> bool:
        return bool(self.puts or self.range_deletes or self.dropped)


class Reader(Protocol):
    """The interface of the store for the state machine and the processors."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of *key*, staged writes included."""

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of *keys* in their order."""

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return at most *limit* pairs with ``start <= key < end``, in key order or reversed."""


class WriteTicket(Protocol):
    """One durable write in progress; made by ``prepare``, finished by ``settle``."""


class KeyValueStore(Reader, Protocol):
    """A store with staged writes.

    Life cycle of a write: ``stage`` any number of batches on the event loop. ``prepare`` moves everything
    staged, and optionally one more batch, into a ticket. ``commit`` (in the writer thread) makes the ticket
    durable. ``settle`` (on the event loop) frees its memory. Tickets are committed in the order in which they
    were prepared.
    """

    def stage(self, batch: Batch) -> None:
        """Make *batch* visible to reads immediately; it becomes durable with the next ticket."""

    def prepare(self, batch: Batch | None = None) -> WriteTicket:
        """Stage *batch* and move everything staged so far into one ticket."""

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        """Write the ticket atomically; with *sync* return only when it is on disk.

        Raises:
            StoreFull: nothing of the ticket was written; it may be committed again.
            StoreFailed: the outcome is unknown; the process must stop.
        """

    def settle(self, ticket: WriteTicket) -> None:
        """Drop the ticket's staged copy, because reads now find the data in the store."""

    def write(self, batch: Batch, *, sync: bool) -> None:
        """Prepare, commit and settle in one call: for start-up, tools and tests."""

    def close(self) -> None:
        """Flush and close the files."""


class StoreError(Exception):
    """The store could not perform an operation."""


class StoreFull(StoreError):  # noqa: N818 - named for what the caller must know
    """No space left on the device; free some and try the same write again."""


class StoreFailed(StoreError):  # noqa: N818 - named for what the caller must know
    """An I/O error left the outcome of a write unknown; stop and recover by a restart."""
