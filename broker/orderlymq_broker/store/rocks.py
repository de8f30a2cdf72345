"""
The store over RocksDB: one column family per `Family`, one write batch per ticket.

The rule: bodies are written once and never rewritten by compaction, and a ticket is completely on disk when a
synced commit returns. Reads and staging happen on the event loop, ``commit`` in the writer thread.
``options.py`` has the measured options and the reasons for them.

Retention drops the messages from the first one up to a key. They are hidden immediately and deleted by
`reclaim`. A deletion among new bodies would make their file overlap with everything that is kept, and
compaction would rewrite that (docs/adr/0012-bodies-in-sst-blocks.md).
"""

import errno
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Final

from rocksdict import (
    AccessType,
    Checkpoint,
    Rdict,
    ReadOptions,
    WriteBatch,
    WriteOptions,
)

from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import (
    Batch,
    Family,
    StoreError,
    StoreFailed,
    StoreFull,
    WriteTicket,
)
from orderlymq_broker.store.options import column_name, database_options, family_options
from orderlymq_broker.store.pendingwrites import Layer, Overlay, Pair
from orderlymq_broker.store.writeaheadlog import refuse_gap


class DirectoryInUse(StoreError):  # noqa: N818 - named for what the caller must know
    """Another process uses the directory; stop it first."""


class FormatTooNew(StoreError):  # noqa: N818 - named for what the caller must know
    """A newer release has written the directory; this one must not touch it."""


class NoReplica(StoreError):  # noqa: N818 - named for what the caller must know
    """There is no store in the directory."""


