"""
Makes a backup from the disks of stopped replicas, for a broker group that has lost its majority.

The rule: the disks are only read. Of several survivors of a broker group the one with the newest log is used.
A survivor that had lost its disk is used only if there is no other. One whose log ends before what another
one proves is refused: it belongs to a group that began empty again. All of its log is applied, so that no
acknowledged entry on this disk is left out. The contents of the lost disks are unknown. So a salvaged backup
may lack acknowledged messages, may have some that were never acknowledged, and reports how many entries are
certain.
"""

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orderlymq import __version__
from orderlymq_backup import catalogue
from orderlymq_backup.errors import (
    BackupDamaged,
    BackupError,
    GroupsDiffer,
    PlaceBusy,
    TargetRefused,
)
from orderlymq_backup.manifest import Backup, BackupFile, Part, blob_key
from orderlymq_backup.restore import NONSENSE, verify_part
from orderlymq_backup.storage import Storage
from orderlymq_broker.doctor.log import reading_copy
from orderlymq_broker.replication.recovery import Recovery
from orderlymq_broker.server.backups import CopiedFile, copy_files
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.statemachine import StateMachine
from orderlymq_broker.store.entry import split_entry
from orderlymq_broker.store.kv import Batch
from orderlymq_broker.store.raftlog import RaftLogStore
from orderlymq_broker.store.replica import Identity, read_identity
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import effective_store
from orderlymq_raft.types import EntryKind, Index
from orderlymq_runtime.wallclock import machine_ms

# The size of the entries that are applied in one write.
_STEP_BYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Survivor:
    """A stopped replica: its identity, the end of its log, and the last entry that it knows to be committed.

    *recovering* means that it had lost its disk and has not caught up with the other replicas since.
    """

    data_dir: Path
    identity: Identity
    term: int
    last: int
    commit: int
    recovering: bool


def salvage(
    storage: Storage,
    directories: Iterable[Path],
    tell: Callable[[str], None],
    groups: Collection[str] | None = None,
) -> Backup:
    """Make a backup from the directories of stopped replicas, at least one of each broker group.

    *groups* are the broker groups of the cluster; without them, all groups of its newest backup must be
    there.

    Raises:
        GroupsDiffer: the directories do not match the expected broker groups.
        BackupError: they belong to several clusters, or to two histories of a broker group, or one has no replica.
        PlaceBusy: backups are being deleted in the same place.
        StoreError: a directory cannot be read, or a process uses it.
    """
    began_ms = machine_ms()
    backup_id = catalogue.next_id(storage, began_ms)
    of_group: dict[str, list[Survivor]] = {}
    for survivor in map(look, directories):
        of_group.setdefault(survivor.identity.group, []).append(survivor)
    best = {group: _newest(survivors) for group, survivors in of_group.items()}
    clusters = {each.identity.cluster for each in best.values()}
    if len(clusters) != 1:
        raise BackupError(
            f"the directories belong to the clusters {', '.join(sorted(clusters))}; name "
            "directories of one cluster"
        )
    (cluster,) = clusters
    _refuse_other(storage, cluster, best, groups)
    with catalogue.running(storage, backup_id, began_ms) as refuse_late:
        if catalogue.deletion(storage, began_ms) is not None:
            raise PlaceBusy(
                f"backups are being deleted in {storage}; try again when that has ended"
            )
        parts = [_part(storage, best[group], tell) for group in sorted(best)]
        backup = Backup(
            id=backup_id,
            cluster=cluster,
            began_ms=began_ms,
            ended_ms=machine_ms(),
            release=__version__,
            new_bytes=sum(part.size_bytes for part in parts),
            salvaged=True,
            parts=tuple(parts),
        )
        refuse_late()
        catalogue.write(storage, backup)
    return backup


def _refuse_other(
    storage: Storage, cluster: str, found: Collection[str], expected: Collection[str] | None
) -> None:
    if expected is not None:
        differing, reason = set(found) ^ set(expected), "--groups and the directories differ in"
    else:
        newest = catalogue.newest_of(storage, cluster)
        if newest is None:
            return
        differing = {part.group for part in newest.parts} - set(found)
        reason = f"there is no directory of a broker group that is in backup {newest.id}:"
    if differing:
        raise GroupsDiffer(
            f"{reason} {', '.join(sorted(differing))}. Name a directory of each broker group. If "
            f"others were removed on purpose, add --groups {','.join(sorted(found))}"
        )


