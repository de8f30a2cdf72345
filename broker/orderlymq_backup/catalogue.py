"""
The backups of one place: which exist, which files each needs, and which files no backup needs any more.

The rule: a backup exists if its manifest can be read, so manifests are written last and deleted first. No
process deletes data while a backup is being made, because a new backup relies on the data of earlier ones.
Both first write a mark and then look for marks of the other kind, so at least one of them sees the other: a
deletion refuses, a creation waits. A reader of a backup writes a mark and then looks for the manifest. A
deletion of that backup looks for such marks before and after it deletes manifests.
"""

import hashlib
import logging
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from orderlymq_backup.errors import (
    BackupDamaged,
    BackupError,
    BackupNotFound,
    BackupNotNamed,
    PlaceBusy,
)
from orderlymq_backup.manifest import (
    MANIFEST_SIZE_MAX,
    Backup,
    blob_key,
    decode,
    encode,
    id_of,
    is_blob,
    manifest_key,
)
from orderlymq_backup.storage import Storage, failed, make_folder
from orderlymq_protocol.plurals import counted
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

_SPOOLED: Final = "orderlymq-backup-"
# How many of the newest manifests are searched for a label or for known files; these list most files of older
# ones, too.
MANIFESTS_READ_MAX: Final = 10
RUNNING: Final = "running"
# An older mark belongs to a program that was killed.
RUNNING_MAX_MS: Final = 24 * 3600 * 1000
# Programs that take longer write another mark at this interval.
RENEW_EVERY_S: Final = 3600.0
READING: Final = "reading"
# A restore that was killed, as pods are, keeps its backup for some renewals, not for a day.
READING_MAX_MS: Final = 4 * 3600 * 1000
DELETING: Final = "deleting"
# A deletion stops itself after this time, so that creations need not wait for a day if one was killed.
DELETION_MAX_MS: Final = 3600 * 1000
# The mark of a deletion counts for twice as long, because clocks differ and the last request may take long.
DELETING_MAX_MS: Final = 2 * DELETION_MAX_MS


def ids(storage: Storage) -> list[str]:
    """Return the ids of all backups, oldest first."""
    found = (id_of(key) for key, _ in storage.list("backups"))
    return sorted(each for each in found if each is not None)


def read(storage: Storage, backup_id: str | None) -> Backup:
    """Return a backup; without an id the newest one, if all backups are of one cluster.

    Raises:
        BackupNotFound: there is none.
        BackupNotNamed: there are several clusters.
        BackupDamaged: its manifest differs from what was written.
    """
    if backup_id is None:
        return _newest(storage)
    key = manifest_key(backup_id)
    if id_of(key) is None:
        raise BackupNotFound(
            f"{backup_id[:64]!r} is not the id of a backup; `orderlymq backup list` shows the ids"
        )
    data = bytearray()
    try:
        for piece in storage.read(key):
            data += piece
            if len(data) > MANIFEST_SIZE_MAX:
                break  # `decode` refuses it
    except KeyError:
        raise BackupNotFound(
            f"{storage} does not hold backup {backup_id}; `orderlymq backup list` shows the backups"
        ) from None
    return decode(bytes(data), backup_id)


def _newest(storage: Storage) -> Backup:
    known = ids(storage)
    if not known:
        raise BackupNotFound(
            f"{storage} holds no backup; check the place, or make a backup with `orderlymq backup create`"
        )
    newest = read(storage, known[-1])
    clusters = {newest.cluster}
    for backup_id in known[:-1]:
        with suppress(BackupDamaged, BackupNotFound):
            clusters.add(read(storage, backup_id).cluster)
    if len(clusters) > 1:
        raise BackupNotNamed(
            f"{storage} holds backups of the clusters {', '.join(sorted(clusters))}: choose one "
            "by its id, which `orderlymq backup list` shows"
        )
    return newest


def newest_of(storage: Storage, cluster: str) -> Backup | None:
    """Return the newest backup of *cluster* that is readable and not salvaged, None if there is none."""
    for backup_id in reversed(ids(storage)):
        with suppress(BackupDamaged, BackupNotFound):
            found = read(storage, backup_id)
            if found.cluster == cluster and not found.salvaged:
                return found
    return None


def labelled(storage: Storage, label: str) -> Backup | None:
    """Return the newest backup with this *label*, None if none of the newest has it."""
    for backup_id in reversed(ids(storage)[-MANIFESTS_READ_MAX:]):
        with suppress(BackupDamaged, BackupNotFound):
            found = read(storage, backup_id)
            if found.label == label:
                return found
    return None


