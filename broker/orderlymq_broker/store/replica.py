"""
Opens the data directory of a replica, and makes sure that it belongs to this replica.

The rule: a directory is bound to one cluster, broker group and node from its first moment, and one process
uses it at a time. A directory with other contents is refused before anything is changed. The store contains
its identity, but opening it already writes, so a file next to it has the identity, too.

    data_dir/identity.json  the identity in the store, to be read before the store is opened
    data_dir/replica.lock   locked while a process uses the directory
    data_dir/store          the RocksDB store
    data_dir/store.new      a complete snapshot that is about to replace it (see ``snapshot.py``)
    data_dir/store.old      the replaced store, about to be deleted
"""

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from orderlymq_broker.settings import StorageSettings
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, Reader, StoreError, StoreFailed
from orderlymq_broker.store.rocks import DirectoryInUse, FormatTooNew, RocksStore
from orderlymq_broker.store.snapshot import (
    finish_import,
    import_snapshot,
    remove_replaced,
    store_path,
)
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_raft.types import HardState

_log = logging.getLogger(__name__)

_LOCK_NAME: Final = "replica.lock"
_IDENTITY_FILE: Final = "identity.json"


class Identity(msgspec.Struct, frozen=True):
    """The replica that a directory belongs to."""

    cluster: str
    group: str
    node_id: int

    def __str__(self) -> str:
        return f"node {self.node_id} of group {self.group!r} in cluster {self.cluster!r}"


class _IdentityFile(msgspec.Struct, frozen=True):
    """The file next to the store; a later release may add fields."""

    format: int
    identity: Identity


class WrongDirectory(StoreError):  # noqa: N818 - named for what the caller must know
    """The directory belongs to another replica."""


class Replica:
    """An open data directory.

    Life cycle: made by `open_replica`. `replace` replaces the store by a snapshot, and `remove_replaced`
    deletes the old store. `close` releases everything. `store` is another object after `replace`.
    """

    def __init__(self, data_dir: Path, identity: Identity, settings: StorageSettings) -> None:
        self.data_dir = data_dir
        self.identity = identity
        self._settings = settings
        self._had_store = _check_identity_file(data_dir, identity)
        data_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(data_dir)
        try:
            finish_import(data_dir)
            _refuse_remains(data_dir, identity, had_store=self._had_store)
            self.store = self._open()
            _put_identity_file(data_dir, identity)
        except BaseException:
            os.close(self._lock)
            raise

    def replace(self, snapshot_dir: Path, hard_state: HardState) -> None:
        """Replace the store by the received snapshot and open it.

        The caller has stopped the writer thread and keeps nothing that it read from the old store. If the
        snapshot is refused, the old store is open again afterwards.

        Raises:
            SnapshotRefused: the snapshot is incomplete or belongs to another broker group.
        """
        keys = sorted(layout.META_OF_REPLICA)
        values = self.store.multi_get(Family.META, keys)
        try:
            self.store.close()
        except StoreError as error:
            # Its files are either deleted, or read again as after a crash.
            _log.warning("the store that a snapshot replaces could not be closed: %s", error)
        try:
            import_snapshot(
                snapshot_dir,
                self.data_dir,
                hard_state,
                check=lambda reader: _check_group(reader, self.identity, snapshot_dir),
                own={key: value for key, value in zip(keys, values, strict=True) if value},
            )
        finally:
            self.store = self._open()

    def remove_replaced(self) -> None:
        """Delete the store that `replace` has put aside; the new store may be in use, but no further `replace` may run."""
        remove_replaced(self.data_dir)

    def close(self) -> None:
        """Close the store and release the directory for other processes."""
        try:
            self.store.close()
        finally:
            os.close(self._lock)

    def _open(self) -> RocksStore:
        path = store_path(self.data_dir)
        store = RocksStore(path, settings=self._settings, create=True)
        try:
            if read_identity(store, path) is None:
                if self._had_store:
                    raise _lost(self.data_dir, self.identity)
                _claim(store, self.identity)
            _check(store, self.identity, self.data_dir)
        except BaseException:
            store.close()
            raise

        return store


def open_replica(
    data_dir: Path, identity: Identity, settings: StorageSettings | None = None
) -> Replica:
    """Open *data_dir* for *identity*; an empty or missing directory becomes a new replica.

    Raises:
        DirectoryInUse: another process uses the directory.
        WrongDirectory: it belongs to another cluster, broker group or node.
        FormatTooNew: a newer release has written it.
        StoreFull: recovery needs more space.
        StoreFailed: the files are damaged or lost; restore the replica from its peers.
    """
    return Replica(data_dir, identity, settings or StorageSettings())


