"""
The store in plain dictionaries, for tests and the simulator, with a disk that can lose writes.

The rule: it behaves as ``rocks.py`` does (a test drives both with the same operations), and a
crash keeps what was committed with sync plus a prefix of what came later.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence

from orderlymq_broker.store.kv import Batch, Family, StoreFailed, StoreFull, WriteTicket
from orderlymq_broker.store.pendingwrites import Layer, Overlay, Pair


class _Table:
    """One family of keys: a dictionary and its keys in order."""

    __slots__ = ("keys", "values")

    def __init__(self, values: dict[bytes, bytes] | None = None) -> None:
        self.values = dict(values or {})
        self.keys = sorted(self.values)

    def put(self, key: bytes, value: bytes) -> None:
        if key not in self.values:
            insort(self.keys, key)
        self.values[key] = value

    def delete(self, key: bytes) -> None:
        if self.values.pop(key, None) is not None:
            del self.keys[bisect_left(self.keys, key)]

    def delete_range(self, start: bytes, end: bytes) -> None:
        low, high = bisect_left(self.keys, start), bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.values[key]
        del self.keys[low:high]


Tables = tuple[_Table, ...]


class MemoryStore:
    """A `KeyValueStore` in memory.

    Attributes:
        full: set it, and every commit raises `StoreFull` until it is cleared.
        unreadable: set it, and every read that reaches the disk raises `StoreFailed`.
    """

    def __init__(self) -> None:
        self.full = False
        self.unreadable = False
        self.commits = 0
        self._visible: Tables = tuple(_Table() for _ in Family)
        self._durable: Tables = tuple(_Table() for _ in Family)
        self._unsynced: list[Layer] = []
        self._committed: set[int] = set()
        self._overlay = Overlay(self)

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of *key*, staged writes included."""
        return self._overlay.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of *keys* in their order."""
        return self._overlay.multi_get(family, keys)

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[Pair]:
        """Return at most *limit* pairs with ``start <= key < end``."""
        return self._overlay.scan(family, start, end, limit=limit, reverse=reverse)

    def stage(self, batch: Batch) -> None:
        """Make *batch* visible to reads; it becomes durable with the next ticket."""
        self._overlay.stage(batch)

    def prepare(self, batch: Batch | None = None) -> WriteTicket:
        """Stage *batch*, and take all that is staged into one ticket."""
        return self._overlay.prepare(batch)

    def commit(self, ticket: WriteTicket, *, sync: bool) -> None:
        """Write the ticket; with *sync*, it and all tickets before it survive a crash."""
        assert isinstance(ticket, Layer)
        if self.full:
            raise StoreFull("a test filled the store in memory")
        _write(self._visible, ticket)
        self._unsynced.append(ticket)
        self._committed.add(id(ticket))
        self.commits += 1
        if sync:
            for layer in self._unsynced:
                _write(self._durable, layer)
            self._unsynced.clear()

    def settle(self, ticket: WriteTicket) -> None:
        """Drop the ticket's staged copy."""
        assert isinstance(ticket, Layer)
        self._committed.discard(id(ticket))
        self._overlay.settle(ticket)

    def write(self, batch: Batch, *, sync: bool) -> None:
        """Prepare, commit and settle a batch; if the store is full, the batch stays staged."""
        ticket = self._overlay.prepare(batch)
        try:
            self.commit(ticket, sync=sync)
        except StoreFull:
            self._overlay.take_back(ticket)
            raise
        self.settle(ticket)

    def close(self) -> None:
        """Do nothing: there are no files."""

    @property
    def at_risk(self) -> int:
        """The number of tickets that a crash may lose: those written without sync, and those not written yet."""
        return len(self._tickets_at_risk())

    def crash(self, kept: int = 0) -> "MemoryStore":
        """Return the store that a restart finds: all synced tickets and the first *kept* of those at risk.

        A ticket that was prepared but not committed counts as at risk too, because its write may have
        reached the disk before anybody got an answer.
        """
        survivor = type(self)()
        survivor._durable = tuple(_Table(table.values) for table in self._durable)
        for layer in self._tickets_at_risk()[:kept]:
            _write(survivor._durable, layer)
        survivor._visible = tuple(_Table(table.values) for table in survivor._durable)

        return survivor

    def checkpoint(self) -> "MemoryStore":
        """Return a copy of everything committed, as a snapshot of the real store would hold it."""
        copy = type(self)()
        copy._visible = tuple(_Table(table.values) for table in self._visible)
        copy._durable = tuple(_Table(table.values) for table in self._visible)

        return copy

    def disk_ratio(self) -> float:
        """Return the used share of the disk: 1 while a test has filled it."""
        return 1.0 if self.full else 0.0

    def disk_bytes(self) -> int:
        """Return the size of a small disk."""
        return 1 << 30

    def size_bytes(self) -> int:
        """Return the bytes of all committed keys and values."""
        return sum(
            len(key) + len(value) for table in self._visible for key, value in table.values.items()
        )

    def statistics(self) -> dict[str, float]:
        """Return the figures that metrics show."""
        return {"size_bytes": float(self.size_bytes()), "commits": float(self.commits)}

    def base_get(self, family: Family, key: bytes) -> bytes | None:
        """Return the committed value of *key*."""
        self._check_readable()
        return self._visible[family].values.get(key)

    def base_multi_get(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the committed values of *keys*."""
        self._check_readable()
        values = self._visible[family].values

        return [values.get(key) for key in keys]

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[Pair]:
        """Return committed pairs of ``[start, end)``."""
        self._check_readable()
        table = self._visible[family]
        low, high = bisect_left(table.keys, start), bisect_left(table.keys, end)
        if reverse:
            keys = table.keys[max(low, high - limit) : high][::-1]
        else:
            keys = table.keys[low : min(high, low + limit)]

        return [(key, table.values[key]) for key in keys]

    def _check_readable(self) -> None:
        if self.unreadable:
            raise StoreFailed("a test made the store in memory unreadable")

    def _tickets_at_risk(self) -> list[Layer]:
        prepared = [layer for layer in self._overlay.unsettled if id(layer) not in self._committed]

        return [*self._unsynced, *prepared]


class MeasuringStore(MemoryStore):
    """A store that records the largest number of bytes read in one call."""

    def __init__(self) -> None:
        super().__init__()
        self.largest_read = 0

    def base_multi_get(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the committed values of *keys*."""
        found = super().base_multi_get(family, keys)
        self.largest_read = max(self.largest_read, sum(len(each) for each in found if each))
        return found


class ScanningStore:
    """Reads *store*; records where scans began and how many pairs they found."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.starts: list[bytes] = []
        self.found = 0

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the value of *key*."""
        return self._store.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the values of *keys*."""
        return self._store.multi_get(family, keys)

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Return pairs from *start* on."""
        pairs = self._store.scan(family, start, end, limit=limit, reverse=reverse)
        self.starts.append(start)
        self.found += len(pairs)
        return pairs


def _write(tables: Tables, layer: Layer) -> None:
    for family in Family:
        table = tables[family]
        for start, end in layer.ranges[family]:
            table.delete_range(start, end)
        for key, value in layer.values[family].items():
            if value is None:
                table.delete(key)
            else:
                table.put(key, value)