def write(storage: Storage, backup: Backup) -> None:
    """Write the manifest of a backup whose bytes are all stored, so that it counts.

    Raises:
        BackupError: some bytes are missing, because another program has deleted them.
        BackupDamaged: the manifest would not be readable, because it is too large or has invalid values.
    """
    data = encode(backup)
    decode(data, backup.id)
    sizes = dict(storage.list("blobs"))
    for part in backup.parts:
        for file in part.files:
            if sizes.get(blob_key(file.sha256)) != file.size:
                raise BackupError(
                    f"{storage}: the bytes of {file.name} have been deleted meanwhile; make the "
                    "backup again"
                )
    put_text(storage, manifest_key(backup.id), data)


def remove_damaged(storage: Storage, backup: Backup) -> str:
    """Remove the damaged files of *backup*, so that no new backup relies on them; return the text to report."""
    files = {file.sha256: file for part in backup.parts for file in part.files}
    # Read again, because a file may have been misread, or stored again since.
    found = {digest: _digest(storage, digest) for digest in files}
    bad = {digest: file for digest, file in files.items() if found[digest] != digest}
    if not bad:
        return (
            f"{storage}: a file of backup {backup.id} could not be read as it was written, but "
            "now all files can be read; verify the backup again"
        )
    outcome = "the damaged ones were removed, so that no new backup relies on them"
    try:
        _remove_still_damaged(storage, [each for each in bad if found[each]], backup.id)
    except PlaceBusy as error:
        outcome = (
            f"none was removed, because a running backup may be storing it again: {error}. Then "
            "verify this backup again"
        )
    except (BackupError, OSError) as error:
        outcome = f"must be removed before the next backup, but the removal failed ({error})"
    names = ", ".join(f"{file.name} ({blob_key(digest)})" for digest, file in bad.items())
    return (
        f"{storage}: {counted(len(bad), 'file')} damaged or missing, and {outcome}. To repair it, "
        "make a new backup, which stores again what the cluster still has. Then verify the "
        "backups that need these files, and delete those that are still damaged. The files: "
        f"{names}. The backups: {', '.join(_users(storage, bad)) or 'none'}"
    )


def _remove_still_damaged(storage: Storage, digests: Collection[str], own_id: str) -> None:
    """Remove files with wrong bytes, each right after reading it, while no backup but *own_id* is being made."""
    if not digests:
        return
    wall_ms = machine_ms()
    with _deleting(storage, wall_ms, own_id):
        for digest in digests:
            if _digest(storage, digest) not in {digest, None}:
                _refuse_late(storage, wall_ms)
                storage.delete(blob_key(digest))


def _digest(storage: Storage, sha256: str) -> str | None:
    """Return the digest of the bytes that are stored as *sha256* now, None if there are none."""
    digest = hashlib.sha256()
    with suppress(KeyError):
        for data in storage.read(blob_key(sha256)):
            digest.update(data)
        return digest.hexdigest()
    return None


def _users(storage: Storage, digests: Collection[str]) -> Iterator[str]:
    for backup_id in ids(storage):
        with suppress(BackupDamaged, BackupNotFound):
            parts = read(storage, backup_id).parts
            if any(file.sha256 in digests for part in parts for file in part.files):
                yield backup_id


def put_text(storage: Storage, key: str, data: bytes) -> None:
    """Store *data* under *key*."""
    with spooled(storage) as folder:
        path = folder / "text"
        path.write_bytes(data)
        storage.put(key, path)


@contextmanager
def spooled(storage: Storage) -> Iterator[Path]:
    """Yield a folder in which files are prepared.

    Raises:
        StorageFailed: the folder cannot be used, or the block raised an OSError.
    """
    place = storage.spool or tempfile.gettempdir()
    try:
        if storage.spool is not None:
            make_folder(storage.spool)
        with tempfile.TemporaryDirectory(dir=storage.spool, prefix=_SPOOLED) as name:
            yield Path(name)
    except OSError as error:
        raise failed(place, error) from error


def new_id(wall_ms: int) -> str:
    """Return an id that sorts by time."""
    return f"{_stamp(wall_ms)}-{secrets.token_hex(4)}"


def next_id(storage: Storage, wall_ms: int) -> str:
    """Return an id after those of all backups there, so that the newest one is the last made, regardless of clocks.

    Raises:
        BackupError: the id of a manifest is not a time.
    """
    known = ids(storage)
    if not known:
        return new_id(wall_ms)
    try:
        return new_id(max(wall_ms, _ms_of(known[-1]) + 1))
    except (ValueError, OverflowError) as error:
        raise BackupError(
            f"{storage}: the id of backup {known[-1]} is not a time, so later backups could not "
            "be ordered after it; delete it with `orderlymq backup delete`"
        ) from error


def _stamp(wall_ms: int) -> str:
    moment = datetime.fromtimestamp(wall_ms / 1000, UTC)
    return f"{moment:%Y%m%dT%H%M%S}{wall_ms % 1000:03}Z"


