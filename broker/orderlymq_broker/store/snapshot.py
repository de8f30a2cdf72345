"""
Snapshots: a checkpoint of the store that a peer can install as a whole.

The rule: a replica's store is replaced by renames, and after each of them the next start can complete the
replacement. So a crash at any point leaves the old replica or the new one, never a mix. The receiver keeps
its own identity, term and vote; the raft log starts again after the snapshot. ``replication/snapshots.py``
uses this module; ``replica.py`` describes the directory.
"""

import logging
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, KeyValueStore, Reader, StoreError
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_raft.types import HardState, Index, Membership, SnapshotMeta, Term
from orderlymq_runtime.durablefiles import sync_path

_log = logging.getLogger(__name__)

_STORE: Final = "store"
_NEW: Final = "store.new"
_OLD: Final = "store.old"

# Files of a snapshot or a backup, of some 32 MiB each: their names fit into one header of 4 MiB.
FILES_MAX: Final = 100_000

# RocksDB's own log and lock, which the receiver does not need.
_NOT_SENT: Final = frozenset({"LOG", "LOCK"})


class SnapshotRefused(StoreError):  # noqa: N818 - named for what the caller must know
    """The snapshot cannot be used; fetch another one."""


class SnapshotDamaged(SnapshotRefused):
    """A value in the snapshot cannot be read: the sender's disk is damaged, or the receiver's."""


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file to send: its name inside the directory and its size in bytes."""

    name: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """The content of a snapshot: the state with everything up to *index* applied, and its files.

    Attributes:
        membership: the membership effective at *index*, encoded by `Membership.encode`.
        physical_end: where the bodies of entry *index* end.
    """

    index: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    term: int
    membership: bytes
    physical_end: int
    files: tuple[SnapshotFile, ...]

    @property
    def meta(self) -> SnapshotMeta:
        """Return the identification of the state for the raft core."""
        return SnapshotMeta(Index(self.index), Term(self.term), Membership.decode(self.membership))

    @property
    def size_bytes(self) -> int:
        """Return the total size of all files in bytes."""
        return sum(file.size for file in self.files)


def export_snapshot(store: RocksStore, directory: Path) -> Manifest:
    """Make a checkpoint at *directory*, which must not exist, and describe it.

    Not on the event loop, because it flushes the memtables. Commits may continue meanwhile. The caller
    deletes the directory when the snapshot was sent.

    Raises:
        SnapshotRefused: nothing was applied yet, so there is nothing to send; or there are too many files.
        StoreFull, StoreFailed: the checkpoint could not be written.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    store.checkpoint(directory)
    copy = RocksStore(directory, read_only=True)
    try:
        meta, physical_end = _applied_state(copy, directory)
    finally:
        copy.close()
    files = tuple(
        SnapshotFile(path.name, path.stat().st_size)
        for path in sorted(directory.iterdir())
        if path.name not in _NOT_SENT
    )

    if len(files) > FILES_MAX:
        raise SnapshotRefused(
            f"the store has {len(files)} files, a copy can have at most {FILES_MAX}: let "
            "retention keep fewer messages"
        )

    return Manifest(meta.index, meta.term, meta.membership.encode(), physical_end, files)


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Check that a received directory contains the files of its manifest.

    Raises:
        SnapshotRefused: a file is missing, has another size, or a name that is not plain.
    """
    for file in manifest.files:
        if Path(file.name).name != file.name or file.name in {".", ".."}:
            raise SnapshotRefused(f"the snapshot names a file {file.name!r} outside its directory")
        path = directory / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            raise SnapshotRefused(
                f"{path} has {size} bytes, but {file.size} were sent; fetch it again"
            )


def verify_values(directory: Path, advanced: Callable[[], None] = lambda: None) -> None:
    """Read everything in a copied store once, so that no damaged byte spreads to another replica.

    Not on the event loop: it takes as long as reading the files, and calls *advanced* meanwhile.

    Raises:
        SnapshotDamaged: a value does not match its checksum.
    """
    try:
        store = RocksStore(directory, read_only=True)
        try:
            for family in Family:
                store.read_all(family, advanced)
        finally:
            store.close()
    except StoreError as error:
        raise SnapshotDamaged(f"the snapshot is damaged: {error}") from error


def import_snapshot(
    directory: Path,
    data_dir: Path,
    hard_state: HardState,
    *,
    own: Mapping[bytes, bytes],
    check: Callable[[Reader], None] = lambda reader: None,
) -> SnapshotMeta:
    """Replace the store of *data_dir*, which is closed, by the snapshot in *directory*.

    *directory* must be on the same file system; it is consumed. *hard_state* is the replica's own. *own* has
    the replica's values under the keys of `META_OF_REPLICA`. *check* may refuse the snapshot by raising.

    Raises:
        SnapshotRefused: the snapshot cannot be opened or is empty; the old store is intact.
    """
    meta = _adopt(directory, hard_state, own, check)
    put_in_place(directory, data_dir)

    return meta


def put_in_place(directory: Path, data_dir: Path) -> None:
    """Make the complete store in *directory*, on the same file system, the store of *data_dir*, durably.

    The replaced store is put aside until `remove_replaced`, because deleting it takes long.
    """
    sync_files(directory)
    directory.rename(data_dir / _NEW)
    sync_path(data_dir)
    _settle(data_dir)


def finish_import(data_dir: Path) -> None:
    """Complete a replacement that a crash may have interrupted; do nothing if there is none.

    ``store.new`` exists only when it is complete, so the replacement is always completed, never undone.
    """
    _settle(data_dir)
    remove_replaced(data_dir)


def remove_replaced(data_dir: Path) -> None:
    """Delete the store that a snapshot has replaced; the store may be in use, but no other replacement may run.

    The old store is not needed, so failing to delete it does not stop the replica: the next start tries
    again.
    """
    old = data_dir / _OLD
    try:
        if old.exists():
            shutil.rmtree(old)
            sync_path(data_dir)
    except OSError as error:
        _log.error(
            "%s is not needed but could not be deleted; the next start tries again: %s", old, error
        )


def _settle(data_dir: Path) -> None:
    """Make ``store`` the effective store."""
    store, new, old = data_dir / _STORE, data_dir / _NEW, data_dir / _OLD
    if new.exists():
        if store.exists():
            if old.exists():
                shutil.rmtree(old)
            store.rename(old)
            sync_path(data_dir)
        new.rename(store)
        sync_path(data_dir)
    elif old.exists() and not store.exists():
        old.rename(store)
        sync_path(data_dir)


def store_path(data_dir: Path) -> Path:
    """Return the path of the RocksDB store of a replica."""
    return data_dir / _STORE


def effective_store(data_dir: Path) -> Path:
    """Return the store that the next start of a stopped replica uses, as `finish_import` does; *data_dir* if there is none."""
    stores = (data_dir / name for name in (_NEW, _STORE, _OLD))
    return next((store for store in stores if store.is_dir()), data_dir)


def _adopt(
    directory: Path,
    hard_state: HardState,
    own: Mapping[bytes, bytes],
    check: Callable[[Reader], None],
) -> SnapshotMeta:
    """Make the snapshot this replica's own while it is still in its own directory."""
    try:
        store = RocksStore(directory)
    except StoreError as error:
        raise SnapshotRefused(f"the snapshot cannot be opened: {error}") from error
    try:
        check(store)
        meta = adopt_state(store, hard_state, own, where=str(directory))
        store.flush()
    finally:
        store.close()

    return meta


