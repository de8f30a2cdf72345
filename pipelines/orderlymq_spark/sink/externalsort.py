"""
Sorts more items than fit in memory, in runs stored in unnamed temporary files. Pure except for these files.

Rules: memory use does not grow with the number of items. A small file stays in memory. Files disappear with their
process, even if it crashes. Items are tuples that differ in the part by which they are sorted.
"""

import os
import pickle
from collections.abc import Iterable, Iterator
from heapq import merge
from itertools import islice
from tempfile import SpooledTemporaryFile
from typing import Any, Final, Generic, TypeVar

from orderlymq_spark.errors import SpillFailed

T = TypeVar("T")

RUN_ITEMS: Final = 1 << 16  # items that a sort holds, a few hundred bytes each
MEMORY_BYTES: Final = 32 << 20  # size of a file before it moves to disk
_BLOCK_ITEMS: Final = 128  # items that a reader of a run holds
_HEAD: Final = 8


class SpillFile(Generic[T]):
    """A file of lists of items. Each list is read from its beginning; several may be read at the same time."""

    def __init__(self) -> None:
        # Spark names the folder for temporary files in this variable.
        folder = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
        self._file = SpooledTemporaryFile(MEMORY_BYTES, dir=folder)  # noqa: SIM115 - closed by `close`
        self._end = 0

    def close(self) -> None:
        """Remove the file."""
        self._file.close()

    def write(self, items: Iterable[T]) -> range:
        """Append a list; return its place in the file.

        Raises:
            SpillFailed: The disk has no room.
        """
        start, left = self._end, iter(items)
        while block := tuple(islice(left, _BLOCK_ITEMS)):
            data = pickle.dumps(block, pickle.HIGHEST_PROTOCOL)
            try:
                self._file.seek(self._end)
                self._file.write(len(data).to_bytes(_HEAD))
                self._file.write(data)
                self._file.flush()
            except OSError as error:
                raise SpillFailed(
                    f"rows that do not fit in the memory of a task cannot be written: {error}; this try has sent nothing. Give the "
                    "executors more room (spark.local.dir), or write smaller batches"
                ) from error
            self._end += _HEAD + len(data)
        return range(start, self._end)

    def read(self, place: range) -> Iterator[T]:
        """Yield a list that `write` wrote."""
        at = place.start
        while at < place.stop:
            self._file.seek(at)
            size = int.from_bytes(self._file.read(_HEAD))
            block: tuple[T, ...] = pickle.loads(self._file.read(size))  # noqa: S301 - ours
            at += _HEAD + size
            yield from block


class ExternalSort(Generic[T]):
    """A sort that takes items one by one and returns them in order."""

    def __init__(self, file: SpillFile[T], held_max: int = RUN_ITEMS) -> None:
        self._file = file
        self._held_max = held_max
        self._held: list[Any] = []
        self._runs: list[range] = []

    def add(self, item: T) -> None:
        """Add an item.

        Raises:
            SpillFailed: As in `SpillFile.write`.
        """
        self._held.append(item)
        if len(self._held) >= self._held_max:
            self._spill()

    def in_order(self) -> Iterator[T]:
        """Yield all items in order, once."""
        if self._runs:
            self._spill()
        self._held.sort()
        return merge(self._held, *map(self._file.read, self._runs))

    def _spill(self) -> None:
        self._held.sort()
        self._runs.append(self._file.write(self._held))
        self._held.clear()