def _ms_of(mark_id: str) -> int:
    moment = datetime.strptime(mark_id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC)
    return int(moment.timestamp()) * 1000 + int(mark_id[15:18])


def _own(mark_id: str) -> str:
    """Return the common part of all marks of one program."""
    return mark_id.rpartition("-")[2]


@contextmanager
def running(
    storage: Storage, backup_id: str, began_ms: int, every_s: float = RENEW_EVERY_S
) -> Iterator[Callable[[], None]]:
    """Keep deletions away while a backup is made; the caller then looks for a `deletion` that has begun before.

    The mark counts from *began_ms*, because the id may be ahead of the clock (see `next_id`). The caller
    calls the yielded function before the backup counts.

    Raises:
        BackupError: from that function, if the mark could not be renewed and has expired, so that others may delete.
    """
    mark_id = f"{_stamp(began_ms)}-{_own(backup_id)}"
    with _marked(storage, RUNNING, mark_id, every_s=every_s) as mark:

        def refuse_late() -> None:
            if machine_ms() - mark.left_ms > RUNNING_MAX_MS:
                raise BackupError(
                    f"{storage}: the mark of backup {backup_id} could not be renewed for a day; "
                    "make the backup again"
                )

        yield refuse_late


@contextmanager
def reading(storage: Storage, backup_id: str | None) -> Iterator[Backup]:
    """Yield a backup, as `read` does, and protect it from deletion meanwhile, if the place can be written to."""
    found = read(storage, backup_id)
    mark = ExitStack()
    with suppress(BackupError, OSError):
        mark.enter_context(_marked(storage, READING, new_id(machine_ms()), f".{found.id}"))
    with mark:
        yield read(storage, found.id)


@contextmanager
def _deleting(storage: Storage, wall_ms: int, own_id: str | None = None) -> Iterator[None]:
    with _marked(storage, DELETING, new_id(wall_ms)):
        _refuse_running(storage, wall_ms, own_id)
        yield


@dataclass(slots=True)
class _Mark:
    """The keys of one mark, and the wall time of the newest."""

    left_ms: int
    keys: list[str] = field(default_factory=list)


@contextmanager
def _marked(
    storage: Storage, folder: str, mark_id: str, about: str = "", every_s: float = RENEW_EVERY_S
) -> Iterator[_Mark]:
    """Write a mark, and another one every *every_s*, because each counts for a limited time; delete all at the end.

    The later marks differ from *mark_id* only in the time. *about* follows it. The result of the block counts
    whether or not a mark can be deleted.
    """
    mark = _Mark(_ms_of(mark_id), [f"{folder}/{mark_id}{about}"])
    put_text(storage, mark.keys[0], b"")
    over = threading.Event()

    def renew() -> None:
        while not over.wait(every_s):
            wall_ms = machine_ms()
            mark.keys.append(f"{folder}/{_stamp(wall_ms)}-{_own(mark_id)}{about}")
            # If the place does not answer now, the next mark counts.
            with suppress(BackupError, OSError):
                put_text(storage, mark.keys[-1], b"")
                mark.left_ms = wall_ms

    renewal = threading.Thread(target=renew, name="renew a mark", daemon=True)
    renewal.start()
    try:
        yield mark
    finally:
        over.set()
        renewal.join()
        for key in mark.keys:
            try:
                storage.delete(key)
            except (BackupError, OSError) as error:  # the mark expires by itself
                _log.warning(
                    "%s: the mark %s could not be deleted and stays until it expires: %s",
                    storage,
                    key,
                    error,
                )


def deletion(storage: Storage, wall_ms: int) -> str | None:
    """Return the mark of a deletion in progress, None if there is none."""
    return next(_marks(storage, DELETING, wall_ms, DELETING_MAX_MS), None)


def _refuse_running(storage: Storage, wall_ms: int, own_id: str | None = None) -> None:
    for backup_id in _marks(storage, RUNNING, wall_ms, RUNNING_MAX_MS):
        if own_id is None or _own(backup_id) != _own(own_id):
            raise PlaceBusy(
                f"backup {backup_id} is being made in {storage}; try again when it is complete"
            )


def _refuse_readers(storage: Storage, doomed: Collection[str], wall_ms: int) -> None:
    for mark in _marks(storage, READING, wall_ms, READING_MAX_MS):
        backup_id = mark.partition(".")[2]
        if backup_id in doomed:
            raise PlaceBusy(
                f"backup {backup_id} is being restored or verified from {storage}; try again when "
                "that has ended"
            )


def _refuse_late(storage: Storage, began_ms: int) -> None:
    if machine_ms() - began_ms > DELETION_MAX_MS:
        raise BackupError(
            f"the deletion in {storage} took longer than {DELETION_MAX_MS // 60_000} minutes; run "
            "it again to continue"
        )


