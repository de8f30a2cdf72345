"""
Compaction of one replica: it truncates the raft log, sweeps the index, and frees disk space and memory.

The rule: compaction changes no answer, so every replica chooses its own time for it. It keeps what a snapshot
in progress or a live follower still needs.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.store.kv import Batch
from orderlymq_raft.types import Index
from orderlymq_runtime.process.supervisor import Supervisor, finish_in_thread

_log = logging.getLogger(__name__)

# Compacting a few entries at a time would only create range deletions that slow RocksDB down.
COMPACT_STEP: Final = 1_000

RECLAIM_EVERY_S: Final = 30.0

# To free space, recent data is written to a file, and bodies are never merged. So at least this much must have
# been dropped: otherwise a quiet broker group would have a file for each half minute, and many files make a copy
# of all files stop the process for long.
RECLAIM_SIZE_MIN: Final = 32 << 20
# If little is kept, this fraction of it is enough.
RECLAIM_PART: Final = 8

# A sweep reads the whole index, so it waits until retention has dropped this fraction of what is kept. The index
# may grow by that fraction, and so many entries are read for each one that is removed.
SWEEP_PART: Final = 2

# After each step the sweep rests this many times as long as the step took. It keeps up with tens of thousands of
# entries a second.
SWEEP_REST: Final = 3.0

# When nothing was written for this long, the memtables are flushed to files. Then the write-ahead log can be
# deleted, which otherwise holds up to WAL_SIZE_MAX in addition to the same bytes in files, and a start has
# nothing to replay. It is long compared to the pauses of a load, so that a steady trickle makes no small files.
FLUSH_IDLE_S: Final = 5.0

# Less than this is not worth files of its own.
FLUSH_SIZE_MIN: Final = 16 << 20


class Compaction:
    """Compacts one instance; call `step` about every second."""

    def __init__(
        self,
        instance: Instance,
        entries_kept: int,
        snapshot_needs: Callable[[], int | None],
        seconds: Callable[[], float],
        supervisor: Supervisor | None = None,
    ) -> None:
        self._supervisor = supervisor or Supervisor()
        self._instance = instance
        self._entries_kept = entries_kept
        self._snapshot_needs = snapshot_needs
        self._seconds = seconds
        self._reclaimed = 0  # an earlier process may have stopped before it reclaimed
        self._reclaimed_at = seconds()
        self._swept = 0  # as above
        self._swept_at = seconds()
        self._end = self._flushed = instance.state.physical_end
        self._grew_at = seconds()
        self._working: asyncio.Task[None] | None = None
        self._sweeping: asyncio.Task[None] | None = None

    def step(self) -> None:
        """Do part of the work that is due."""
        self._compact()
        self._maybe_sweep()
        self._maybe_reclaim()
        self._maybe_flush()

    async def close(self) -> None:
        """Wait for the threads that free space: the store must not be closed while they run."""
        if self._sweeping is not None:
            self._sweeping.cancel()
        tasks = [task for task in (self._working, self._sweeping) if task is not None]
        if tasks:
            await asyncio.wait(tasks)

    def _compact(self) -> None:
        log = self._instance.log
        wished = self._instance.state.applied_index - self._entries_kept
        needed = self._snapshot_needs()
        if needed is not None:
            wished = min(wished, needed)
        first = log.first_index()
        # Small logs are compacted in small steps, so that tests can be short.
        if wished - first < min(COMPACT_STEP, self._entries_kept):
            return
        allowed = self._instance.node.compact(Index(wished))
        if allowed <= first:
            return
        batch = Batch()
        log.compact(batch, allowed)
        self._instance.store.stage(batch)
        _log.debug("the raft log now begins after entry %d", allowed)

    def _maybe_sweep(self) -> None:
        state, now = self._instance.state, self._seconds()
        dropped, kept = state.floor - self._swept, state.physical_end - state.floor
        if (self._sweeping is not None and not self._sweeping.done()) or not dropped:
            return
        if dropped < kept // SWEEP_PART or now - self._swept_at < RECLAIM_EVERY_S:
            return
        self._swept_at = now
        self._sweeping = self._supervisor.once(
            "sweep", self._sweep(state.floor), name="sweep index"
        )

    async def _sweep(self, floor: int) -> None:
        cursor: bytes | None = None
        while cursor != b"":
            began = self._seconds()
            cursor = await finish_in_thread(self._instance.store.sweep_index, cursor or b"")
            await asyncio.sleep(SWEEP_REST * (self._seconds() - began))
        self._swept = floor

    def _maybe_reclaim(self) -> None:
        floor, end = self._instance.state.floor, self._instance.state.physical_end
        dropped = floor - self._reclaimed
        enough = min(RECLAIM_SIZE_MIN, (end - floor) // RECLAIM_PART)
        if self._is_working or not dropped or dropped < enough:
            return
        if self._seconds() - self._reclaimed_at < RECLAIM_EVERY_S:
            return
        self._reclaimed_at = self._seconds()
        self._working = self._supervisor.once("reclaim", self._reclaim(floor), name="reclaim space")

    async def _reclaim(self, floor: int) -> None:
        # Noted when it is done: a failure is tried again half a minute later.
        await finish_in_thread(self._instance.store.reclaim)
        self._reclaimed = floor

    def _maybe_flush(self) -> None:
        end, now = self._instance.state.physical_end, self._seconds()
        if end != self._end:
            self._end, self._grew_at = end, now
        idle = now - self._grew_at >= FLUSH_IDLE_S
        if self._is_working or not idle or end - self._flushed < FLUSH_SIZE_MIN:
            return
        self._flushed = end
        # If it fails nothing is lost, because everything is in the log. The writer reports errors that stop
        # writes.
        work = finish_in_thread(self._instance.store.flush)
        self._working = self._supervisor.once("flush", work, name="flush memtables")

    @property
    def _is_working(self) -> bool:
        return self._working is not None and not self._working.done()
