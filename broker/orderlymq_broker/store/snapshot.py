"""
Snapshots: a checkpoint of the store that a peer can take over whole.

The rule: a replica's store is replaced by renames, each of which leaves a state that the next
start completes, so that a crash at any point leaves the old replica or the new one, never a mix.
The receiver keeps its own identity, term and vote; the raft log starts again behind the snapshot.
Who asks for one: ``replication/snapshots.py``; what the directory looks like: ``replica.py``.
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

# Files of a snapshot or a backup, of some 32 MiB each: their names fit one header of 4 MiB.
FILES_MAX: Final = 100_000

# RocksDB's own log and lock: of no use to the receiver.
_NOT_SENT: Final = frozenset({"LOG", "LOCK"})


class SnapshotRefused(StoreError):  # noqa: N818 - named for what the caller must know
    """The snapshot cannot be used; fetch another one."""


class SnapshotDamaged(SnapshotRefused):
    """A value in it cannot be read: the sender's disk is damaged, or the receiver's."""


class SnapshotFile(msgspec.Struct, frozen=True):
    """One file to send: its name inside the directory and its size in bytes."""

    name: str
    size: int


class Manifest(msgspec.Struct, frozen=True):
    """Content of a snapshot: everything up to *index* applied, and the files of it.

    Attributes:
        membership: as `Membership.encode` gives it, effective at *index*.
        physical_end: where the bodies of entry *index* end.
    """

    index: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    term: int
    membership: bytes
    physical_end: int
    files: tuple[SnapshotFile, ...]

    @property
    def meta(self) -> SnapshotMeta:
        """Return the name of the state, as the raft core speaks of it."""
        return SnapshotMeta(Index(self.index), Term(self.term), Membership.decode(self.membership))

    @property
    def size_bytes(self) -> int:
        """Return the bytes of all files together."""
        return sum(file.size for file in self.files)


def export_snapshot(store: RocksStore, directory: Path) -> Manifest:
    """Make a checkpoint at *directory*, which must not exist, and describe it.

    Not on the event loop: it flushes the memtables. Commits may go on beside it. The caller
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
            f"the store has {len(files)} files, of which a copy has at most {FILES_MAX}: let retention keep less"
        )

    return Manifest(meta.index, meta.term, meta.membership.encode(), physical_end, files)


def verify_files(directory: Path, manifest: Manifest) -> None:
    """Check that a received directory holds what its manifest says.

    Raises:
        SnapshotRefused: a file is missing, has another size, or a name that is not plain.
    """
    for file in manifest.files:
        if Path(file.name).name != file.name or file.name in {".", ".."}:
            raise SnapshotRefused(f"the snapshot names a file {file.name!r} outside its directory")
        path = directory / file.name
        size = path.stat().st_size if path.is_file() else None
        if size != file.size:
            raise SnapshotRefused(f"{path} has {size} bytes, {file.size} were sent; fetch it again")


def verify_values(directory: Path, advanced: Callable[[], None] = lambda: None) -> None:
    """Read everything in a copied store once: a damaged byte must not travel to another replica.

    Not on the event loop: it takes as long as reading the files, and calls *advanced* meanwhile.

    Raises:
        SnapshotDamaged: a value does not fit its checksum.
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
    """Let the snapshot in *directory* take the place of the store of *data_dir*, which is closed.

    *directory* must lie on the same file system; it is consumed. *hard_state* is the replica's
    own, and so is what it has under the keys of `META_OF_REPLICA`, given as *own*; *check* may
    refuse the snapshot by raising.

    Raises:
        SnapshotRefused: the snapshot cannot be opened or holds nothing; the old store is intact.
    """
    meta = _adopt(directory, hard_state, own, check)
    put_in_place(directory, data_dir)

    return meta


def put_in_place(directory: Path, data_dir: Path) -> None:
    """Let the complete store in *directory*, on the same file system, become that of *data_dir*, durably.

    What it replaces lies aside until `remove_replaced`: that takes long.
    """
    sync_files(directory)
    directory.rename(data_dir / _NEW)
    sync_path(data_dir)
    _settle(data_dir)


def finish_import(data_dir: Path) -> None:
    """Complete a replacement that a crash may have interrupted; do nothing when there is none.

    ``store.new`` exists only when it is complete, so the way is always forward.
    """
    _settle(data_dir)
    remove_replaced(data_dir)


def remove_replaced(data_dir: Path) -> None:
    """Delete what a snapshot has replaced; beside the store in use, but beside no further replacement.

    Nobody needs it, so that one which cannot be deleted keeps no replica from its work: the next start tries again.
    """
    old = data_dir / _OLD
    try:
        if old.exists():
            shutil.rmtree(old)
            sync_path(data_dir)
    except OSError as error:
        _log.error(
            "%s is not needed and cannot be deleted; the next start tries again: %s", old, error
        )


def _settle(data_dir: Path) -> None:
    """Let ``store`` be the store that counts."""
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
    """Return where the RocksDB store of a replica lies."""
    return data_dir / _STORE


def effective_store(data_dir: Path) -> Path:
    """Return the store that the next start of a stopped replica takes, as `finish_import` does; *data_dir* if it holds none."""
    stores = (data_dir / name for name in (_NEW, _STORE, _OLD))
    return next((store for store in stores if store.is_dir()), data_dir)


def _adopt(
    directory: Path,
    hard_state: HardState,
    own: Mapping[bytes, bytes],
    check: Callable[[Reader], None],
) -> SnapshotMeta:
    """Make the snapshot this replica's own, while it still lies aside."""
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
        SnapshotRefused: the state holds nothing.
    """
    meta, physical_end = _applied_state(store, where)
    log = RaftLogStore(store, 0)
    batch = Batch()
    log.install(batch, meta, physical_end=physical_end)
    # A replica in an older term than the snapshot has not voted in the snapshot's.
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
        raise SnapshotRefused(f"{where}: nothing was applied yet, there is nothing to take over")
    membership = RaftLogStore(store, 0).initial_state()[1]

    return (
        SnapshotMeta(Index(applied.index), Term(applied.term), membership),
        applied.physical_end,
    )


def sync_files(directory: Path, advanced: Callable[[], None] = lambda: None) -> None:
    """Return when all files of a copied store are on the disk; *advanced* is called after each."""
    for path in directory.iterdir():
        sync_path(path)
        advanced()
    sync_path(directory)