def _marks(storage: Storage, folder: str, wall_ms: int, max_ms: int) -> Iterator[str]:
    """Yield the marks that count at *wall_ms*, each for *max_ms*; a mark further ahead comes from a wrong clock."""
    oldest, newest = new_id(max(0, wall_ms - max_ms)), new_id(wall_ms + max_ms)
    for key, _ in storage.list(folder):
        mark = key.rpartition("/")[2]
        if id_of(manifest_key(mark.partition(".")[0])) is not None and oldest < mark < newest:
            yield mark


def prune(storage: Storage, keep: int, wall_ms: int, tell: Callable[[str], None]) -> list[str]:
    """Delete all but the newest *keep* backups of each cluster, and unneeded bytes; return the deleted ids.

    A salvaged backup may lack messages and broker groups. It is not counted, and is deleted if it is older
    than all kept ones.

    Raises:
        PlaceBusy: a backup is being made, or was made meanwhile.
        BackupDamaged: a backup cannot be read, so that its cluster and the files that it needs are unknown.
        BackupError: the deletion took too long.
    """
    with _deleting(storage, wall_ms):
        cluster_of: dict[str, str] = {}
        counted_of: dict[str, list[str]] = {}
        for each in map(partial(_read_to_prune, storage), ids(storage)):
            cluster_of[each.id] = each.cluster
            if not each.salvaged:
                counted_of.setdefault(each.cluster, []).append(each.id)
        oldest = {cluster: own[-keep] for cluster, own in counted_of.items() if len(own) >= keep}
        doomed = [each for each, cluster in cluster_of.items() if each < oldest.get(cluster, "")]
        kept = [each for each in cluster_of if each not in doomed]
        return _delete(storage, doomed, kept, wall_ms, tell)


def _read_to_prune(storage: Storage, backup_id: str) -> Backup:
    try:
        return read(storage, backup_id)
    except BackupDamaged as error:
        raise BackupDamaged(
            f"{error}. The cluster of this backup is unknown, so no backup is deleted: delete "
            "this one with `orderlymq backup delete` first"
        ) from error


def delete(storage: Storage, backup_id: str, wall_ms: int, tell: Callable[[str], None]) -> bool:
    """Delete one backup and the bytes that only it needs; return whether it existed.

    If another backup cannot be read, the bytes that it needs are unknown, so all bytes stay.

    Raises:
        PlaceBusy, BackupError: as `prune`.
    """
    with _deleting(storage, wall_ms):
        known = ids(storage)
        doomed = [each for each in known if each == backup_id]
        kept = [each for each in known if each != backup_id]
        return bool(_delete(storage, doomed, kept, wall_ms, tell))


def _delete(
    storage: Storage,
    doomed: Sequence[str],
    kept: Sequence[str],
    wall_ms: int,
    tell: Callable[[str], None],
) -> list[str]:
    needed: set[str] = set()
    unreadable: list[str] = []
    for each in kept:
        try:
            parts = read(storage, each).parts
        except BackupDamaged:
            unreadable.append(each)
        else:
            needed.update(blob_key(file.sha256) for part in parts for file in part.files)
    _refuse_readers(storage, doomed, wall_ms)
    for each in doomed:
        storage.delete(manifest_key(each))
        tell(f"deleted backup {each}")
    # Other programs may keep files below the same folder.
    present = [key for key, _ in storage.list("blobs") if is_blob(key)]
    # A backup by these rules waits. One that does not follow them, as of an older release, is still noticed here.
    _refuse_running(storage, wall_ms)
    _refuse_readers(storage, doomed, wall_ms)
    if new := {*ids(storage)} - {*doomed, *kept}:
        raise PlaceBusy(f"backup {min(new)} was made in {storage} meanwhile; try again")
    if unreadable:
        damaged = ", ".join(unreadable)
        tell(
            f"no other data is deleted, because the files that {damaged} needs are unknown; "
            "delete it with `orderlymq backup delete`, too"
        )
        present = []
    for key in present:
        if key not in needed:
            _refuse_late(storage, wall_ms)
            storage.delete(key)
    _remove_spooled(storage, (wall_ms - RUNNING_MAX_MS) / 1000)
    return list(doomed)


def _remove_spooled(storage: Storage, before_s: float) -> None:
    """Remove files that killed programs had begun to prepare and in which nothing was written since *before_s*."""
    if storage.spool is None:
        return
    for folder in storage.spool.glob(f"{_SPOOLED}*"):
        # Other programs that make or delete backups remove theirs meanwhile.
        with suppress(FileNotFoundError):
            if all(path.stat().st_mtime < before_s for path in (folder, *folder.rglob("*"))):
                shutil.rmtree(folder, ignore_errors=True)
