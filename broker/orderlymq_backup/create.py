"""
Makes a backup: reads a consistent copy of each broker group and stores the data that no earlier backup has.

The rule: first all broker groups make their copies together, then the copies are read. So their positions are
close in time, no matter how much there is to read. A file whose end an earlier backup knows is not read
again. The manifest is written last. The brokers' side is ``orderlymq_broker/server/backups.py``.
"""

import asyncio
import contextlib
import hashlib
import zlib
from collections.abc import AsyncIterator, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import __version__
from orderlymq.admin.client import AdminClient
from orderlymq.connection.instance import ClientInstance
from orderlymq.errors import BrokerError, BrokerUnreachable, OrderlyMQError
from orderlymq_backup import catalogue
from orderlymq_backup.errors import (
    BackupDamaged,
    BackupError,
    BackupNotFound,
    FileDamaged,
    GroupsDiffer,
)
from orderlymq_backup.manifest import Backup, BackupFile, Part, blob_key, refuse_more
from orderlymq_backup.storage import Storage
from orderlymq_broker.server.backups import (
    BACKUP_ID,
    IDLE_MAX_S,
    PIECE_SIZE_MAX,
    UNCHANGED,
    CopiedFile,
    Copy,
    CopyLost,
)
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.decodeerrors import UNREADABLE
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.supervisor import end_tasks
from orderlymq_runtime.wallclock import machine_ms

# A broker first writes its memtables to files.
BEGIN_TIMEOUT_S: Final = 60.0
READ_TIMEOUT_S: Final = 60.0
# Pieces requested at the same time for one broker group: the next ones are requested while one is written.
PIECES_AHEAD: Final = 4
# Several times within the time that a replica waits for its reader (IDLE_MAX_S).
KEEP_EVERY_S: Final = IDLE_MAX_S / 4

# A copy is deleted when its replica loses leadership; the next leader makes another one.
TRIES_MAX: Final = 3
AGAIN_AFTER_S: Final = 1.0
# Retries for half of the time that a replica waits for its reader.
BUSY_TRIES_MAX: Final = int(IDLE_MAX_S / 2 / AGAIN_AFTER_S)

Tell = Callable[[str], None]


