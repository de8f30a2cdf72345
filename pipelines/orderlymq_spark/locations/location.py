"""
The place of a file or a folder: complete reads and writes, and creation that only one writer wins.

Rules: a file is complete or absent. `create` is the only commit: a hard link on a file system, a conditional put
(`If-None-Match: *`) in an object store; neither needs a rename or a lock. ``addresses.py`` parses addresses.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, Protocol, Self, TypeVar

_Given = TypeVar("_Given")
_Found = TypeVar("_Found")


class Output(Protocol):
    """A file being written; the caller that begins it must close or discard it."""

    @property
    def target(self) -> Any:
        """The object or path to which Arrow writes."""

    def close(self) -> int:
        """Make the file durable and visible; return its bytes."""

    def discard(self) -> None:
        """Abandon the file: no part of it stays visible."""


class Location(ABC):
    """A place. Places are equal if their texts are equal; they can be sent to tasks."""

    parallel: ClassVar[int]
    """How many requests are worth running in parallel."""

    @abstractmethod
    def __str__(self) -> str:
        """Return the path or the address."""

    @abstractmethod
    def __truediv__(self, name: str) -> Self:
        """Return a place inside this one."""

    @property
    @abstractmethod
    def parent(self) -> Self:
        """The folder of the place."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return str(self).rpartition("/")[2]

    @property
    def stem(self) -> str:
        """The last part of the path without its ending."""
        return self.name.rpartition(".")[0] or self.name

    @abstractmethod
    def read_bytes(self) -> bytes:
        """Return the content.

        Raises:
            FileNotFoundError: There is no such file.
        """

    def read_text(self) -> str:
        """Return the content as text; raises the errors of `read_bytes`."""
        return self.read_bytes().decode()

    @abstractmethod
    def write(self, content: str | bytes) -> None:
        """Put a complete file here; replace an existing one."""

    @abstractmethod
    def create(self, content: str | bytes) -> bool:
        """Put a file here unless one exists; of all writers that try, one wins.

        Returns:
            Whether the file here now has this content; a repeat after a lost answer finds its own file.
        """

    @abstractmethod
    def exists(self) -> bool:
        """Return whether a file, or on a file system a folder, exists here."""

    @abstractmethod
    def size(self) -> int:
        """Return the bytes of a file; raises the errors of `read_bytes`."""

    @abstractmethod
    def delete(self) -> None:
        """Remove a file; do nothing if it is absent."""

    @abstractmethod
    def prune(self) -> None:
        """Remove the folder if it is empty; an object store has no folders."""

    @abstractmethod
    def move(self, target: Self) -> None:
        """Move a file to another place; do nothing if it is absent, for example because the move is repeated."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the sorted names of the files and folders directly inside; empty if the folder is absent."""

    @abstractmethod
    def files(self) -> Iterator[tuple[str, int]]:
        """Yield the relative path and bytes of every file inside, in any order; nothing if the folder is absent."""

    @abstractmethod
    def open(self) -> Any:
        """Return a path or context manager from which Arrow reads the file."""

    @abstractmethod
    def begin(self) -> Output:
        """Begin to write a large file."""

    def each(self, work: Callable[[_Given], _Found], items: Iterable[_Given]) -> list[_Found]:
        """Process many items with concurrent requests, as many as are useful here; return the results in order."""
        given = list(items)
        if self.parallel == 1 or len(given) < 2:
            return [work(item) for item in given]
        with ThreadPoolExecutor(min(self.parallel, len(given))) as threads:
            return list(threads.map(work, given))