@contextmanager
def hold(data_dir: Path) -> Iterator[None]:
    """Lock *data_dir* against every other process; create the directory if it is missing.

    Raises:
        DirectoryInUse: another process uses the directory.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    lock = _lock(data_dir)
    try:
        yield
    finally:
        os.close(lock)


def read_identity(reader: Reader, path: Path) -> Identity | None:
    """Return the identity of the replica that the store belongs to, None if no replica has claimed it yet.

    Raises:
        FormatTooNew: a newer release has written it.
        StoreFailed: the identity cannot be read.
    """
    stored = reader.get(Family.META, layout.META_FORMAT)
    if stored is not None:
        _check_format(layout.decode_u64(stored), path)
    identity = reader.get(Family.META, layout.META_IDENTITY)
    if identity is None:
        return None
    try:
        return msgspec.json.decode(identity, type=Identity)
    except UNREADABLE as error:
        raise StoreFailed(
            f"{path}: the identity is damaged ({error}); restore the replica from its peers"
        ) from error


def lock_owner(data_dir: Path) -> str | None:
    """Return the id of the process that uses *data_dir*, None if none does; changes nothing."""
    try:
        descriptor = os.open(data_dir / _LOCK_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return _read_owner(descriptor)
    finally:
        os.close(descriptor)

    return None


def _read_owner(descriptor: int) -> str:
    return os.pread(descriptor, 32, 0).decode("ascii", "replace").strip() or "unknown"


def _claim(store: RocksStore, identity: Identity) -> None:
    batch = Batch()
    write_identity(batch, identity)
    store.write(batch, sync=True)


def write_identity(batch: Batch, identity: Identity) -> None:
    """Add *identity* and the format of this release to *batch*."""
    batch.put(Family.META, layout.META_FORMAT, layout.encode_u64(layout.FORMAT_VERSION))
    batch.put(Family.META, layout.META_IDENTITY, msgspec.json.encode(identity))


def _check_identity_file(data_dir: Path, identity: Identity) -> bool:
    """Return whether the directory had a store of *identity*: the file is written after the store was claimed."""
    try:
        known = msgspec.json.decode((data_dir / _IDENTITY_FILE).read_bytes(), type=_IdentityFile)
    except (FileNotFoundError, *UNREADABLE):
        return False  # a new directory, or an unreadable file: check the identity in the store
    _check_format(known.format, data_dir)
    _check_identity(known.identity, identity, data_dir)
    return True


def _refuse_remains(data_dir: Path, identity: Identity, *, had_store: bool) -> None:
    """Refuse a directory that once had a store but looks new to RocksDB, which would delete the files that it does not know."""
    store = store_path(data_dir)
    if not (store / "CURRENT").exists() and (had_store or any(store.glob("*.sst"))):
        raise _lost(data_dir, identity)


def _lost(data_dir: Path, identity: Identity) -> StoreFailed:
    return StoreFailed(
        f"{data_dir} had the store of {identity}, which is missing or empty; it is not created "
        "again, because that would delete the remaining data. Run 'orderlymq doctor' on it; move "
        "the directory away while a majority of the group is healthy without this replica"
    )


def _put_identity_file(data_dir: Path, identity: Identity) -> None:
    """Write the identity file if it is missing; it is only a hint, so it need not be synced."""
    wanted = msgspec.json.encode(_IdentityFile(layout.FORMAT_VERSION, identity))
    path = data_dir / _IDENTITY_FILE
    if path.exists() and path.read_bytes() == wanted:
        return
    unfinished = path.with_suffix(".new")
    try:
        unfinished.write_bytes(wanted)
        unfinished.replace(path)
    except OSError as error:  # even with a full disk the replica can serve its data
        _log.warning("%s could not be written: %s", path, error)


def _check_format(found: int, path: Path) -> None:
    if found > layout.FORMAT_VERSION:
        raise FormatTooNew(
            f"{path} has format {found}, but this release reads formats up to "
            f"{layout.FORMAT_VERSION}; run the release that wrote it"
        )


def _check(store: RocksStore, identity: Identity, data_dir: Path) -> None:
    _check_identity(read_identity(store, data_dir), identity, data_dir)


def _check_identity(found: Identity | None, identity: Identity, data_dir: Path) -> None:
    if found != identity:
        raise WrongDirectory(
            f"{data_dir} belongs to {found}, but was to be used for {identity}; name the right "
            "directory, or an empty one to copy the state from the peers"
        )


def _check_group(reader: Reader, identity: Identity, path: Path) -> None:
    found = read_identity(reader, path)
    if found is None or (found.cluster, found.group) != (identity.cluster, identity.group):
        raise WrongDirectory(
            f"the snapshot in {path} belongs to {found}, not to the group of {identity}; check "
            "the peers in the settings"
        )


def _lock(data_dir: Path) -> int:
    """Return the open lock file; the lock is released when the process ends, however it ends."""
    descriptor = os.open(data_dir / _LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _read_owner(descriptor)
        os.close(descriptor)
        raise DirectoryInUse(
            f"{data_dir} is in use by process {owner}; stop that process first, or name another "
            "directory"
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    return descriptor