class GroupCopy:
    """The copy of one broker group that its replica serves; *copy* describes its contents."""

    def __init__(self, instance: ClientInstance, address: str, copy: Copy) -> None:
        self.copy = copy
        self._instance = instance
        self._address = address

    @classmethod
    async def begin(
        cls, instance: ClientInstance, group: str, address: str, backup_id: str = ""
    ) -> "GroupCopy":
        """Let the replica at *address* make a copy; a repeated request with the same *backup_id* gets the same copy.

        Raises:
            BackupError: the replica is of another broker group, or its answer cannot be read.
            OrderlyMQError: the broker refuses or does not answer.
        """
        answer = await instance.call(
            address,
            RequestCode.ORDERLYMQ_BACKUP_BEGIN,
            {BACKUP_ID: backup_id},
            timeout_s=BEGIN_TIMEOUT_S,
        )
        try:
            copy = msgspec.json.decode(answer.body, type=Copy)
        except UNREADABLE as error:
            raise BackupError(
                f"the description that {address} gave of its copy cannot be read: {error}"
            ) from error
        if copy.group != group:
            raise BackupError(
                f"{address} belongs to broker group {copy.group}, not to {group}; look at "
                "`orderlymq status`"
            )
        return cls(instance, address, copy)

    async def pieces(self, file: CopiedFile) -> AsyncIterator[bytes]:
        """Yield the bytes of a file.

        Raises:
            BackupError: a piece was damaged in transit.
            OrderlyMQError: the broker refuses or does not answer.
        """
        tasks: list[asyncio.Task[bytes]] = []
        offset = 0
        try:
            while offset < file.size or tasks:
                while offset < file.size and len(tasks) < PIECES_AHEAD:
                    size = min(PIECE_SIZE_MAX, file.size - offset)
                    tasks.append(asyncio.create_task(self._piece(file.name, offset, size)))
                    offset += size
                yield await tasks.pop(0)
        finally:
            await end_tasks(tasks)

    async def confirm(self) -> None:
        """Make sure that no topic has grown since the copy was begun; call this once all broker groups have copies.

        A topic grows on one broker group after the other, so no copy was made after a growth that another
        copy lacks.

        Raises:
            BrokerError: with the code of `CopyLost`: a topic has grown, or the replica no longer leads.
        """
        await self._piece("CURRENT", 0, 1, **{UNCHANGED: "true"})

    async def keep(self) -> None:
        """Read a byte at intervals, so that the copy stays while a large file is being stored."""
        while True:
            await asyncio.sleep(KEEP_EVERY_S)
            with contextlib.suppress(OrderlyMQError, BackupError):
                await self._piece("CURRENT", 0, 1)

    async def close(self) -> None:
        """Tell the replica that it may delete its copy; otherwise it does so after a time-out."""
        ext = {"session": self.copy.session}
        with contextlib.suppress(OrderlyMQError):
            await self._instance.call(self._address, RequestCode.ORDERLYMQ_BACKUP_END, ext)

    async def _piece(self, name: str, offset: int, size: int, **fields: str) -> bytes:
        ext = {
            **fields,
            "session": self.copy.session,
            "file": name,
            "offset": str(offset),
            "size": str(size),
        }
        answer = await self._read(ext)
        if len(answer.body) != size or str(zlib.crc32(answer.body)) != answer.ext.get("checksum"):
            raise BackupError(f"a piece of {name} was damaged in transit; make the backup again")
        return answer.body

    async def _read(self, ext: dict[str, str]) -> RemotingCommand:
        """Read, and retry while the quota of this address is used up."""
        tries = 0
        while True:
            try:
                return await self._instance.call(
                    self._address, RequestCode.ORDERLYMQ_BACKUP_READ, ext, timeout_s=READ_TIMEOUT_S
                )
            except BrokerError as error:
                tries += 1
                if error.code != ResponseCode.SYSTEM_BUSY or tries == BUSY_TRIES_MAX:
                    raise
            await asyncio.sleep(AGAIN_AFTER_S)


class _Known:
    """Files that are already stored: digests by size and end of a file; empty if *storage* is None."""

    def __init__(self, storage: Storage | None) -> None:
        self._digests: dict[tuple[int, str], str] = {}
        if storage is None:
            return
        sizes = dict(storage.list("blobs"))
        for backup_id in catalogue.ids(storage)[-catalogue.MANIFESTS_READ_MAX :]:
            # A damaged backup must not prevent a new one.
            with contextlib.suppress(BackupDamaged, BackupNotFound):
                for part in catalogue.read(storage, backup_id).parts:
                    for file in part.files:
                        if sizes.get(blob_key(file.sha256)) == file.size:
                            self._digests[file.size, file.tail] = file.sha256

    def digest_of(self, file: CopiedFile) -> str | None:
        """Return the digest of a file that need not be read, else None: only tables are recognized by their end."""
        return self._digests.get((file.size, file.tail)) if file.name.endswith(".sst") else None