def look(data_dir: Path) -> Survivor:
    """Return the state of a stopped replica without changing it; raises as `salvage`."""
    with reading_copy(data_dir) as store:
        identity = read_identity(store, data_dir)
        log = RaftLogStore(store, 0)
        last = log.last_index()
        if identity is None or not last:
            raise BackupError(f"{data_dir} has no log of a replica; name another directory")
        return Survivor(
            data_dir,
            identity,
            log.term(last),
            last,
            log.initial_state()[0].commit,
            Recovery(store).active,
        )


def _newest(survivors: list[Survivor]) -> Survivor:
    """Return the survivor of a broker group with the newest log."""
    newest = max(survivors, key=lambda each: (not each.recovering, each.term, each.last))
    proof = max(survivors, key=lambda each: each.commit)
    if newest.last < proof.commit:
        raise BackupError(
            f"{newest.data_dir} has the newest log, which ends at entry {newest.last}, but "
            f"{proof.data_dir} proves that entries up to {proof.commit} were committed: one of "
            "them started empty when the disks of a majority were replaced. Look at both with "
            "`orderlymq doctor`, and name only directories of one history"
        )
    return newest


def _part(storage: Storage, survivor: Survivor, tell: Callable[[str], None]) -> Part:
    identity = survivor.identity
    tell(
        f"{identity.group}: saves the entries up to {survivor.last} of node {identity.node_id}, "
        f"whose disk proves that those up to {survivor.commit} were committed; acknowledged "
        "messages that only lost disks had are missing"
    )
    with catalogue.spooled(storage) as folder:
        source, copy = effective_store(survivor.data_dir), folder / "store"
        if shutil.disk_usage(folder).free < 2 * sum(
            each.stat().st_size for each in source.iterdir()
        ):
            raise TargetRefused(
                f"{folder} has no space for twice the files of {source}; free some space first"
            )
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("LOG*", "LOCK"))
        try:
            store = RocksStore(copy)
            try:
                _apply_all(store)
                manifest, files = copy_files(store, folder / "copy")
            finally:
                store.close()
            part = Part(
                cluster=identity.cluster,
                group=identity.group,
                node=identity.node_id,
                index=manifest.index,
                term=manifest.term,
                physical_end=manifest.physical_end,
                taken_ms=machine_ms(),
                files=tuple(_described(folder / "copy", file) for file in files),
            )
            # Verify as a restore does: applying the log does not notice every damaged value, but the backup could
            # not be restored.
            verify_part(folder / "copy", part)
        except (BackupDamaged, *NONSENSE) as error:
            reason = (
                str(error)
                .replace(str(folder / "copy"), str(source))
                .replace(str(copy), str(source))
            )
            raise BackupError(
                f"{survivor.data_dir} is damaged ({reason}); run `orderlymq doctor` on it, and name another survivor"
            ) from error
        for stored in part.files:
            storage.put(blob_key(stored.sha256), folder / "copy" / stored.name)
    return part


def _apply_all(store: RocksStore) -> None:
    """Apply the log entries that the tables do not include yet."""
    log = RaftLogStore(store, 0)
    state = BrokerState(store)
    machine = StateMachine(state)
    end = log.last_index()
    while state.applied_index < end:
        batch = Batch()
        first = Index(state.applied_index + 1)
        for entry in log.entries(first, Index(end + 1), _STEP_BYTES):
            if entry.kind is EntryKind.NORMAL:
                machine.apply(entry.index, entry.term, split_entry(entry.data), batch)
            else:
                machine.apply_noop(entry.index, entry.term, batch)
        store.write(batch, sync=True)


def _described(directory: Path, file: CopiedFile) -> BackupFile:
    with (directory / file.name).open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return BackupFile(name=file.name, size=file.size, sha256=digest, tail=file.tail)
