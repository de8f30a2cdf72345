"""
Frames on the connection of a snapshot: the offer, the wanted files, their chunks and how it ended.

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

# Chunks that wait to be written; with chunks of 1 MiB it bounds what a fast sender can pile up.
CHUNKS_WAITING_MAX: Final = 8

# A receiver that writes nothing for so long is gone or has a broken disk.
ANSWER_TIMEOUT_S: Final = 30.0

PROGRESS_EVERY_S: Final = 2.0


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """The snapshot that is sent: the state, in which term, and from which store.

    *origin* names one opened store of one sender, within which equal names are equal files.
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
    """How it ended: the sender says "all sent", the receiver "all there" or why not."""

    ok: bool
    reason: str = ""
    damaged: bool = False  # all arrived, and a value does not fit its checksum


class Frames:
    """The frames of one connection, awaited one by one; the peer waits while many are unread."""

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
            ConnectionResetError: the connection is gone.
            TimeoutError: nothing came for too long.
            FrameCorrupt: something else came.
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
            raise FrameCorrupt(f"{frame.kind.name} where {kinds[0].name} was due")
        return frame

    def _arrived(self, connection: FrameConnection, frame: Frame) -> None:
        self._queue.put_nowait(frame)
        if self._queue.qsize() >= CHUNKS_WAITING_MAX:
            connection.pause_reading()


@contextlib.asynccontextmanager
async def frames_of(connection: FrameConnection) -> AsyncIterator[Frames]:
    """Give the frames of a connection that ends with the block."""
    try:
        yield Frames(connection)
    finally:
        connection.close()


class Progress:
    """Logs how far a transfer is, every now and then."""

    def __init__(self, what: str, total: int) -> None:
        self._what = what
        self._total = total
        self._done = 0
        self._logged_at = time.monotonic()

    def advance(self, size: int) -> None:
        """Count *size* bytes more."""
        self._done += size
        now = time.monotonic()
        if now - self._logged_at >= PROGRESS_EVERY_S:
            self._logged_at = now
            percent = 100 * self._done // max(self._total, 1)
            _log.info("%s: %d of %d bytes (%d %%)", self._what, self._done, self._total, percent)


def pulse(connection: FrameConnection) -> Callable[[], None]:
    """Return a function that a thread calls while it advances; it reports to the peer every now and then."""
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