async def create(
    admin: AdminClient,
    storage: Storage,
    tell: Tell = lambda _: None,
    *,
    groups: Collection[str] | None = None,
    check: Callable[[Backup], None] | None = None,
    label: str = "",
) -> Backup:
    """Make a backup of every broker group of the cluster; *tell* gets messages about the progress.

    *groups* names all broker groups. Without it, all groups of the newest backup of this cluster must be
    there. *check* verifies the stored data, in a thread, before the backup counts. If a store is damaged
    though all digests match, the damage may come from a broker, so everything is read again, once. If an
    attempt with the same *label* has already made a backup, that one is returned, because its caller may not
    have received the result.

    Raises:
        GroupsDiffer: a broker group is missing, for example because a name server has just started; the
            backup would lack it.
        BackupError: the backup could not be made, and nothing of it counts.
        OrderlyMQError: a broker refuses or does not answer.
    """
    began_ms = machine_ms()
    if label and (former := await asyncio.to_thread(catalogue.labelled, storage, label)):
        tell(f"backup {former.id} was made by an earlier attempt")
        return former
    backup_id = await asyncio.to_thread(catalogue.next_id, storage, began_ms)
    brokers = await admin.brokers()
    if not brokers:
        raise BackupError("no broker group is registered; look at `orderlymq status`")
    if groups is None:
        for cluster in (await admin.cluster_info()).cluster_addr_table:
            newest = await asyncio.to_thread(catalogue.newest_of, storage, cluster)
            if newest is not None:
                _refuse_missing(brokers, newest)
    else:
        _refuse_other(brokers, groups)
    with catalogue.running(storage, backup_id, began_ms) as refuse_late:
        await _wait_for_deletion(storage, tell)
        for source in (storage, None):
            known = await asyncio.to_thread(_Known, source)
            copies = partial(_copies, admin.instance, brokers, backup_id)
            made = await _read_all(copies, storage, known, tell)
            backup = Backup(
                id=backup_id,
                cluster=made[0][0].cluster,
                began_ms=began_ms,
                ended_ms=machine_ms(),
                release=__version__,
                new_bytes=sum(size for _, size in made),
                label=label,
                parts=tuple(part for part, _ in made),
            )
            damage = await _damage(check, backup)
            if damage is None:
                break
            tell(f"{damage}; reading everything again")
        else:
            raise BackupError(
                f"{_not_made(backup, damage)}. It was read twice: run `orderlymq doctor` on the "
                "leader's replica"
            ) from damage
        refuse_late()
        await asyncio.to_thread(catalogue.write, storage, backup)
    return backup


async def _damage(check: Callable[[Backup], None] | None, backup: Backup) -> BackupDamaged | None:
    """Return damage in files that are stored as they were read; None if there is none or *check* is None."""
    if check is None:
        return None
    try:
        await asyncio.to_thread(check, backup)
    except (BackupError, OSError) as error:
        if isinstance(error, BackupDamaged) and not isinstance(error, FileDamaged):
            return error
        raise BackupError(_not_made(backup, error)) from error
    return None


def _not_made(backup: Backup, error: Exception | None) -> str:
    return (
        f"backup {backup.id} was not made, because the stored data could not be verified: {error}"
    )


def _refuse_other(found: Collection[str], expected: Collection[str]) -> None:
    problems = [
        f"broker group {group} is not registered with the name server"
        for group in sorted(set(expected) - set(found))
    ]
    problems += [
        f"broker group {group} is registered, but not expected"
        for group in sorted(set(found) - set(expected))
    ]
    if problems:
        raise GroupsDiffer(
            f"{'; '.join(problems)}: look at `orderlymq status`, and make the backup again when "
            "exactly the expected broker groups serve"
        )


def _refuse_missing(found: Collection[str], newest: Backup) -> None:
    gone = sorted({part.group for part in newest.parts} - set(found))
    if gone:
        raise GroupsDiffer(
            f"broker group {', '.join(gone)} is in backup {newest.id}, but not registered now: "
            "look at `orderlymq status`, and make the backup again when it serves. If it was "
            f"removed on purpose, add --groups {','.join(sorted(found))}"
        )


async def _wait_for_deletion(storage: Storage, tell: Tell) -> None:
    """Wait until no deletion is in progress; none begins while this backup has its mark."""
    reported = False
    while mark := await asyncio.to_thread(catalogue.deletion, storage, machine_ms()):
        if not reported:
            tell(f"deletion {mark} is running in {storage}; waiting for its end")
            reported = True
        await asyncio.sleep(AGAIN_AFTER_S)


