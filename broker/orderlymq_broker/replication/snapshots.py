"""
Transfers a whole state to a replica that needs entries that the log no longer has.

The sender makes a checkpoint, offers it on a separate connection, and sends the files in chunks. The receiver
writes them next to its store and keeps files that it already has of the same store, because RocksDB never
rewrites a table file. It reports the state to its node only when it is complete. The rule: the present state
is not touched before that. So the disk needs room for both: the receiver refuses an offer that does not fit
in addition to the present state, and keeps no copy that will not be used.

The received files are read once as a whole and then synced. So a byte that rotted on the sender's disk fails
its checksum before the copy counts. A sender that finds the same damage in its own copy stops, and another
replica leads. ``store/snapshot.py`` swaps the states; the raft core decides that a snapshot is needed.
"""

import asyncio
import errno
import logging
import os
import shutil
import ssl
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from orderlymq_broker.replication.snapshotframes import (
    ANSWER_TIMEOUT_S,
    Chunk,
    Frames,
    Offer,
    Progress,
    Verdict,
    Wanted,
    frames_of,
    pulse,
)
from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frames import (
    FrameCorrupt,
    FrameKind,
    decode_header,
    encode_frame,
)
from orderlymq_broker.replication.transport.handshake import Identity
from orderlymq_broker.replication.transport.links import Refused, dial
from orderlymq_broker.settings import Address
from orderlymq_broker.store.kv import StoreError
from orderlymq_broker.store.options import MEMTABLES_SIZE_MAX
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_broker.store.snapshot import (
    Manifest,
    SnapshotDamaged,
    SnapshotRefused,
    export_snapshot,
    sync_files,
    verify_files,
    verify_values,
)
from orderlymq_raft import InstallSnapshot
from orderlymq_raft.types import Index, NodeId, ProtocolViolation, Term
from orderlymq_runtime.process.supervisor import Supervisor, end_tasks, finish_in_thread

_log = logging.getLogger(__name__)

# Pauses after consecutive failures: raft asks again with the next heartbeat, and each try flushes the store.
RETRY_FIRST_S: Final = 1.0
RETRY_MAX_S: Final = 30.0

# Files that never change once they exist under their name in one store.
IMMUTABLE_SUFFIXES: Final = frozenset({".sst", ".blob"})

OUTGOING: Final = "snapshots-out"
INCOMING: Final = "snapshot-in"
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_ORIGIN_FILE: Final = "ORIGIN"


@dataclass(frozen=True, slots=True)
class SentSnapshot:
    """A state that a peer has installed: its last entry, its size, and when (seconds of the monotonic clock)."""

    index: int
    size_bytes: int
    at_s: float


@dataclass(frozen=True, slots=True)
class FailedSnapshot:
    """Failed tries since a peer last installed a state: the reason of the last, and since when (seconds, monotonic)."""

    reason: str
    since_s: float
    tries: int


