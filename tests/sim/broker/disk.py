"""
The disk of a simulated replica: the store's writer without a thread, and the faults of disks.

The rules are those of ``replication/writer.py``: tickets are committed in their order; a full disk holds all of them
back; any other error ends the writing. A crash keeps what was synced and a prefix of the rest. A ticket that it tears
does not match its checksum and counts as not written. A rotten byte is noticed when its value is read, as by
RocksDB's checksums, and a copy of the store contains it too.
"""

import random
from collections import deque
from dataclasses import dataclass
from typing import Final

from orderlymq_broker.replication.writer import Done, WriterEvents
from orderlymq_broker.store.kv import Family, StoreFailed, StoreFull, WriteTicket
from orderlymq_broker.store.pendingwrites import Layer, Pair
from tests.broker.store.memory import MemoryStore
from tests.sim.timeline import MS, Process

FULL_RETRY_US: Final = 200 * MS


@dataclass(slots=True)
class DiskState:
    """The faults of the machine's disk; they outlive the process."""

    slow_max_us: int = 0
    full: bool = False
    fail_next: bool = False


class StoreRotten(StoreFailed):
    """A value does not match its checksum."""


class SimulatedStore(MemoryStore):
    """A store in memory whose bytes may rot.

    Attributes:
        rotten: the values with a flipped bit; a value that is rewritten is whole again.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rotten: set[tuple[Family, bytes]] = set()

    def rot(self, chance: random.Random) -> bool:
        """Flip a bit of some value; return whether there was a value."""
        families = [each for each in Family if self._visible[each].keys]
        if not families:
            return False
        family = chance.choice(families)
        self.rotten.add((family, chance.choice(self._visible[family].keys)))
        return True

    def crash(self, kept: int = 0) -> "SimulatedStore":
        """Return the store that a restart finds."""
        survivor = super().crash(kept)
        assert isinstance(survivor, SimulatedStore)
        survivor._inherit(self)
        return survivor

    def checkpoint(self) -> "SimulatedStore":
        """Return a copy, including the damage."""
        copy = super().checkpoint()
        assert isinstance(copy, SimulatedStore)
        copy._inherit(self)
        return copy

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        """Commit the ticket; values that it writes or deletes are whole again."""
        super().commit(ticket, sync=sync)
        if self.rotten:
            assert isinstance(ticket, Layer)
            self.rotten = {
                (family, key)
                for family, key in self.rotten
                if key not in ticket.values[family] and key in self._visible[family].values
            }

    def base_get(self, family: Family, key: bytes) -> bytes | None:
        """Return the committed value of *key*."""
        self._check_whole(family, [key])
        return super().base_get(family, key)

    def base_multi_get(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the committed values of *keys*."""
        self._check_whole(family, keys)
        return super().base_multi_get(family, keys)

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[Pair]:
        """Return committed pairs of ``[start, end)``."""
        pairs = super().base_scan(family, start, end, limit, reverse=reverse)
        self._check_whole(family, [key for key, _ in pairs])
        return pairs

    def check_all(self) -> None:
        """Read everything once, as the receiver of a copy does."""
        if self.rotten:
            raise StoreRotten("a value in the simulated store has rotted")

    def _check_whole(self, family: Family, keys: list[bytes]) -> None:
        if self.rotten and any((family, key) in self.rotten for key in keys):
            raise StoreRotten(f"a value in {family.name} has rotted")

    def _inherit(self, other: "SimulatedStore") -> None:
        self.rotten = {
            (family, key) for family, key in other.rotten if key in self._visible[family].values
        }


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
            # It is unknown whether the ticket was written; a crash decides.
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
