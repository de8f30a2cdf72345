"""
Requests 20520 to 20522: an administrator reads the files of a consistent copy of this replica.

The copy is a checkpoint of the store: hard links to files that never change, at one applied index. The rules: one
copy at a time; who asks gets pieces of a bounded size at a bounded rate, so that clients of the group are served beside
it; its links hold disk space, so a table goes when it was read, and the copy goes when nobody reads it any more, or before
sends would be refused. The leader alone makes one: it knows that whatever was acknowledged before the request is in it.
The package ``orderlymq_backup`` stores the files.
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
from orderlymq_broker.server.router import Line, Router
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

# One piece of one file, as raft's snapshots have it: a frame of a sixteenth of the largest.
PIECE_SIZE_MAX: Final = 1 << 20
# Pieces that are promised and not sent yet; the reader has a few under way, so that the link is never idle.
PIECES_WAITING_MAX: Final = 16
# A reader that is silent for so long is gone.
IDLE_MAX_S: Final = 60.0
# This field of 20520 says for which backup the copy is: who asks again for the same one gets it.
CREATION: Final = "creation"
# With this field a piece is sent only while every topic has the queue list that it had when the copy was begun.
UNCHANGED: Final = "unchanged"
# RocksDB writes the properties of a table close to its end. They hold the identity of the database and of the session
# and the number of the file, so that equal ends mean equal tables, also on different replicas.
TAIL_SIZE: Final = 16 << 10

# They are most of a copy, and each is read once.
_TABLES: Final = (".sst", ".blob")
_NEARLY_FULL: Final = "the disk is nearly full, and a copy keeps files from going; make room first"
# What a store needs to be opened again. Options, also of the binding, come from the program that opens it.
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
        index, term: the last raft entry that was applied.
        physical_end: where the messages up to there end.
        taken_ms: wall clock of the replica when the copy was made.
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


# The opened state of the replica; None while it does not lead and serve.
Serving = Callable[[], Instance | None]


class CopyRefused(Exception):  # noqa: N818 - named for what the caller must know
    """The request cannot be served; the text says what to do."""

    code = ResponseCode.SYSTEM_ERROR


class CopyLost(CopyRefused):
    """The replica leads no more, or its copy is gone: the leader makes another one."""

    code = ResponseCode.SERVICE_NOT_AVAILABLE


Answer = tuple[bytes, Mapping[str, str]]


@dataclass(slots=True)
class _Session:
    """A copy that is read.

    Attributes:
        creation: for which backup it was made; empty where the reader did not say.
        body: the answer that describes it, until something is read.
        lists: how many queues each ordered topic that ever grew had when the copy was begun.
        unread: how many bytes of each file were not read yet.
    """

    name: str
    creation: str
    body: bytes
    directory: Path
    sizes: Mapping[str, int]
    read_at: float
    lists: Mapping[str, int]
    unread: dict[str, int]
    waiting: int = 0


class Pace:
    """When the next piece may be read, so that *rate* bytes a second are never exceeded for long."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._next_at = 0.0

    def wait_s(self, size: int, now: float) -> float:
        """Take *size* bytes at *now*; return how long to wait before they are read."""
        begins = max(now, self._next_at)
        self._next_at = begins + size / self._rate
        return begins - now


