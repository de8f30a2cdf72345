"""
Rows of the TABLES family: how the tables in memory reach the store.

The rule: apply changes memory first and notes the row. When an entry has been applied, every changed row is written
once, with its last value, in the same batch as the applied index. So memory and store cannot disagree about an index.
The other modules of this package hold the tables.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final, TypeVar

import msgspec

from orderlymq_broker.store.kv import Batch, Family, Reader
from orderlymq_broker.store.layout import (
    Table,
    numbered_key,
    numbered_keys,
    table_bounds,
    table_key,
)

# Rows are read in pages, so that loading a large table does not build one huge list.
_PAGE: Final = 1024
# Rows that are removed as one range: a single deletion takes 1.5 us, and a topic may have 100,000 offsets. A range
# visits all rows that the entry has changed, and a reader visits all ranges of the entries that are not written yet.
_RANGE_MIN: Final = 256

T = TypeVar("T")

encode_row = msgspec.msgpack.Encoder().encode


class TableWrites:
    """The rows changed by the entry that is being applied."""

    __slots__ = ("_ranges", "_rows")

    def __init__(self) -> None:
        self._rows: dict[bytes, bytes | None] = {}
        self._ranges: list[tuple[bytes, bytes]] = []

    def put(self, table: Table, *key: str | int, value: Any) -> None:
        """Set a row; *value* is anything that msgpack can encode."""
        self.put_at(table_key(table, *key), value)

    def put_at(self, key: bytes, value: Any) -> None:
        """Set a row by its key, which the caller has kept or can build faster."""
        self._rows[key] = encode_row(value)

    def delete(self, table: Table, *key: str | int) -> None:
        """Remove a row."""
        self.delete_at(table_key(table, *key))

    def delete_at(self, key: bytes) -> None:
        """Remove a row by its key, which the caller has kept or can build faster."""
        self._rows[key] = None

    def delete_numbered(self, table: Table, *key: str | int, numbers: Collection[int]) -> None:
        """Remove all rows whose keys are these parts and a number; *numbers* are all existing ones."""
        if len(numbers) >= _RANGE_MIN:
            self.delete_range(table, *key)
            return
        prefix = table_key(table, *key)
        self._rows.update(dict.fromkeys([numbered_key(prefix, number) for number in numbers]))

    def delete_numbered_of(
        self, table: Table, firsts: Mapping[str, Collection[int]], second: str
    ) -> None:
        """Do the same as `delete_numbered` for each of *firsts* with *second*: 100,000 rows in one turn of the loop."""
        few = [each for each in firsts.items() if len(each[1]) < _RANGE_MIN]
        if len(few) < len(firsts):
            for first, numbers in firsts.items():
                if len(numbers) >= _RANGE_MIN:
                    self.delete_range(table, first, second)
        self._rows.update(dict.fromkeys(numbered_keys(table, few, second)))

    def delete_grouped(
        self, table: Table, first: str, seconds: Mapping[str, Collection[int]]
    ) -> None:
        """Remove all rows that begin with *first*; *seconds* maps each existing second part to its numbers."""
        if sum(map(len, seconds.values())) >= _RANGE_MIN:
            self.delete_range(table, first)
            return
        for second, numbers in seconds.items():
            self.delete_numbered(table, first, second, numbers=numbers)

    def delete_range(self, table: Table, *key: str | int) -> None:
        """Remove every row whose key begins with these parts, including those that the entry has set so far."""
        start, end = table_bounds(table, *key)
        for row in [row for row in self._rows if start <= row < end]:
            del self._rows[row]
        self._ranges.append((start, end))

    def flush(self, batch: Batch) -> None:
        """Move the rows to *batch*."""
        for start, end in self._ranges:
            batch.delete_range(Family.TABLES, start, end)
        self._ranges.clear()
        if not self._rows:
            return
        batch.puts += [(Family.TABLES, key, value) for key, value in self._rows.items()]
        self._rows.clear()


def read_counter(reader: Reader, name: str, kind: type[T], default: T) -> T:
    """Return a row of the counters, or *default* if there is none yet."""
    value = reader.get(Family.TABLES, table_key(Table.COUNTERS, name))

    return default if value is None else msgspec.msgpack.decode(value, type=kind)


def read_rows(reader: Reader, table: Table) -> Iterator[bytes]:
    """Yield the values of all rows of *table* in key order."""
    for _, value in read_pairs(reader, Family.TABLES, *table_bounds(table)):
        yield value


def read_as(reader: Reader, table: Table, kind: type[T]) -> Iterator[T]:
    """Yield the decoded rows of *table* in key order."""
    return (msgspec.msgpack.decode(value, type=kind) for value in read_rows(reader, table))


def read_pairs(
    reader: Reader, family: Family, start: bytes, end: bytes, per_page: int = _PAGE
) -> Iterator[tuple[bytes, bytes]]:
    """Yield all pairs of ``[start, end)`` in key order, a page at a time."""
    while True:
        page = reader.scan(family, start, end, limit=per_page)
        yield from page
        if len(page) < per_page:
            return
        start = page[-1][0] + b"\x00"
