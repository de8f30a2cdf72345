"""Compaction that fails is reported and tried again; what it works on is not closed under it."""

import asyncio
import threading
from typing import cast

from orderlymq_broker.replication.compaction import RECLAIM_EVERY_S, Compaction
from orderlymq_broker.replication.replicainstance import Instance
from orderlymq_broker.store.kv import StoreFailed
from orderlymq_runtime.process.supervisor import Supervisor


class Store:
    """A store whose space can be given back when it is told so."""

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
    """What compaction looks at: a state whose messages were dropped up to *floor*."""

    def __init__(self) -> None:
        self.store = Store()
        self.state = self
        self.floor = 0
        self.physical_end = 0


async def finished(compaction: Compaction) -> None:
    compaction._maybe_reclaim()
    await compaction.close()


async def test_space_that_could_not_be_given_back_is_tried_again() -> None:
    """Law: a failure is counted, and the next try comes half a minute later, not with the next message."""
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
    """Law: cancelled or not, every task that works on the store has ended when it is closed."""
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
