"""
The disk of a simulated replica: the store's writer without a thread, and what disks do to it.

The rules are those of ``replication/writer.py``: tickets are committed in their order; a full disk holds
all of them back; any other error ends the writing. A crash keeps what was synced and a prefix of the rest.
"""

from collections import deque
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.replication.writer import Done, WriterEvents
from orderlymq_broker.store.kv import StoreFailed, StoreFull, WriteTicket
from orderlymq_broker.store.memory import MemoryStore
from tests.sim.timeline import MS, Process

FULL_RETRY_US: Final = 200 * MS


@dataclass(slots=True)
class DiskState:
    """What is wrong with the machine's disk; it outlives the process."""

    slow_max_us: int = 0
    full: bool = False
    fail_next: bool = False


class Writer:
    """Commits tickets one after the other, each some time after it was submitted."""

    def __init__(
        self, process: Process, store: MemoryStore, state: DiskState, events: WriterEvents
    ) -> None:
        self._process = process
        self._store = store
        self._state = state
        self._events = events
        self._queue: deque[tuple[WriteTicket, bool, Done]] = deque()
        self._was_full = False

    def submit(self, ticket: WriteTicket, *, sync: bool, done: Done) -> None:
        """Commit *ticket* after all before it, then call *done*."""
        self._queue.append((ticket, sync, done))
        if len(self._queue) == 1:
            self._begin()

    def _begin(self) -> None:
        random = self._process.timeline.random
        latency = random.randrange(100, 1_500)
        if self._state.slow_max_us:
            latency += random.randrange(self._state.slow_max_us)
        self._process.after(latency, "disk", self._finish)

    def _finish(self) -> None:
        ticket, sync, done = self._queue[0]
        if self._state.fail_next:
            self._state.fail_next = False
            # Nobody knows whether it was written; a crash decides.
            self._events.failed(StoreFailed("the simulated disk reports an I/O error"))
            return
        self._store.full = self._state.full
        try:
            self._store.commit(ticket, sync=sync)
        except StoreFull:
            if not self._was_full:
                self._was_full = True
                self._events.full(True)
            self._process.after(FULL_RETRY_US, "disk", self._finish)
            return
        if self._was_full:
            self._was_full = False
            self._events.full(False)
        self._queue.popleft()
        if self._queue:
            self._begin()
        done(0.001)
