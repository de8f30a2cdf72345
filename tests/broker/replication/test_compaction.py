"""Compaction is tried again after a failure, and its store is not closed while it works."""

import asyncio
import random
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from orderlymq_broker.replication.compaction import RECLAIM_EVERY_S, RECLAIM_PART, Compaction
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.store import layout
from orderlymq_broker.store.kv import Batch, Family, StoreFailed
from orderlymq_broker.store.rocks import RocksStore
from orderlymq_runtime.process.supervisor import Supervisor


class Store:
    """A store whose space can be reclaimed when a test allows it."""

    def __init__(self) -> None:
        self.failing = True
        self.reclaimed = 0
        self.may_end = threading.Event()
        self.may_end.set()

    def reclaim(self) -> None:
        self.may_end.wait()
        if self.failing:
            raise StoreFailed("the file cannot be deleted")
        self.reclaimed += 1


class Replica:
    """The state that compaction reads; messages are dropped up to *floor*."""

    def __init__(self, store: Any = None) -> None:
        self.store: Any = store or Store()
        self.state = self
        self.floor = 0
        self.physical_end = 0


async def finished(compaction: Compaction) -> None:
    compaction._maybe_reclaim()
    await compaction.close()


async def test_space_that_could_not_be_given_back_is_tried_again() -> None:
    """Law: a failed reclaim is counted and tried again after half a minute, not with the next message."""
    replica, supervisor, now = Replica(), Supervisor(), [0.0]
    compaction = Compaction(cast("Instance", replica), 10, lambda: None, lambda: now[0], supervisor)
    replica.floor = 1

    now[0] += RECLAIM_EVERY_S
    await finished(compaction)
    assert supervisor.failures == {"reclaim": 1}

    replica.store.failing = False
    await finished(compaction)
    assert replica.store.reclaimed == 0, "not before its time"
    now[0] += RECLAIM_EVERY_S
    await finished(compaction)
    now[0] += RECLAIM_EVERY_S
    await finished(compaction)
    assert replica.store.reclaimed == 1, "and once is enough"


async def test_the_end_waits_for_a_thread_in_the_store() -> None:
    """Law: the store is closed only after every task that works on it has ended, cancelled or not."""
    replica, supervisor = Replica(), Supervisor()
    replica.store.failing = False
    replica.store.may_end.clear()
    compaction = Compaction(
        cast("Instance", replica), 10, lambda: None, lambda: RECLAIM_EVERY_S, supervisor
    )
    compaction._reclaimed_at = 0.0
    replica.floor = 1
    compaction._maybe_reclaim()
    await asyncio.sleep(0)
    closing = asyncio.create_task(supervisor.close())
    await asyncio.sleep(0)
    assert not closing.done()

    replica.store.may_end.set()
    await closing

    assert replica.store.reclaimed == 1


MESSAGES_KEPT = 4_000


def apply(replica: Replica, store: RocksStore, count: int) -> None:
    """Let *count* messages come, each with an index row; above MESSAGES_KEPT the oldest are dropped."""
    batch = Batch()
    for number in range(replica.physical_end, replica.physical_end + count):
        key = layout.index_key(1, layout.IndexKind.UNIQUE, f"{number % 16:02}{number:09}", number)
        batch.put(Family.KEY_INDEX, key, layout.encode_timestamp(number))
    replica.physical_end += count
    replica.floor = max(0, replica.physical_end - MESSAGES_KEPT)
    batch.drop_messages(layout.message_key(replica.floor))
    store.write(batch, sync=False)


@pytest.mark.parametrize("life_s", [1_000, 40])
async def test_the_index_stays_in_proportion_to_what_is_kept(tmp_path: Path, life_s: int) -> None:
    """Law: the index stays at most twice as large as the kept messages need, at any rate and over restarts,
    and without staged writes.
    """
    store, now = RocksStore(tmp_path, create=True), [0.0]
    replica = Replica(store)

    def started() -> Compaction:
        return Compaction(cast("Instance", replica), 10, lambda: None, lambda: now[0])

    compaction, largest = started(), 0
    for second in range(10, 600, 10):
        now[0] = second
        if second % life_s == 0:
            await compaction.close()
            compaction = started()
        apply(replica, store, 400)
        compaction._maybe_sweep()
        if compaction._sweeping is not None:
            await compaction._sweeping
        entries = store.scan(Family.KEY_INDEX, b"\x00", b"\xff", limit=1 << 20)
        largest = max(largest, len(entries))
        assert not store._overlay.staged

    assert MESSAGES_KEPT < largest <= 2 * MESSAGES_KEPT
    await compaction.close()
    store.close()


async def test_a_sweep_ends_with_the_replica(tmp_path: Path) -> None:
    """Law: a sweep ends before the store is closed; the next process sweeps the rest."""
    store, now = RocksStore(tmp_path, create=True), [0.0]
    replica = Replica(store)
    apply(replica, store, 2 * MESSAGES_KEPT)
    compaction = Compaction(cast("Instance", replica), 10, lambda: None, lambda: now[0])
    now[0] = RECLAIM_EVERY_S

    compaction._maybe_sweep()
    await asyncio.sleep(0)
    await compaction.close()
    store.close()

    assert compaction._sweeping is not None
    assert compaction._sweeping.cancelled()


def files(path: Path) -> list[int]:
    """Return the size of each table of a store."""
    return [file.stat().st_size for file in path.glob("*.sst")]


async def test_bodies_lie_in_few_files_however_little_comes(tmp_path: Path) -> None:
    """Law: with few messages over days, bodies lie in few files, and the space of dropped ones is still freed."""
    store, now = RocksStore(tmp_path, create=True), [0.0]
    replica = Replica(store)
    compaction = Compaction(cast("Instance", replica), 10, lambda: None, lambda: now[0])
    size, kept = 1 << 16, 100
    most = 0
    for number in range(4 * kept):
        batch = Batch()
        batch.put(Family.MESSAGES, layout.message_key(number * size), random.randbytes(size))
        replica.physical_end = (number + 1) * size
        replica.floor = max(0, number + 1 - kept) * size
        batch.drop_messages(layout.message_key(replica.floor))
        store.write(batch, sync=False)
        now[0] += RECLAIM_EVERY_S
        await finished(compaction)
        most = max(most, len(files(tmp_path)))

    assert most <= 3 * RECLAIM_PART
    assert sum(files(tmp_path)) <= kept * size * (1 + 3 / RECLAIM_PART)
    store.close()
