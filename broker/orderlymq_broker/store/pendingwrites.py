"""
Writes that are staged or in progress, layered over the content of the store.

The rule: a read sees every staged and every unsettled write, newest first, no matter how far the writer
thread has come. A layer masks the store below it, so it does not matter whether the store already has the
layer's writes. One layer becomes one write ticket, already reduced to its net effect. ``rocks.py`` and the
tests' store each put their own base below the layers.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice
from typing import Protocol

from orderlymq_broker.store.kv import Batch, Family

Pair = tuple[bytes, bytes]
Span = tuple[bytes, bytes]


class Layer:
    """The net effect of the batches of one ticket: first the ranges are deleted, then the values are put.

    Life cycle: filled on the event loop while it is the staged layer, then frozen as a ticket, read by the
    writer thread and the event loop at the same time, dropped when settled. ``values`` holds None for a
    deleted key. The messages below ``dropped`` are one of the ranges, too.
    """

    __slots__ = ("_order", "dropped", "ranges", "settled", "values")

    def __init__(self) -> None:
        self.values: tuple[dict[bytes, bytes | None], ...] = tuple({} for _ in Family)
        self.ranges: tuple[list[Span], ...] = tuple([] for _ in Family)
        self.dropped = b""
        self.settled = False
        self._order: tuple[list[bytes], ...] = tuple([] for _ in Family)

    def __bool__(self) -> bool:
        return any(self.values) or any(self.ranges)

    def merge(self, batch: Batch) -> None:
        """Add *batch*, which comes after everything in this layer."""
        values = self.values
        puts, done = batch.puts, 0
        for position, family, start, end in batch.range_deletes:
            for owner, key, value in islice(puts, done, position):
                values[owner][key] = value
            done = position
            if start < end:
                self._delete_range(family, start, end)
        for owner, key, value in puts[done:] if done else puts:
            values[owner][key] = value
        if batch.dropped:
            self._delete_range(Family.MESSAGES, b"", batch.dropped)
            self.dropped = max(self.dropped, batch.dropped)

    def covers(self, family: Family, key: bytes) -> bool:
        """Return whether a range deletion of this layer hides *key* in the layers below."""
        return any(start <= key < end for start, end in self.ranges[family])

    def keys_between(self, family: Family, start: bytes, end: bytes) -> list[bytes]:
        """Return the keys of this layer in ``[start, end)``, deleted ones included, sorted."""
        order = self._sorted(family)

        return order[bisect_left(order, start) : bisect_left(order, end)]

    def _delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        values, order = self.values[family], self._sorted(family)
        first, last = bisect_left(order, start), bisect_left(order, end)
        for key in order[first:last]:
            del values[key]
        # The rest is still sorted, so many ranges cost only one sort.
        del order[first:last]
        self.ranges[family].append((start, end))

    def _sorted(self, family: Family) -> list[bytes]:
        # Dictionaries keep the order of insertion, so keys added since the last sort are at the end. Sorting a
        # sorted list with a short tail costs little more than reading it.
        values, order = self.values[family], self._order[family]
        if len(order) != len(values):
            order.extend(islice(values, len(order), None))
            order.sort()

        return order


class Base(Protocol):
    """The store below the layers; called on the event loop only."""

    def base_get(self, family: Family, key: bytes) -> bytes | None:
        """Return the stored value of *key*."""

    def base_multi_get(self, family: Family, keys: list[bytes]) -> list[bytes | None]:
        """Return the stored values of *keys* in their order."""

    def base_scan(
        self, family: Family, start: bytes, end: bytes, limit: int, *, reverse: bool
    ) -> list[Pair]:
        """Return at most *limit* stored pairs of ``[start, end)``, in key order or reversed."""


_ABSENT = object()


class Overlay:
    """The stack of layers over a base: the staged layer on top, then the tickets, newest first."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._staged = Layer()
        self._layers: list[Layer] = [self._staged]

    @property
    def staged(self) -> bool:
        """Whether writes wait for the next ticket."""
        return bool(self._staged)

    @property
    def unsettled(self) -> list[Layer]:
        """The tickets that are prepared but not settled, oldest first."""
        return self._layers[:0:-1]

    def stage(self, batch: Batch) -> None:
        """Add *batch* to the staged layer."""
        self._staged.merge(batch)

    def prepare(self, batch: Batch | None = None) -> Layer:
        """Add *batch* to the staged layer, freeze it and begin a new one."""
        if batch is not None:
            self._staged.merge(batch)
        ticket, self._staged = self._staged, Layer()
        self._layers.insert(0, self._staged)

        return ticket

    def settle(self, ticket: Layer) -> None:
        """Mark *ticket* as settled, and drop it once all older ones are dropped, so that no old one masks it."""
        assert ticket in self._layers[1:], "a ticket is settled only once"
        ticket.settled = True
        while self._layers[-1].settled:
            self._layers.pop()

    def take_back(self, ticket: Layer) -> None:
        """Make the newest ticket the staged layer again, because it could not be written."""
        assert self._layers[1] is ticket, "only the newest ticket can be taken back"
        assert not self._staged, "data that was staged after the ticket would be lost"
        del self._layers[0]
        self._staged = ticket

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Return the newest value of *key*."""
        for layer in self._layers:
            value = layer.values[family].get(key, _ABSENT)
            if value is not _ABSENT:
                return value  # type: ignore[return-value] # the sentinel is the only other type
            if layer.ranges[family] and layer.covers(family, key):
                return None

        return self._base.base_get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """Return the newest values of *keys*; asks the base once for all that no layer has."""
        layers = [layer for layer in self._layers if layer.values[family] or layer.ranges[family]]
        if not layers:
            return self._base.base_multi_get(family, list(keys))

        found: list[bytes | None] = [None] * len(keys)
        below: list[int] = []
        for position, key in enumerate(keys):
            for layer in layers:
                value = layer.values[family].get(key, _ABSENT)
                if value is not _ABSENT:
                    found[position] = value  # type: ignore[call-overload] # as in `get`
                    break
                if layer.ranges[family] and layer.covers(family, key):
                    break
            else:
                below.append(position)

        if below:
            values = self._base.base_multi_get(family, [keys[position] for position in below])
            for position, stored in zip(below, values, strict=True):
                found[position] = stored

        return found

    def scan(
        self, family: Family, start: bytes, end: bytes, *, limit: int, reverse: bool
    ) -> list[Pair]:
        """Return at most *limit* pairs of ``[start, end)`` with all layers applied."""
        if limit <= 0 or start >= end:
            return []
        changes, holes = self._changes(family, start, end)
        if not changes and not holes:
            return self._base.base_scan(family, start, end, limit, reverse=reverse)

        # *limit* stored pairs always suffice where no change masks them. A pair may be large, so more are read
        # only where some were masked, and twice as many each time, so that thousands of masked ones cost only a
        # few reads.
        wanted = limit
        live: list[Pair] = [(key, value) for key, value in changes.items() if value is not None]
        spans = subtract((start, end), holes)
        for span in reversed(spans) if reverse else spans:
            low, high = span
            count = wanted
            while wanted > 0:
                stored = self._base.base_scan(family, low, high, count, reverse=reverse)
                unmasked = [pair for pair in stored if pair[0] not in changes]
                live += unmasked
                wanted -= len(unmasked)
                if len(stored) < count:
                    break
                last = stored[-1][0]
                low, high = (low, last) if reverse else (last + b"\0", high)
                count *= 2
        live.sort(reverse=reverse)

        return live[:limit]

    def _changes(
        self, family: Family, start: bytes, end: bytes
    ) -> tuple[dict[bytes, bytes | None], list[Span]]:
        changes: dict[bytes, bytes | None] = {}
        holes: list[Span] = []
        for layer in reversed(self._layers):
            for low, high in layer.ranges[family]:
                if low < end and high > start:
                    holes.append((low, high))
                    for key in [key for key in changes if low <= key < high]:
                        del changes[key]
            values = layer.values[family]
            if values:
                for key in layer.keys_between(family, start, end):
                    changes[key] = values[key]

        return changes, holes


def subtract(span: Span, holes: list[Span]) -> list[Span]:
    """Return *span* without *holes*, as disjoint spans in key order."""
    left, end = span
    rest: list[Span] = []
    for low, high in sorted(holes):
        if left < low:
            rest.append((left, min(low, end)))
        left = max(left, high)
        if left >= end:
            return rest
    rest.append((left, end))

    return rest
