"""
A place of a file or a folder: whole reads, whole writes, and creation that only one writer wins.

Rules: a file is there whole or not at all. `create` is the only commit: a hard link on a file system, a conditional put
(`If-None-Match: *`) in an object store; neither needs a rename or a lock. Which place an address names: ``addresses.py``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol, Self, TypeVar

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class Output(Protocol):
    """A file on its way; the caller that begins one closes or discards it."""

    @property
    def target(self) -> Any:
        """Return what Arrow writes to."""

    def close(self) -> int:
        """Make the file last and visible; return its bytes."""

    def discard(self) -> None:
        """Give the file up: nothing of it stays visible."""


class Location(ABC):
    """A place. Equal texts are equal places; places travel to tasks."""

    parallel: ClassVar[int]
    """How many requests are worth being under way together."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the path or the address."""

    @abstractmethod
    def __truediv__(self, name: str) -> Self:
        """Return a place below."""

    @property
    @abstractmethod
    def parent(self) -> Self:
        """Return the folder."""

    @property
    def name(self) -> str:
        """Return the last part."""
        return str(self).rpartition("/")[2]

    @property
    def stem(self) -> str:
        """Return the last part without its ending."""
        return self.name.rpartition(".")[0] or self.name

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def read_text(self) -> str:
        """Return the content as text; errors as of `read_bytes`."""
        return self.read_bytes().decode()

    @abstractmethod
    def write(self, content: str | bytes) -> None:
        """Put a file here, whole, in the place of one that is there."""

    @abstractmethod
    def create(self, content: str | bytes) -> bool:
        """Put a file here unless there is one; of all who try only one wins.

        Returns:
            Whether the file that is here now has this content: a repeat after a lost answer finds its own.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Return whether there is a file, or on a file system a folder."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes of a file; errors as of `read_bytes`."""

    @abstractmethod
    def delete(self) -> None:
        """Remove a file; none is fine."""

    @abstractmethod
    def prune(self) -> None:
        """Remove a folder that has become empty; an object store has none."""

    @abstractmethod
    def move(self, target: Self) -> None:
        """Give a file another place; none is fine, as when the move is repeated."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of files and folders directly below, sorted; none when there is no such folder."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int]]:
        """Yield every file below, by its path from here, with its bytes; in no promised order; none when there is no such folder."""

    @abstractmethod
    def open(self) -> Any:
        """Return what Arrow reads a file of; a context manager, or a path."""

    @abstractmethod
    def begin(self) -> Output:
        """Begin a large file."""

    def each(self, work: Callable[[_Given], _Found], items: Iterable[_Given]) -> list[_Found]:
        """Do requests for many items, as many together as is worth it here; results in order."""
        given = list(items)
        if self.parallel == 1 or len(given) < 2:
            return [work(item) for item in given]
        with ThreadPoolExecutor(min(self.parallel, len(given))) as threads:
            return list(threads.map(work, given))