class SnapshotSender:
    """Sends snapshots of one store, one at a time to each peer.

    Attributes:
        sent: the last snapshot that each peer installed from this store.
        failures: the reason why each peer does not have the present one.
    """

    def __init__(
        self,
        identity: Identity,
        store: RocksStore,
        data_dir: Path,
        report: Callable[[NodeId, bool], None],
        *,
        chunk_size: int,
        failed: Callable[[StoreError], None],
        context_for: Callable[[NodeId], ssl.SSLContext | None] = lambda _: None,
        supervisor: Supervisor | None = None,
    ) -> None:
        self._identity = identity
        self._supervisor = supervisor or Supervisor()
        self._context_for = context_for
        self._store = store
        self._directory = data_dir / OUTGOING
        self._report = report
        self._failed = failed
        self._chunk_size = chunk_size
        self._origin = uuid.uuid4().hex
        self._tasks: dict[NodeId, asyncio.Task[bool | None]] = {}
        self._lowest: dict[NodeId, int] = {}
        self._pauses_s: dict[NodeId, float] = {}
        self.sent: dict[NodeId, SentSnapshot] = {}
        self.failures: dict[NodeId, FailedSnapshot] = {}
        # A crash may have left some behind.
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def index_needed(self) -> int | None:
        """Return the lowest last entry of the snapshots in progress, None if there are none; the entries after it must stay."""
        return min(self._lowest.values(), default=None)

    def send(self, message: InstallSnapshot, address: Address) -> None:
        """Start a transfer of the present state to *message.target*, unless one is in progress."""
        target = message.target
        if target in self._tasks:
            return
        self._lowest[target] = message.meta.index
        task = self._supervisor.once(
            "snapshot", self._send_or_wait(message, address), name=f"snapshot to node {target}"
        )
        self._tasks[target] = task
        task.add_done_callback(lambda ended: self._ended(target, ended))

    async def close(self) -> None:
        """Cancel pending transfers."""
        await end_tasks(self._tasks.values())
        await finish_in_thread(_remove, self._directory)

    def _ended(self, target: NodeId, task: "asyncio.Task[bool | None]") -> None:
        self._tasks.pop(target, None)
        self._lowest.pop(target, None)
        if not task.cancelled():
            # Report only now: raft may ask for the next snapshot immediately, and this task must have ended by
            # then.
            self._report(target, task.result() is True)

    async def _send_or_wait(self, message: InstallSnapshot, address: Address) -> bool:
        """Return whether the peer has accepted the state; return a failure only after a pause."""
        target = message.target
        if await self._send(message, address):
            self._pauses_s.pop(target, None)
            return True
        pause_s = self._pauses_s.get(target, RETRY_FIRST_S)
        self._pauses_s[target] = min(2 * pause_s, RETRY_MAX_S)
        self._lowest.pop(target, None)
        await asyncio.sleep(pause_s)
        return False

    async def _send(self, message: InstallSnapshot, address: Address) -> bool:
        """Return whether the peer has accepted the state."""
        target = message.target
        directory = self._directory / f"{target}-{uuid.uuid4().hex}"
        began = time.monotonic()
        try:
            # The store is closed when this task has ended, so the thread must have ended, too.
            manifest = await finish_in_thread(export_snapshot, self._store, directory)
            self._lowest[target] = manifest.index
            connection = await dial(
                self._identity, target, address, "snapshot", tls=self._context_for(target)
            )
            connection.wait_for_disk(ANSWER_TIMEOUT_S)
            async with frames_of(connection) as frames:
                offer = Offer(message.term, self._origin, manifest)
                await self._transfer(connection, frames, offer, directory, target)
        except SnapshotDamaged as error:
            _log.warning("snapshot for node %d: %s", target, error)
            self._note_failure(target, error)
            await self._examine(directory)
            return False
        except (OSError, Refused, StoreError, FrameCorrupt, TimeoutError) as error:
            _log.warning("snapshot for node %d failed and is tried again: %s", target, error)
            self._note_failure(target, error)
            return False
        else:
            ended = time.monotonic()
            self.sent[target] = SentSnapshot(manifest.index, manifest.size_bytes, ended)
            self.failures.pop(target, None)
            _log.info(
                "node %d has installed %d bytes of state up to entry %d in %.1f s",
                target,
                manifest.size_bytes,
                manifest.index,
                ended - began,
            )
            return True
        finally:
            await finish_in_thread(_remove, directory)

    def _note_failure(self, target: NodeId, error: Exception) -> None:
        former = self.failures.get(target)
        since_s = time.monotonic() if former is None else former.since_s
        tries = 1 if former is None else former.tries + 1
        # An exception may have no text, for example a time-out.
        self.failures[target] = FailedSnapshot(str(error) or type(error).__name__, since_s, tries)

    async def _examine(self, directory: Path) -> None:
        """Stop this replica if the damage that a peer has found is in its own copy."""
        try:
            await asyncio.to_thread(verify_values, directory)
        except SnapshotDamaged as error:
            self._failed(error)

    async def _transfer(
        self,
        connection: FrameConnection,
        frames: Frames,
        offer: Offer,
        directory: Path,
        target: NodeId,
    ) -> None:
        connection.send(encode_frame(FrameKind.SNAPSHOT_OFFER, offer))
        wanted = decode_header(await frames.next(FrameKind.SNAPSHOT_WANTED), Wanted)
        files = offer.manifest.files
        if not all(0 <= number < len(files) for number in wanted.files):
            raise FrameCorrupt(f"node {target} requests files that were not offered")
        total = sum(files[number].size for number in wanted.files)
        _log.info(
            "sending node %d the state up to entry %d: %d of %d bytes",
            target,
            offer.manifest.index,
            total,
            offer.manifest.size_bytes,
        )
        progress = Progress(f"snapshot for node {target}", total)
        for number in wanted.files:
            await self._send_file(connection, number, directory / files[number].name, progress)
        connection.send(encode_frame(FrameKind.SNAPSHOT_DONE, Verdict(ok=True)))
        ends = (FrameKind.SNAPSHOT_DONE, FrameKind.SNAPSHOT_VERIFYING)
        while (frame := await frames.next(*ends)).kind is FrameKind.SNAPSHOT_VERIFYING:
            pass
        verdict = decode_header(frame, Verdict)
        if verdict.damaged:
            raise SnapshotDamaged(f"node {target} reports: {verdict.reason}")
        if not verdict.ok:
            raise SnapshotRefused(f"node {target} reports: {verdict.reason}")

    async def _send_file(
        self, connection: FrameConnection, number: int, path: Path, progress: Progress
    ) -> None:
        offset = 0
        with path.open("rb") as file:
            while True:
                data = await asyncio.to_thread(file.read, self._chunk_size)
                if not data:
                    return
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    await connection.drained()
                if not connection.is_open:
                    raise ConnectionResetError("the receiver closed the connection")
                chunk = Chunk(number, offset)
                connection.send(encode_frame(FrameKind.SNAPSHOT_CHUNK, chunk, [data]))
                offset += len(data)
                progress.advance(len(data))