def adopt_state(
    store: KeyValueStore, hard_state: HardState, own: Mapping[bytes, bytes], *, where: str
) -> SnapshotMeta:
    """Make the copied state in *store*, found at *where*, the replica's own; arguments as above.

    Raises:
        SnapshotRefused: the state is empty.
    """
    meta, physical_end = _applied_state(store, where)
    log = RaftLogStore(store, 0)
    batch = Batch()
    log.install(batch, meta, physical_end=physical_end)
    # A replica in an older term than the snapshot's has not voted in the snapshot's term.
    kept = hard_state.term >= meta.term
    log.set_hard_state(
        batch,
        HardState(
            hard_state.term if kept else meta.term,
            hard_state.vote if kept else None,
            meta.index,
        ),
    )
    for key in layout.META_OF_REPLICA:
        if key in own:
            batch.put(Family.META, key, own[key])
        else:
            batch.delete(Family.META, key)
    store.write(batch, sync=True)

    return meta


def _applied_state(store: Reader, where: Path | str) -> tuple[SnapshotMeta, int]:
    applied = layout.decode_applied(store.get(Family.META, layout.META_APPLIED))
    if applied.index == 0:
        raise SnapshotRefused(f"{where}: nothing was applied yet, so there is no state to install")
    membership = RaftLogStore(store, 0).initial_state()[1]

    return (
        SnapshotMeta(Index(applied.index), Term(applied.term), membership),
        applied.physical_end,
    )


def sync_files(directory: Path, advanced: Callable[[], None] = lambda: None) -> None:
    """Sync all files of a copied store to disk; call *advanced* after each."""
    for path in directory.iterdir():
        sync_path(path)
        advanced()
    sync_path(directory)
