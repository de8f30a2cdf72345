"""
Frames on the connection of a snapshot: the offer, the wanted files, their chunks and the result.

``snapshots.py`` sends and receives the files.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from typing import Final

import msgspec

from orderlymq_broker.replication.transport.connection import FrameConnection
from orderlymq_broker.replication.transport.frames import (
    Frame,
    FrameCorrupt,
    FrameKind,
    decode_header,
    encode_frame,
)
from orderlymq_broker.state.integerranges import Position
from orderlymq_broker.store.snapshot import Manifest, SnapshotRefused

_log = logging.getLogger(__name__)

# Chunks that may wait to be written; with chunks of 1 MiB this limits the memory that a fast sender can use.
CHUNKS_WAITING_MAX: Final = 8

# A receiver that writes nothing for this long is gone or has a broken disk.
ANSWER_TIMEOUT_S: Final = 30.0

PROGRESS_EVERY_S: Final = 2.0


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """The offered snapshot: its state, the term, and the store that it comes from.

    *origin* identifies one opened store of one sender; within it, files of the same name are identical.
    """

    term: Position
    origin: str
    manifest: Manifest


class Wanted(msgspec.Struct, frozen=True, array_like=True):
    """Positions in the manifest of the files that the receiver lacks."""

    files: tuple[int, ...]


class Chunk(msgspec.Struct, frozen=True, array_like=True):
    """A piece of one file; its bytes are the payload."""

    file: int
    offset: Position


class Verdict(msgspec.Struct, frozen=True, array_like=True):
    """The result: the sender reports "all sent", the receiver "all received" or the reason why not."""

    ok: bool
    reason: str = ""
    damaged: bool = False  # everything arrived, but a value does not match its checksum


class Frames:
    """The frames of one connection, awaited one by one; the peer has to wait while many are unread."""

    def __init__(self, connection: FrameConnection) -> None:
        self._connection = connection
        self._queue: asyncio.Queue[Frame | None] = asyncio.Queue()
        connection.on_frame = self._arrived
        former = connection.on_closed

        def on_closed(closed: FrameConnection) -> None:
            former(closed)
            self._queue.put_nowait(None)

        connection.on_closed = on_closed
        if not connection.is_open:
            self._queue.put_nowait(None)

    async def next(self, *kinds: FrameKind) -> Frame:
        """Return the next frame, which must be of one of *kinds*.

        Raises:
            ConnectionResetError: the connection is lost.
            TimeoutError: nothing arrived for too long.
            FrameCorrupt: another kind of frame arrived.
        """
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            frame = await self._queue.get()
        if frame is None:
            raise ConnectionResetError("the connection was lost")
        if self._queue.qsize() < CHUNKS_WAITING_MAX:
            self._connection.resume_reading()
        if frame.kind is FrameKind.SNAPSHOT_DONE and FrameKind.SNAPSHOT_DONE not in kinds:
            raise SnapshotRefused(decode_header(frame, Verdict).reason)
        if frame.kind not in kinds:
            raise FrameCorrupt(f"{frame.kind.name} arrived, but {kinds[0].name} was expected")
        return frame

    def _arrived(self, connection: FrameConnection, frame: Frame) -> None:
        self._queue.put_nowait(frame)
        if self._queue.qsize() >= CHUNKS_WAITING_MAX:
            connection.pause_reading()


@contextlib.asynccontextmanager
async def frames_of(connection: FrameConnection) -> AsyncIterator[Frames]:
    """Yield the frames of a connection, which is closed at the end of the block."""
    try:
        yield Frames(connection)
    finally:
        connection.close()


class Progress:
    """Logs the progress of a transfer at intervals."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._logged_at = time.monotonic()

    def advance(self, size: int) -> None:
        """Add *size* bytes to the progress."""
        self._done += size
        now = time.monotonic()
        if now - self._logged_at >= PROGRESS_EVERY_S:
            self._logged_at = now
            percent = 100 * self._done // max(self._total, 1)
            _log.info("%s: %d of %d bytes (%d %%)", self._what, self._done, self._total, percent)


def pulse(connection: FrameConnection) -> Callable[[], None]:
    """Return a function that a thread calls while it advances; it reports to the peer at intervals."""
    loop = asyncio.get_running_loop()
    reported_at = time.monotonic()

    def advanced() -> None:
        nonlocal reported_at
        now = time.monotonic()
        if now - reported_at >= PROGRESS_EVERY_S:
            reported_at = now
            frame = encode_frame(FrameKind.SNAPSHOT_VERIFYING, None)
            loop.call_soon_threadsafe(connection.send, frame)

    return advanced