class SnapshotReceiver:
    """Receives snapshots and passes each to *deliver* when it is complete in its directory.

    *deliver* returns whether the state is adopted; then it stays there until it has replaced the store.

    Only one at a time is received: a newer offer ends an older one, whose sender has given up. But a state
    whose files have all arrived is verified to the end and delivered.

    Attributes:
        takes_in: the last entry of the state that is being received or adopted, 0 for none; the owner resets
            it once the state has replaced the store.
        offered: the highest last entry of all offered states, regardless of their result.
    """

    def __init__(
        self,
        node: NodeId,
        data_dir: Path,
        deliver: Callable[[InstallSnapshot, Path], bool],
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._node = node
        self.directory = data_dir / INCOMING
        self._deliver = deliver
        self.takes_in = 0
        self.offered = Index(0)
        self._task: asyncio.Task[None] | None = None
        self._is_verifying = False
        # A crash may have left a partial state, and this replica may never need a snapshot again.
        _remove(self.directory)

    def accept(self, sender: NodeId, connection: FrameConnection) -> None:
        """Receive the state that *sender* offers on *connection*."""
        if self._task is not None and self._is_verifying:
            # Verifying may take longer than a sender waits. The new sender is disconnected when it ends, and asks
            # again if needed.
            connection.pause_reading()
            self._task.add_done_callback(lambda _: connection.close())
            return
        former, self._task = self._task, None
        if former is not None:
            former.cancel()
        frames = Frames(connection)
        self._task = self._supervisor.once(
            "snapshot",
            self._receive(former, sender, connection, frames),
            name=f"snapshot from node {sender}",
        )

    async def close(self) -> None:
        """Cancel pending transfers."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _receive(
        self,
        former: asyncio.Task[None] | None,
        sender: NodeId,
        connection: FrameConnection,
        frames: Frames,
    ) -> None:
        is_adopted = False
        try:
            if former is not None:
                await asyncio.gather(former, return_exceptions=True)
            offer = decode_header(await frames.next(FrameKind.SNAPSHOT_OFFER), Offer)
            message = self._message(sender, offer)
            self.takes_in = message.meta.index
            self.offered = max(self.offered, message.meta.index)
            await self._take(connection, frames, offer)
        except (OSError, StoreError, FrameCorrupt, TimeoutError) as error:
            _log.warning("the snapshot of node %d was not installed: %s", sender, error)
            damaged = isinstance(error, SnapshotDamaged)
            refusal = Verdict(ok=False, reason=str(error), damaged=damaged)
            connection.send(encode_frame(FrameKind.SNAPSHOT_DONE, refusal))
            if isinstance(error, OSError) and error.errno in _NO_ROOM:
                # The store in use needs the remaining space, and the next try would not fit either.
                await finish_in_thread(_remove, self.directory)
        else:
            connection.send(encode_frame(FrameKind.SNAPSHOT_DONE, Verdict(ok=True)))
            try:
                is_adopted = self._deliver(message, self.directory)
            except ProtocolViolation as error:
                connection.violated(error)
            if not is_adopted:
                await finish_in_thread(_remove, self.directory)
        finally:
            if not is_adopted:
                self.takes_in = 0
            connection.close()

    def _message(self, sender: NodeId, offer: Offer) -> InstallSnapshot:
        """Return the message that reports the complete state to the core."""
        try:
            meta = offer.manifest.meta
        except ValueError as error:
            raise FrameCorrupt(f"its membership cannot be read: {error}") from error
        return InstallSnapshot(sender, self._node, Term(offer.term), meta)

    async def _take(self, connection: FrameConnection, frames: Frames, offer: Offer) -> None:
        manifest = offer.manifest
        for file in manifest.files:
            if Path(file.name).name != file.name or file.name in {".", "..", _ORIGIN_FILE}:
                raise SnapshotRefused(f"the snapshot names a file {file.name!r}")
        # The next offer uses the same directory, so no thread of this one may still run then.
        wanted = await finish_in_thread(self._prepare, offer)
        connection.send(encode_frame(FrameKind.SNAPSHOT_WANTED, Wanted(wanted)))
        total = sum(manifest.files[number].size for number in wanted)
        _log.info("receiving the state up to entry %d: %d bytes", manifest.index, total)
        progress = Progress("receiving a snapshot", total)
        while True:
            frame = await frames.next(FrameKind.SNAPSHOT_CHUNK, FrameKind.SNAPSHOT_DONE)
            if frame.kind is FrameKind.SNAPSHOT_DONE:
                break
            chunk = decode_header(frame, Chunk)
            if not 0 <= chunk.file < len(manifest.files):
                raise SnapshotRefused("received a chunk of a file that was not announced")
            path = self.directory / manifest.files[chunk.file].name
            await finish_in_thread(_write_at, path, chunk.offset, frame.payload)
            progress.advance(len(frame.payload))
        advanced = pulse(connection)
        self._is_verifying = True
        try:
            await finish_in_thread(self._finish, manifest, advanced)
            await finish_in_thread((self.directory / _ORIGIN_FILE).unlink)
        finally:
            self._is_verifying = False

    def _prepare(self, offer: Offer) -> tuple[int, ...]:
        """Keep files of the same store, delete the others, and return the missing ones."""
        origin_path = self.directory / _ORIGIN_FILE
        origin = origin_path.read_text() if origin_path.exists() else ""
        if origin != offer.origin:
            shutil.rmtree(self.directory, ignore_errors=True)
            self.directory.mkdir(parents=True)
            origin_path.write_text(offer.origin)
        files = offer.manifest.files
        sizes = {file.name: file.size for file in files}
        for path in self.directory.iterdir():
            if path.name == _ORIGIN_FILE:
                continue
            is_whole = path.stat().st_size == sizes.get(path.name)
            if not (is_whole and path.suffix in IMMUTABLE_SUFFIXES):
                path.unlink()
        for file in files:
            if file.size == 0:
                (self.directory / file.name).touch()
        wanted = tuple(
            number
            for number, file in enumerate(files)
            if file.size and not (self.directory / file.name).exists()
        )
        self._require_room(sum(files[number].size for number in wanted))
        return wanted

    def _require_room(self, size: int) -> None:
        # The store in use flushes its memtables when it is closed.
        needed = size + MEMTABLES_SIZE_MAX
        free = shutil.disk_usage(self.directory).free
        if needed > free:
            _remove(self.directory)
            raise SnapshotRefused(
                f"it needs {needed} bytes in addition to the store in use, but {free} are free: "
                "enlarge the disk, or stop this replica and empty its data directory while all "
                "others are healthy"
            )

    def _finish(self, manifest: Manifest, advanced: Callable[[], None]) -> None:
        verify_files(self.directory, manifest)
        try:
            verify_values(self.directory, advanced)
        except SnapshotDamaged:
            # Keep nothing for the next try, because it is unknown which file is damaged.
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        # While the state replaces the store, this replica answers no messages, so a slow disk must not prolong
        # that.
        sync_files(self.directory, advanced)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def _write_at(path: Path, offset: int, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)
