"""
Requests 20520 to 20522: an administrator reads the files of a consistent copy of this replica.

The copy is a checkpoint of the store: hard links to files that never change, at one applied index. The rules: there
is one copy at a time. The reader gets pieces of a limited size at a limited rate, so that the group's clients are
served meanwhile. The links hold disk space, so a table file is deleted once it was read. The copy is deleted when it
is no longer read, or before sends would be refused. Only the leader makes a copy, because it knows that everything
acknowledged before the request is in it. The package ``orderlymq_backup`` stores the files.
"""

import asyncio
import hashlib
import os
import re
import secrets
import shutil
import zlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from orderlymq_broker.core.capacity import is_nearly_full
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.server.router import ClientConnection, Router
from orderlymq_broker.settings import BrokerSettings
from orderlymq_broker.state.broker import BrokerState
from orderlymq_broker.state.integerranges import Position
from orderlymq_broker.state.topics.expansionrecords import ExpansionPhase
from orderlymq_broker.store.kv import StoreError
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import FILES_MAX, Manifest, export_snapshot
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.integers import read_integer
from orderlymq_runtime.process.supervisor import Supervisor, finish_in_thread
from orderlymq_runtime.wallclock import machine_ms

OUTGOING: Final = "backup-out"

# The size of one piece of a file, as for raft's snapshots: a sixteenth of the largest frame.
PIECE_SIZE_MAX: Final = 1 << 20
# Pieces that are promised but not sent yet; the reader requests several at a time, so that the link is never idle.
PIECES_WAITING_MAX: Final = 16
# A reader that is silent for this long counts as gone.
IDLE_MAX_S: Final = 60.0
# This field of 20520 names the backup for which the copy is made: a repeated request with the same name gets it again.
BACKUP_ID: Final = "backupId"
# With this field, a piece is sent only while every topic has the queue list that it had when the copy began.
UNCHANGED: Final = "unchanged"
# RocksDB writes the properties of a table near its end. They contain the identity of the database and of the session
# and the number of the file, so equal ends mean equal tables, even on different replicas.
TAIL_SIZE: Final = 16 << 10

# Table files make up most of a copy, and each is read once.
_TABLES: Final = (".sst", ".blob")
_NEARLY_FULL: Final = (
    "the disk is nearly full, and a copy keeps files from being deleted; free some space first"
)
# The files needed to open a store again. Options, including those of the binding, come from the program that opens it.
_WANTED: Final = re.compile(r"[0-9]+\.(sst|blob|log)|MANIFEST-[0-9]+|CURRENT")

FileName = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}\Z")]
Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]


class CopiedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the copy; *tail* is the SHA-256 of its last `TAIL_SIZE` bytes."""

    name: FileName
    size: Position
    tail: Digest


class Copy(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The answer to 20520: the copy that can be read under *session*, and its content.

    Attributes:
        index, term: those of the last raft entry that was applied.
        physical_end: the end of the messages at that entry.
        taken_ms: the replica's wall clock when the copy was made.
    """

    session: str
    cluster: Name
    group: Name
    node: Position
    index: Position
    term: Position
    physical_end: Position
    taken_ms: Position
    files: Annotated[tuple[CopiedFile, ...], msgspec.Meta(min_length=1, max_length=FILES_MAX)]


# The open state of the replica, or None while it does not lead and serve.
Serving = Callable[[], Instance | None]


class CopyRefused(Exception):  # noqa: N818 - named for what the caller must know
    """The request cannot be served; the text says what to do."""

    code = ResponseCode.SYSTEM_ERROR


class CopyLost(CopyRefused):
    """The replica no longer leads, or its copy is gone; the leader can make another one."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


Answer = tuple[bytes, Mapping[str, str]]


@dataclass(slots=True)
class _Session:
    """A copy that is being read.

    Attributes:
        backup_id: the backup for which it was made; empty if the reader did not name one.
        body: the answer that describes it, until something is read.
        lists: the number of queues of each ordered topic that ever grew, when the copy began.
        unread: how many bytes of each file were not read yet.
    """

    name: str
    backup_id: str
    body: bytes
    directory: Path
    sizes: Mapping[str, int]
    read_at: float
    lists: Mapping[str, int]
    unread: dict[str, int]
    waiting: int = 0


class Pace:
    """Computes when the next piece may be read, so that *rate* bytes a second are never exceeded for long."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._next_at = 0.0

    def wait_s(self, size: int, now: float) -> float:
        """Take *size* bytes at *now*; return how long to wait before reading them."""
        begins = max(now, self._next_at)
        self._next_at = begins + size / self._rate
        return begins - now