class BackupRequests:
    """Answers 20520 (make a copy), 20521 (read a piece of a file) and 20522 (the copy may go)."""

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
        # The session whose copy went because the disk was nearly full.
        self._given_up = ""
        self._making: asyncio.Event | None = None
        # For which backup the copy is that is being made.
        self._creation = ""
        # A crash may have left some behind.
        _remove(self._directory)
        for code, handler in (
            (RequestCode.ORDERLYMQ_BACKUP_BEGIN, self._begin),
            (RequestCode.ORDERLYMQ_BACKUP_READ, self._read),
            (RequestCode.ORDERLYMQ_BACKUP_END, self._end),
        ):
            router.intercept(code, handler, of_replica=True)

    def step(self, *, is_disk_full: bool) -> None:
        """Delete a copy that nobody reads, or that fills the disk as `is_nearly_full` says; called about every second."""
        session = self._session
        if session is None:
            return
        if self._seconds() - session.read_at > IDLE_MAX_S:
            self._drop()
        elif is_disk_full:
            self._given_up = session.name
            self._drop()

    async def quiet(self) -> None:
        """Return when nothing here uses the store, which is closed next."""
        if self._making is not None:
            await self._making.wait()

    async def close(self) -> None:
        """Delete the copy; reads of it were cancelled or have ended."""
        await self.quiet()
        self._session = None
        await finish_in_thread(_remove, self._directory)

    # -- requests --------------------------------------------------------------------------------

    def _begin(self, line: Line, command: RemotingCommand) -> None:
        self._supervisor.once("backup", self._answer(line, command, self._make(command)))

    def _read(self, line: Line, command: RemotingCommand) -> None:
        self._supervisor.once("backup", self._answer(line, command, self._piece(command)))

    def _end(self, line: Line, command: RemotingCommand) -> None:
        session = self._session
        if session is not None and session.name == command.ext.get("session"):
            self._drop()
        line.send(command.reply())

    async def _answer(
        self, line: Line, command: RemotingCommand, work: Coroutine[Any, Any, Answer]
    ) -> None:
        try:
            body, ext = await work
        except (CopyRefused, OSError, StoreError, TimeoutError) as error:
            code = getattr(error, "code", CopyRefused.code)
            line.send(command.reply(code, remark=str(error) or "the disk is slow"))
        else:
            line.send(command.reply(body=body, ext=ext))

    # -- parts -----------------------------------------------------------------------------------

    async def _make(self, command: RemotingCommand) -> Answer:
        creation = command.ext.get(CREATION, "")
        if (body := await self._copy_for(creation)) is not None:
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
        self._making, self._creation = asyncio.Event(), creation
        taken_ms = machine_ms()
        try:
            # An acknowledged entry is applied, and an applied entry waits in memory for the next write.
            await instance.write_staged()
            manifest, files = await finish_in_thread(copy_files, instance.store, directory)
            # One that began meanwhile may be part of the copy.
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
        self._session = _Session(session, creation, body, directory, sizes, now, lists, dict(sizes))
        return body, {}

    async def _copy_for(self, creation: str) -> bytes | None:
        """Return the description of a copy that was made for this backup; None where one is to be made.

        Its reader asks again where it got no answer: it waited too long, or lost its connection.

        Raises:
            CopyRefused: there is a copy for another backup.
        """
        if creation and self._making is not None and self._creation == creation:
            await self._making.wait()
        session = self._session
        if creation and session is not None and session.creation == creation:
            if session.body:
                session.read_at = self._seconds()
                return session.body
            self._drop()  # something was read, and may be gone
        if self._making is not None or self._session is not None:
            raise CopyRefused(
                f"a backup of this replica is under way; wait for its end, or {IDLE_MAX_S:g} s if it was given up"
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
                f"{PIECES_WAITING_MAX} pieces are on their way; ask for less at a time"
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
        """Refuse a copy of former queue lists: those of other groups may have been made behind the growth.

        Raises:
            CopyLost: the queue list of a topic has changed since the copy was begun, or nobody knows.
        """
        instance = self._serving()
        if instance is None or _lists(instance.state) != session.lists:
            raise CopyLost("the queue list of a topic has grown since the copy was begun")

    def _gone(self, session: str) -> CopyRefused:
        """Return why nothing of a copy can be read any more; only where another one would not help it is no `CopyLost`."""
        if session and session == self._given_up:
            return CopyRefused(_NEARLY_FULL)
        return CopyLost(
            "the copy is not here any more: it was not read for long, or this replica restarted"
        )

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            work = finish_in_thread(_remove, session.directory)
            self._supervisor.once("backup", work, name="delete the copy of a backup")


def _lists(state: BrokerState) -> dict[str, int]:
    return {topic: each.total for topic, each in state.expansions.by_topic.items()}


def _refuse_expansion(state: BrokerState) -> None:
    """Refuse while a topic grows: its phases on several groups belong together.

    Raises:
        CopyRefused: with the topics.
    """
    growing = sorted(
        topic
        for topic, each in state.expansions.by_topic.items()
        if each.phase is not ExpansionPhase.OPEN
    )
    if growing:
        raise CopyRefused(
            f"the queue list of {', '.join(growing)} grows now; try again when it has grown"
        )


def _wanted(ext: Mapping[str, str], sizes: Mapping[str, int]) -> tuple[str, int, int]:
    """Read which piece is wanted; the name is one of the copy's own, never a path of the request.

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
            f"offset and size must name a piece of {PIECE_SIZE_MAX} bytes at most: {error}"
        ) from error
    if offset + size > sizes[name]:
        raise CopyRefused(f"{name} has {sizes[name]} bytes, not {offset + size}")
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
        raise CopyRefused(f"{path.name} is shorter than it was; make a new copy")
    return data


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
