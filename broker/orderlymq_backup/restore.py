"""
Turns a backup into the data directory of a replica of a new cluster; verification does the same and keeps nothing.

The rule: nothing in a directory counts until its files match their digests, the store opens, every value
matches its checksum, and its state is consistent. A directory that contains a replica is never changed, and
no replica starts on one that is being restored. The restored replica has the identity and the members of the
new cluster, a raft term above all former ones, and the state that ``state/restoration.py`` fences. All
replicas of a broker group that restore the same backup begin with the same state.
"""

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from orderlymq_backup import catalogue
from orderlymq_backup.errors import BackupDamaged, FileDamaged, TargetRefused
from orderlymq_backup.manifest import Backup, BackupFile, Part, blob_key
from orderlymq_backup.storage import Storage, failed
from orderlymq_broker.server.restoredgroups import note_groups
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.restoration import fence
from orderlymq_broker.state.tables import TableWrites
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, StoreError
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.replica import Identity, hold, read_identity, write_identity
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import finish_import, put_in_place, verify_values
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.plurals import counted
from orderlymq_raft.types import HardState, Index, Membership, NodeId, SnapshotMeta, Term
from orderlymq_runtime.wallclock import machine_ms

# More elections than a raft group has between a backup and the end of its cluster.
TERM_STEP: Final = 1 << 32
# Clocks of machines that are synchronized differ by less.
CLOCKS_DIFFER_MS: Final = 60_000
# Space that must stay free in addition to the restored files: the store writes a log and its first tables.
ROOM_MIN: Final = 256 << 20

# A broker group with retention by size may exceed it by this fraction when it is copied: messages since the last
# round.
_BETWEEN_ROUNDS: Final = 16

_INCOMING: Final = "restore-in"
_TAKEN: Final = ("store", "store.new", "store.old", "identity.json")
_CURRENT: Final = re.compile(rb"MANIFEST-[0-9]{1,20}\n")
# The errors that damaged or forged rows may cause when the tables are read and their invariants are checked.
NONSENSE: Final = (
    StoreError,
    *UNREADABLE,
    AssertionError,
    KeyError,
    ValueError,
    TypeError,
    IndexError,
)


@dataclass(frozen=True, slots=True)
class Target:
    """The replica to be made.

    Its directory, its identity, the members of its group, all broker groups, and how many bytes it keeps, if
    limited.
    """

    data_dir: Path
    identity: Identity
    voters: frozenset[int]
    groups: frozenset[str]
    retention_size: int | None = None


def restore(storage: Storage, part: Part, target: Target) -> None:
    """Make the replica *target* from *part*.

    Raises:
        TargetRefused: the directory has a replica or too little room, or the replica would keep only part of
            the messages.
        DirectoryInUse: a replica runs on the directory, or another restore.
        BackupDamaged: the stored data differs from what was backed up; the directory has nothing but a lock file.
        StorageFailed: the backup cannot be read now.
    """
    with hold(target.data_dir):
        taken = [name for name in _TAKEN if (target.data_dir / name).exists()]
        if taken:
            raise TargetRefused(
                f"{target.data_dir} holds a replica ({', '.join(taken)}); a backup can be "
                "restored only into an empty directory"
            )
        with _fetched(storage, part, target.data_dir / _INCOMING) as directory:
            verify_part(directory, part)
            _adopt(directory, part, target)
            put_in_place(directory, target.data_dir)


def refuse_early(backup: Backup, wall_ms: int) -> None:
    """Refuse a restore at *wall_ms* if that is before the backup, because retention would count ages from then.

    Raises:
        TargetRefused: the clock of this machine is wrong.
    """
    # The times come from several machines. A clock that was ahead does not count.
    written_ms = min(backup.ended_ms, *(part.taken_ms for part in backup.parts))
    if wall_ms < written_ms - CLOCKS_DIFFER_MS:
        raise TargetRefused(
            f"the clock of this machine is {counted((written_ms - wall_ms) // 1000, 'second')} "
            f"behind the time of backup {backup.id}; set the clock, then restore: retention "
            "counts ages from the restore"
        )


def is_restored(part: Part, target: Target) -> bool:
    """Return whether *target* was made from *part* and has not changed since.

    A restore that was killed when its store was complete, but not in its final place, is completed first.

    Raises:
        DirectoryInUse: a replica runs on the directory, or another restore.
        StoreError: the data in it cannot be read.
    """
    with hold(target.data_dir):
        return _is_restored(part, target)


def _is_restored(part: Part, target: Target) -> bool:
    store_folder = target.data_dir / "store"
    if not store_folder.exists():
        finish_import(target.data_dir)
    if not store_folder.exists():
        return False
    store = RocksStore(store_folder, read_only=True)
    try:
        applied = store.get(Family.META, layout.META_APPLIED)
        if applied is None or read_identity(store, store_folder) != target.identity:
            return False
        found = layout.decode_applied(applied)
    finally:
        store.close()
    return (found.index, found.term) == (part.index, part.term + TERM_STEP)