class BackupRequests:
    """Answers 20520 (make a copy), 20521 (read a piece of a file) and 20522 (delete the copy)."""

    def __init__(
        self,
        router: Router,
        settings: BrokerSettings,
        serving: Serving,
        seconds: Callable[[], float],
        supervisor: Supervisor | None = None,
    ) -> None:
        self._settings = settings
        self._serving = serving
        self._seconds = seconds
        self._supervisor = supervisor or Supervisor()
        self._directory = settings.data_dir / OUTGOING
        self._pace = Pace(settings.storage.backup_rate)
        self._session: _Session | None = None
        # The session whose copy was deleted because the disk was nearly full.
        self._given_up = ""
        self._making: asyncio.Event | None = None
        # The backup for which a copy is being made.
        self._backup_id = ""
        # A crash may have left files behind.
        _remove(self._directory)
        for code, handler in (
            (RequestCode.ORDERLYMQ_BACKUP_BEGIN, self._begin),
            (RequestCode.ORDERLYMQ_BACKUP_READ, self._read),
            (RequestCode.ORDERLYMQ_BACKUP_END, self._end),
        ):
            router.intercept(code, handler, of_replica=True)

    def step(self, *, is_disk_full: bool) -> None:
        """Delete a copy that is not read, or if the disk is nearly full (`is_nearly_full`); called about every second."""
        session = self._session
        if session is None:
            return
        if self._seconds() - session.read_at > IDLE_MAX_S:
            self._drop()
        elif is_disk_full:
            self._given_up = session.name
            self._drop()

    async def quiet(self) -> None:
        """Wait until nothing here uses the store, which is closed next."""
        if self._making is not None:
            await self._making.wait()

    async def close(self) -> None:
        """Delete the copy; reads of it were cancelled or have ended."""
        await self.quiet()
        self._session = None
        await finish_in_thread(_remove, self._directory)

    # -- requests --------------------------------------------------------------------------------

    def _begin(self, client: ClientConnection, command: RemotingCommand) -> None:
        self._supervisor.once("backup", self._answer(client, command, self._make(command)))

    def _read(self, client: ClientConnection, command: RemotingCommand) -> None:
        self._supervisor.once("backup", self._answer(client, command, self._piece(command)))

    def _end(self, client: ClientConnection, command: RemotingCommand) -> None:
        session = self._session
        if session is not None and session.name == command.ext.get("session"):
            self._drop()
        client.send(command.reply())

    async def _answer(
        self, client: ClientConnection, command: RemotingCommand, work: Coroutine[Any, Any, Answer]
    ) -> None:
        try:
            body, ext = await work
        except (CopyRefused, OSError, StoreError, TimeoutError) as error:
            code = getattr(error, "code", CopyRefused.code)
            client.send(command.reply(code, remark=str(error) or "the disk is slow"))
        else:
            client.send(command.reply(body=body, ext=ext))

    # -- parts -----------------------------------------------------------------------------------

    async def _make(self, command: RemotingCommand) -> Answer:
        backup_id = command.ext.get(BACKUP_ID, "")
        if (body := await self._copy_for(backup_id)) is not None:
            return body, {}
        instance = self._serving()
        if instance is None:
            raise CopyLost(
                "this replica does not lead its group; ask the leader, or try again in a moment"
            )
        settings = self._settings
        if is_nearly_full(instance.core.context, instance.store.disk_ratio()):
            raise CopyRefused(_NEARLY_FULL)
        _refuse_expansion(instance.state)
        lists = _lists(instance.state)
        session = secrets.token_hex(16)
        directory = self._directory / session
        self._making, self._backup_id = asyncio.Event(), backup_id
        taken_ms = machine_ms()
        try:
            # An acknowledged entry is applied, but an applied entry waits in memory for the next write.
            await instance.write_staged()
            manifest, files = await finish_in_thread(copy_files, instance.store, directory)
            # An expansion that began meanwhile may be part of the copy.
            _refuse_expansion(instance.state)
        except BaseException:
            await asyncio.to_thread(_remove, directory)
            raise
        finally:
            self._making.set()
            self._making = None
        sizes = {file.name: file.size for file in files}
        copy = Copy(
            session=session,
            cluster=settings.cluster,
            group=settings.group,
            node=settings.node_id,
            index=manifest.index,
            term=manifest.term,
            physical_end=manifest.physical_end,
            taken_ms=taken_ms,
            files=files,
        )
        body, now = msgspec.json.encode(copy), self._seconds()
        self._session = _Session(
            session, backup_id, body, directory, sizes, now, lists, dict(sizes)
        )
        return body, {}

    async def _copy_for(self, backup_id: str) -> bytes | None:
        """Return the description of an existing copy for this backup, or None if one has to be made.

        A reader asks again if it got no answer, because it waited too long or lost its connection.

        Raises:
            CopyRefused: a copy for another backup exists.
        """
        if backup_id and self._making is not None and self._backup_id == backup_id:
            await self._making.wait()
        session = self._session
        if backup_id and session is not None and session.backup_id == backup_id:
            if session.body:
                session.read_at = self._seconds()
                return session.body
            self._drop()  # a part was read already, and may be deleted
        if self._making is not None or self._session is not None:
            raise CopyRefused(
                f"a backup of this replica is running; wait for its end, or for {IDLE_MAX_S:g} s "
                "if it was abandoned"
            )
        return None

    async def _piece(self, command: RemotingCommand) -> Answer:
        session, asked = self._session, command.ext.get("session", "")
        if session is None or session.name != asked:
            raise self._gone(asked)
        name, offset, size = _wanted(command.ext, session.sizes)
        if UNCHANGED in command.ext:
            self._refuse_grown(session)
        if session.waiting >= PIECES_WAITING_MAX:
            raise CopyRefused(
                f"{PIECES_WAITING_MAX} pieces are in transit; request fewer at a time"
            )
        session.read_at = now = self._seconds()
        session.body = b""
        session.waiting += 1
        try:
            await asyncio.sleep(self._pace.wait_s(size, now))
            data = await asyncio.to_thread(_read_at, session.directory / name, offset, size)
        except FileNotFoundError:
            raise self._gone(asked) from None
        finally:
            session.waiting -= 1
        session.unread[name] -= size
        if session.unread[name] <= 0 and name.endswith(_TABLES):
            await asyncio.to_thread((session.directory / name).unlink, missing_ok=True)
        return data, {"checksum": str(zlib.crc32(data))}

    def _refuse_grown(self, session: _Session) -> None:
        """Refuse a copy with former queue lists, because copies of other groups may have been made after the growth.

        Raises:
            CopyLost: the queue list of a topic has changed since the copy began, or that is not known.
        """
        instance = self._serving()
        if instance is None or _lists(instance.state) != session.lists:
            raise CopyLost("the queue list of a topic has grown since the copy was begun")

    def _gone(self, session: str) -> CopyRefused:
        """Return why a copy cannot be read any more; `CopyLost`, unless another copy would not help."""
        if session and session == self._given_up:
            return CopyRefused(_NEARLY_FULL)
        return CopyLost(
            "the copy no longer exists: it was not read for too long, or this replica restarted"
        )

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            work = finish_in_thread(_remove, session.directory)
            self._supervisor.once("backup", work, name="delete the copy of a backup")