async def _read_all(
    copied: Callable[[], contextlib.AbstractAsyncContextManager[list[GroupCopy]]],
    storage: Storage,
    known: _Known,
    tell: Tell,
) -> list[tuple[Part, int]]:
    """Copy all broker groups and store new data; begin again with new copies if a leader changes meanwhile."""
    tries = 0
    while True:
        tries += 1
        try:
            async with copied() as copies:
                clusters = {each.copy.cluster for each in copies}
                if len(clusters) != 1:
                    raise BackupError(
                        f"the brokers belong to several clusters: {', '.join(sorted(clusters))}"
                    )
                refuse_more(sum(len(each.copy.files) for each in copies))
                tell(
                    f"copied {', '.join(each.copy.group for each in copies)}; reading the new data"
                )
                return await _store_all(copies, storage, known, tell)
        except (BrokerUnreachable, BrokerError) as error:
            if tries == TRIES_MAX or not _lost(error):
                raise
            tell(f"{error}; copying again")
            await asyncio.sleep(AGAIN_AFTER_S)


def _lost(error: OrderlyMQError) -> bool:
    """Return whether the leader changed or its copy is gone, so that a new copy may succeed; a refusal is final."""
    return not isinstance(error, BrokerError) or error.code == CopyLost.code


@contextlib.asynccontextmanager
async def _copies(
    instance: ClientInstance, brokers: dict[str, str], backup_id: str
) -> AsyncIterator[list[GroupCopy]]:
    """Let all broker groups make their copies at the same time; delete the copies at the end."""
    begun = await asyncio.gather(
        *(GroupCopy.begin(instance, group, brokers[group], backup_id) for group in sorted(brokers)),
        return_exceptions=True,
    )
    copies = [each for each in begun if isinstance(each, GroupCopy)]
    keepers = [asyncio.create_task(each.keep(), name="keep a copy") for each in copies]
    try:
        for each in begun:
            if isinstance(each, BaseException):
                raise each
        await asyncio.gather(*(each.confirm() for each in copies))
        yield copies
    finally:
        await end_tasks(keepers)
        await asyncio.gather(*(each.close() for each in copies))


async def _store_all(
    copies: list[GroupCopy], storage: Storage, known: _Known, tell: Tell
) -> list[tuple[Part, int]]:
    """Read all broker groups at the same time; each limits its own rate."""
    tasks = [asyncio.create_task(_store(each, storage, known, tell)) for each in copies]
    try:
        return await asyncio.gather(*tasks)
    finally:
        await end_tasks(tasks)


async def _store(group: GroupCopy, storage: Storage, known: _Known, tell: Tell) -> tuple[Part, int]:
    """Store the new data of one broker group; return its part and the number of new bytes."""
    files: list[BackupFile] = []
    new_bytes = 0
    copy = group.copy
    for file in copy.files:
        digest = known.digest_of(file)
        if digest is None:
            digest = await _store_file(group, file, storage)
            new_bytes += file.size
        files.append(BackupFile(name=file.name, size=file.size, sha256=digest, tail=file.tail))
    tell(f"{copy.group}: entry {copy.index}, {new_bytes} new bytes of {sum(f.size for f in files)}")
    part = Part(
        cluster=copy.cluster,
        group=copy.group,
        node=copy.node,
        index=copy.index,
        term=copy.term,
        physical_end=copy.physical_end,
        taken_ms=copy.taken_ms,
        files=tuple(files),
    )
    return part, new_bytes


async def _store_file(group: GroupCopy, file: CopiedFile, storage: Storage) -> str:
    digest = hashlib.sha256()
    with catalogue.spooled(storage) as folder:
        path: Path = folder / "blob"
        with path.open("wb") as out:
            async for data in group.pieces(file):
                await asyncio.to_thread(_add, out.write, digest.update, data)
        await asyncio.to_thread(storage.put, blob_key(digest.hexdigest()), path)
    return digest.hexdigest()


def _add(write: Callable[[bytes], object], update: Callable[[bytes], object], data: bytes) -> None:
    write(data)
    update(data)