class RocksStore:
    """A `KeyValueStore` over RocksDB.

    Life cycle: opened by the constructor, which takes RocksDB's lock on *path*; used; closed by `close`.
    Readers and the writer thread must have stopped before it is closed.

    Raises:
        NoReplica: there is no store at *path* and *create* is False.
        DirectoryInUse: another process has it open.
        StoreFull: recovery needs more space than there is.
        StoreFailed: the files cannot be opened.
    """

    def __init__(
        self,
        path: Path,
        *,
        settings: StorageSettings | None = None,
        create: bool = False,
        read_only: bool = False,
    ) -> None:
        if not create and not (path / "CURRENT").exists():
            raise NoReplica(f"{path}: no store is at this path; check the path")
        if create:
            path.mkdir(parents=True, exist_ok=True)
        self.path = path
        self._database = _open(path, settings or StorageSettings(), create, read_only=read_only)
        names = [column_name(family) for family in Family]
        self._columns = [self._database.get_column_family(name) for name in names]
        # A read-only database has no handles for writes, and needs none.
        self._handles = (
            [] if read_only else [self._database.get_column_family_handle(name) for name in names]
        )
        self._overlay = Overlay(self)
        self._write_options = WriteOptions()
        self._write_options.no_slowdown = True
        self._stalls = 0
        self._has_unsynced = False
        self._commits = 0
        self._writing = threading.Lock()
        self._dropped = b""
        try:
            self._dropped = self.base_get(Family.META, layout.META_DROPPED) or b""
        except StoreError:
            # Otherwise this process would keep RocksDB's lock.
            with suppress(StoreError):
                self.close()
            raise

    # -- reads (event loop) --------------------------------------------------------------------

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of *key*, staged writes included."""
        return self._overlay.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of *keys* in their order."""
        return self._overlay.multi_get(family, keys)

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[Pair]:
        """Return at most *limit* pairs with ``start <= key < end``, in key order or reversed."""
        return self._overlay.scan(family, start, end, limit=limit, reverse=reverse)

    # -- writes --------------------------------------------------------------------------------

    def stage(self, batch: Batch) -> None:
        """Make *batch* visible to reads immediately; it becomes durable with the next ticket."""
        self._overlay.stage(batch)

    def prepare(self, batch: Batch | None = None) -> WriteTicket:
        """Stage *batch* and move everything staged so far into one ticket."""
        return self._overlay.prepare(batch)

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        """Write the ticket atomically (writer thread); see `KeyValueStore.commit`."""
        assert isinstance(ticket, Layer)
        if ticket:
            with self._writing:
                self._write(lambda: self._encode(ticket))
            self._dropped = max(self._dropped, ticket.dropped)
            self._has_unsynced = True
        if sync and self._has_unsynced:
            # Two steps instead of a synced write: the binding blocks all other threads during a write, but not
            # during the sync of the log, and the event loop must not wait for a disk. After a failed sync the
            # content of the disk is unknown, so it is never retried.
            try:
                self._database.flush_wal(sync=True)
            except Exception as error:  # RocksDB's binding raises nothing narrower
                raise StoreFailed(f"{self.path}: the log could not be synced: {error}") from error
            self._has_unsynced = False
        self._commits += 1

    def settle(self, ticket: WriteTicket) -> None:
        """Drop the ticket's staged copy, because reads now find the data in the store."""
        assert isinstance(ticket, Layer)
        self._overlay.settle(ticket)

    def write(self, batch: Batch, *, sync: bool) -> None:
        """Prepare, commit and settle; if the store is full the batch stays staged."""
        ticket = self._overlay.prepare(batch)
        try:
            self.commit(ticket, sync=sync)
        except StoreFull:
            self._overlay.take_back(ticket)
            raise
        self._overlay.settle(ticket)

    def flush(self) -> None:
        """Write all memtables to files, so that the write-ahead log can be deleted."""
        try:
            for column in self._columns:
                column.flush()
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

    def close(self) -> None:
        """Close the files; first sync what was committed without sync.

        Writes that were staged and never committed are lost: nothing was acknowledged for them.
        """
        try:
            self._sync_log()
            if self._handles:
                # Otherwise the binding would flush when it closes, and block all other threads meanwhile.
                self.flush()
        finally:
            self._columns = []
            self._handles = []
            try:
                self._database.close()
            except Exception as error:  # as above: a failed write makes the close fail as well
                raise translate(error, self.path) from error

    def _sync_log(self) -> None:
        try:
            if self._has_unsynced:
                self._database.flush_wal(sync=True)
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

    # -- whole-directory work ------------------------------------------------------------------

    def checkpoint(self, path: Path) -> None:
        """Make a consistent copy of all committed data at *path*, with hard links if possible.

        *path* must not exist; it should be on the same file system. May run at the same time as commits.
        """
        # The binding blocks all other threads during a checkpoint, but not during a flush. Flushing the memtables
        # first leaves little to wait for.
        self.flush()
        try:
            Checkpoint(self._database).create_checkpoint(str(path))
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, path) from error

    def read_all(self, family: Family, advanced: Callable[[], None] = lambda: None) -> int:
        """Read every stored value once, so that a damaged one fails its checksum; return the number of values.

        Runs long, not on the event loop, and calls *advanced* repeatedly.
        """
        options = ReadOptions()
        options.set_verify_checksums(True)
        options.fill_cache(False)  # type: ignore[call-arg] # the stubs know no argument
        options.set_readahead_size(READ_AHEAD_SIZE)
        count = 0
        try:
            cursor = self._columns[family].iter(options)
            cursor.seek(self._dropped if family is Family.MESSAGES else b"")
            while cursor.valid():
                cursor.value()
                cursor.next()
                count += 1
                if count % YIELD_EVERY == 0:
                    # The binding does not yield to other threads by itself.
                    time.sleep(0)
                    advanced()
            cursor.status()
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

        return count

    def reclaim(self) -> None:
        """Free the files whose messages were all dropped; runs long, not on the event loop.

        Compaction reads them once more and writes nothing, so it needs no room on a full disk.
        """
        if not self._dropped:
            return
        messages = self._columns[Family.MESSAGES]
        try:
            messages.flush()
            end = self._end_of_dropped_files()
            # The deletion gets a file of its own. Little was written since the flush, so writers wait only some
            # milliseconds.
            with self._writing:
                messages.flush()
                self._write(lambda: self._deletion(end))
                messages.flush()
            messages.compact_range(_FIRST_MESSAGE, end)
        except StoreError:
            raise
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

    def _end_of_dropped_files(self) -> bytes:
        """Return the first key of the file that contains the first message that is kept."""
        dropped = self._dropped
        # The list of files does not name their families; this text does.
        mine = self._columns[Family.MESSAGES].property_value("rocksdb.sstables") or ""
        numbers = {int(number) for number in _FILE_NUMBERS.findall(mine)}
        begins = [
            file["start_key"]
            for file in self._database.live_files()
            if int(Path(file["name"]).stem) in numbers and file["end_key"] >= dropped
        ]
        begin: bytes = min([dropped, *begins])
        # A file that begins with the first message and is not completely dropped can only be rewritten.
        return begin if begin > _FIRST_MESSAGE else dropped

    def _deletion(self, end: bytes) -> WriteBatch:
        write = WriteBatch(raw_mode=True)
        write.delete_range(_FIRST_MESSAGE, end, self._handles[Family.MESSAGES])

        return write

    def sweep_index(self, cursor: bytes = b"") -> bytes:
        """Check the next SWEEP_COUNT index entries and delete those of dropped messages; not on the event loop.

        Returns the next cursor, empty when the whole index was checked; begin with an empty one. No answer
        changes, because a reader of the index also reads the message itself.
        """
        dropped = self._dropped
        # A range deletion would also delete entries that are put into it after the check.
        with self._writing:
            pairs = self.base_scan(Family.KEY_INDEX, cursor, _INDEX_END, SWEEP_COUNT, reverse=False)
            groups = groupby((key for key, _ in pairs), lambda key: key[-8:] < dropped)
            runs = [list(keys) for is_dropped, keys in groups if is_dropped]
            if runs:
                self._write(lambda: self._deletions(Family.KEY_INDEX, runs))

        return pairs[-1][0] + b"\0" if len(pairs) == SWEEP_COUNT else b""

    def _deletions(self, family: Family, runs: list[list[bytes]]) -> WriteBatch:
        """Return the deletion of runs of neighbouring keys."""
        write, handle = WriteBatch(raw_mode=True), self._handles[family]
        for run in runs:
            if len(run) < RANGE_COUNT_MIN:
                for key in run:
                    write.delete(key, handle)
            else:
                write.delete_range(run[0], run[-1] + b"\0", handle)

        return write

    def disk_ratio(self) -> float:
        """Return the used fraction of the file system that contains the store, 0 to 1."""
        usage = os.statvfs(self.path)
        # Blocks reserved for root cannot be used by the store, so they do not count as free.
        usable = usage.f_blocks - usage.f_bfree + usage.f_bavail

        return 1.0 - usage.f_bavail / usable if usable else 1.0

    def disk_bytes(self) -> int:
        """Return the size of the file system that contains the store."""
        usage = os.statvfs(self.path)

        return usage.f_blocks * usage.f_frsize

    def size_bytes(self) -> int:
        """Return the size of all files of the store; 0 while a snapshot replaces it.

        Reads the size of perhaps ten thousand files: not on the event loop. Needs no open store.
        """
        total = 0
        try:
            entries = os.scandir(self.path)
        except FileNotFoundError:
            return 0
        with entries:
            for entry in entries:
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:  # deleted by RocksDB since it was listed
                    continue

        return total

    def statistics(self) -> dict[str, float]:
        """Return figures for metrics, in bytes unless the name says otherwise."""
        figures = {
            "commits": float(self._commits),
            "write_stalls": float(self._stalls),
        }
        for name, key in _PROPERTIES.items():
            figures[name] = float(
                sum(column.property_int_value(key) or 0 for column in self._columns)
            )
        # All families share one cache, and each reports all of it.
        figures["block_cache_bytes"] = float(
            self._columns[0].property_int_value("rocksdb.block-cache-usage") or 0
        )

        return figures

    # -- what the overlay lies on --------------------------------------------------------------

    def base_get(self, family: Family, key: bytes) -> bytes | None:
        """Return the stored value of *key*."""
        if family is Family.MESSAGES and key < self._dropped:
            return None
        try:
            value: bytes | None = self._columns[family].get(key)
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

        return value

    def base_multi_get(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the stored values of *keys* in their order."""
        try:
            # The stubs know neither that keys may be a list of bytes nor that raw mode returns bytes.
            values: list[bytes | None] = self._columns[family].get(keys)  # type: ignore[arg-type,assignment]
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error
        dropped = self._dropped
        if family is not Family.MESSAGES or not dropped or min(keys, default=dropped) >= dropped:
            return values

        return [None if key < dropped else value for key, value in zip(keys, values, strict=True)]

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[Pair]:
        """Return stored pairs of ``[start, end)``."""
        if family is Family.MESSAGES:
            start = max(start, self._dropped)
            if start >= end:
                return []
        # The bounds keep RocksDB from iterating over deleted keys outside the range.
        bounds = ReadOptions()
        bounds.set_iterate_lower_bound(start)
        bounds.set_iterate_upper_bound(end)
        pairs: list[Pair] = []
        try:
            cursor = self._columns[family].iter(bounds)
            if reverse:
                cursor.seek_for_prev(end)
            else:
                cursor.seek(start)
            step = cursor.prev if reverse else cursor.next
            valid, key, value = cursor.valid, cursor.key, cursor.value
            while valid():
                found = key()
                if reverse and found < start:
                    # The first backward seek may pass the lower bound and still be valid.
                    return pairs
                pairs.append((found, value()))
                if len(pairs) == limit:
                    return pairs
                step()
            # `valid` cannot tell the end of the range from a damaged block.
            cursor.status()
        except Exception as error:  # RocksDB's binding raises nothing narrower
            raise translate(error, self.path) from error

        return pairs

    def _write(self, encode: Callable[[], WriteBatch]) -> None:
        while True:
            try:
                # Encode again for each try, because the binding consumes a batch whether it is accepted or not.
                self._database.write(encode(), self._write_options)
            except Exception as error:  # RocksDB's binding raises nothing narrower
                if _WRITE_STALL not in str(error):
                    raise translate(error, self.path) from error
                # RocksDB wants to finish a flush first. Waiting inside RocksDB would stop the event loop too, see
                # `commit`.
                self._stalls += 1
                time.sleep(_STALL_SLEEP_S)
            else:
                return

    def _encode(self, layer: Layer) -> WriteBatch:
        write = WriteBatch(raw_mode=True)
        for family in Family:
            handle = self._handles[family]
            for start, end in layer.ranges[family]:
                if family is not Family.MESSAGES or end > layer.dropped:
                    write.delete_range(start, end, handle)
            put = write.put
            for key, value in layer.values[family].items():
                if value is None:
                    write.delete(key, handle)
                else:
                    put(key, value, handle)
        if layer.dropped:
            write.put(layout.META_DROPPED, layer.dropped, self._handles[Family.META])

        return write


_FIRST_MESSAGE: Final = layout.message_key(0)
_INDEX_END: Final = b"\xff" * 16

# Index entries in one step of a sweep: a millisecond or two, which a write may have to wait.
SWEEP_COUNT: Final = 512

# From this many neighbouring deleted keys on, one range is deleted, which a later scan passes in one step. A scan
# would visit each single deleted key until compaction removes them, and with hundreds of thousands it would block
# the event loop for too long.
RANGE_COUNT_MIN: Final = 32

_FILE_NUMBERS: Final = re.compile(r"^ (\d+):", re.MULTILINE)

# The text with which RocksDB refuses a write that it would have to delay (WriteOptions.no_slowdown).
_WRITE_STALL = "Write stall"

# Short compared to the flush that is waited for, long compared to the cost of asking again.
_STALL_SLEEP_S = 0.005

# Large compared to the seek of a spinning disk, small compared to the memory of a replica.
READ_AHEAD_SIZE = 2 << 20

# The values of some hundred microseconds.
YIELD_EVERY = 64

_PROPERTIES = {
    "memtable_bytes": "rocksdb.cur-size-all-mem-tables",
    "table_bytes": "rocksdb.total-sst-files-size",
    "table_reader_bytes": "rocksdb.estimate-table-readers-mem",
    "compaction_pending_bytes": "rocksdb.estimate-pending-compaction-bytes",
}


def translate(error: Exception, path: Path) -> StoreError:
    """Return this package's error for an error of RocksDB, which is plain text."""
    text = str(error)
    if os.strerror(errno.ENOSPC) in text or os.strerror(errno.EDQUOT) in text:
        return StoreFull(f"{path}: {text}; free space on this disk")
    if "lock hold by current process" in text or "While lock file" in text:
        return DirectoryInUse(
            f"{path}: another process has this store open; stop that process first"
        )
    if "Column families not opened" in text:
        return FormatTooNew(f"{path}: {text}; a newer release wrote it, run that release")

    return StoreFailed(f"{path}: {text}; run 'orderlymq doctor' on the directory")


def _open(path: Path, settings: StorageSettings, create: bool, *, read_only: bool) -> Rdict:
    if not read_only:
        refuse_gap(path)
    options = database_options(create=create)
    families = family_options(settings, create=create)
    access = AccessType.read_only(False) if read_only else AccessType.read_write()
    try:
        return Rdict(str(path), options, families, access)
    except Exception as error:  # RocksDB's binding raises nothing narrower
        raise translate(error, path) from error