def verify(storage: Storage, backup: Backup, workdir: Path) -> None:
    """Read all of a backup and open each store, below *workdir*, which needs room for the largest broker group.

    A damaged file is removed, so that the next backup stores it again.

    Raises:
        BackupDamaged, StorageFailed, TargetRefused: as `restore`.
    """
    try:
        for part in backup.parts:
            with _fetched(storage, part, workdir / _INCOMING) as directory:
                verify_part(directory, part)
    except FileDamaged as error:
        raise FileDamaged(catalogue.remove_damaged(storage, backup)) from error


@contextmanager
def _fetched(storage: Storage, part: Part, directory: Path) -> Iterator[Path]:
    """Yield *directory* with the files of *part*, each checked against its digest; it is deleted at the end."""
    shutil.rmtree(directory, ignore_errors=True)
    free = shutil.disk_usage(directory.parent).free
    if free < part.size_bytes + ROOM_MIN:
        raise TargetRefused(
            f"{directory.parent} has {free} bytes free; {part.group} needs "
            f"{part.size_bytes + ROOM_MIN}"
        )
    directory.mkdir()
    try:
        for file in part.files:
            _fetch(storage, file, directory / file.name)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _fetch(storage: Storage, file: BackupFile, path: Path) -> None:
    digest = hashlib.sha256()
    size = 0
    try:
        with path.open("xb") as out:
            for data in storage.read(blob_key(file.sha256)):
                size += len(data)
                if size > file.size:
                    break
                digest.update(data)
                out.write(data)
    except KeyError:
        raise FileDamaged(
            f"{storage}: the bytes of {file.name} ({file.sha256}) are missing"
        ) from None
    except OSError as error:
        raise failed(path.parent, error) from error
    if size != file.size or digest.hexdigest() != file.sha256:
        raise FileDamaged(
            f"{storage}: the bytes of {file.name} ({file.sha256}) differ from what was written"
        )


def verify_part(directory: Path, part: Part) -> None:
    """Check that the fetched files are the store that *part* describes.

    Raises:
        BackupDamaged: they are not.
    """
    current = (directory / "CURRENT").read_bytes()
    if not _CURRENT.fullmatch(current) or current[:-1].decode() not in {f.name for f in part.files}:
        raise BackupDamaged(f"{part.group}: CURRENT names a file that is not in the backup")
    try:
        verify_values(directory)
        store = RocksStore(directory, read_only=True)
        try:
            identity = read_identity(store, directory)
            applied = layout.decode_applied(store.get(Family.META, layout.META_APPLIED))
            state = BrokerState(store)
            state.check_invariants()
        finally:
            store.close()
    except NONSENSE as error:
        raise BackupDamaged(f"{part.group}: the store is damaged: {error}") from error
    if identity != Identity(part.cluster, part.group, part.node):
        raise BackupDamaged(f"{part.group}: the store belongs to {identity}")
    if (applied.index, applied.term, applied.physical_end) != (
        part.index,
        part.term,
        part.physical_end,
    ):
        raise BackupDamaged(
            f"{part.group}: the store is at {applied}, but the manifest says entry {part.index}"
        )


def _adopt(directory: Path, part: Part, target: Target) -> None:
    """Make the store in *directory* the target's own."""
    store = RocksStore(directory)
    try:
        state = BrokerState(store)
        _refuse_loss(state, part, target)
        writes = TableWrites()
        restored_ms = machine_ms()
        fence(state, writes, taken_ms=part.taken_ms, restored_ms=restored_ms)
        state.check_invariants()
        batch = Batch()
        writes.flush(batch)
        term = Term(part.term + TERM_STEP)
        voters = frozenset(NodeId(node) for node in target.voters)
        log = RaftLogStore(store, 0)
        meta = SnapshotMeta(Index(part.index), term, Membership(voters))
        log.install(batch, meta, physical_end=part.physical_end)
        log.set_hard_state(batch, HardState(term, None, meta.index))
        applied = layout.decode_applied(store.get(Family.META, layout.META_APPLIED))
        batch.put(
            Family.META, layout.META_APPLIED, layout.encode_applied(replace(applied, term=term))
        )
        # Keep nothing of the former replica; for example, it has not promised to stick to a leader of this
        # cluster.
        for key in sorted(layout.META_OF_REPLICA | {layout.META_PEERS}):
            batch.delete(Family.META, key)
        write_identity(batch, target.identity)
        note_groups(batch, target.groups)
        store.write(batch, sync=True)
        store.flush()
    except NONSENSE as error:
        raise BackupDamaged(f"{part.group}: the state cannot be restored: {error}") from error
    finally:
        store.close()


def _refuse_loss(state: BrokerState, part: Part, target: Target) -> None:
    """Refuse a backup whose oldest messages retention would delete as soon as the broker group has a leader."""
    size, kept = state.physical_end - state.floor, target.retention_size
    if kept is not None and size > kept + kept // _BETWEEN_ROUNDS:
        raise TargetRefused(
            f"{part.group} has {size} bytes of messages, but {target.identity.group} keeps only "
            f"the newest {kept}: set its storage.retention_size so that it keeps {size} (in a "
            "Cluster set spec.retention.size, or spec.storage.size, of which three fifths are "
            "kept), and restore again"
        )