def _lists(state: BrokerState) -> dict[str, int]:
    return {topic: each.total for topic, each in state.expansions.by_topic.items()}


def _refuse_expansion(state: BrokerState) -> None:
    """Refuse a copy while a topic grows, because its phases in several groups belong together.

    Raises:
        CopyRefused: topics grow; the text names them.
    """
    growing = sorted(
        topic
        for topic, each in state.expansions.by_topic.items()
        if each.phase is not ExpansionPhase.OPEN
    )
    if growing:
        raise CopyRefused(
            f"the queue list of {', '.join(growing)} is growing; try again when that has ended"
        )


def _wanted(ext: Mapping[str, str], sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """Return name, offset and size of the requested piece; the name is one of the copy's files, never a given path.

    Raises:
        CopyRefused: there is no such piece.
    """
    name = ext.get("file", "")
    if name not in sizes:
        raise CopyRefused(f"the copy has no file {name[:64]!r}")
    try:
        offset = read_integer(ext.get("offset", ""), 0)
        size = read_integer(ext.get("size", ""), 1, PIECE_SIZE_MAX)
    except ValueError as error:
        raise CopyRefused(
            f"offset and size must name a piece of at most {PIECE_SIZE_MAX} bytes: {error}"
        ) from error
    if offset + size > sizes[name]:
        raise CopyRefused(f"{name} has {sizes[name]} bytes, but {offset + size} are requested")
    return name, offset, size


def copy_files(store: RocksStore, directory: Path) -> tuple[Manifest, tuple[CopiedFile, ...]]:
    """Make a copy of *store* at *directory*, which must not exist; return its position and its files."""
    manifest = export_snapshot(store, directory)
    files = []
    for file in manifest.files:
        if not _WANTED.fullmatch(file.name):
            continue
        size = min(file.size, TAIL_SIZE)
        tail = _read_at(directory / file.name, file.size - size, size)
        files.append(
            CopiedFile(name=file.name, size=file.size, tail=hashlib.sha256(tail).hexdigest())
        )
    return manifest, tuple(files)


def _read_at(path: Path, offset: int, size: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        data = os.pread(descriptor, size, offset)
    finally:
        os.close(descriptor)
    if len(data) != size:
        raise CopyRefused(f"{path.name} is shorter than before; make a new copy")
    return data


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
