"""
Places on a mounted file system.

Rules: content and names are synced before a call returns. A file is created by a hard link to a complete file: of many
writers one wins, and a reader never sees an incomplete file.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar
from uuid import uuid4

from orderlymq_runtime.durablefiles import sync_path
from orderlymq_spark.locations.location import Location


@dataclass(frozen=True, slots=True)
class LocalLocation(Location):
    """A path on a mounted file system."""

    parallel: ClassVar[int] = 1
    path: str

    def __str__(self) -> str:
        return str(Path(self.path))

    def __fspath__(self) -> str:
        return self.path

    def __truediv__(self, name: str) -> "LocalLocation":
        return LocalLocation(str(Path(self.path) / name))

    @property
    def parent(self) -> "LocalLocation":
        return LocalLocation(str(Path(self.path).parent))

    def read_bytes(self) -> bytes:
        return Path(self.path).read_bytes()

    def write(self, content: str | bytes) -> None:
        draft = self._draft(content)
        try:
            draft.replace(self.path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        sync_path(Path(self.path).parent)

    def create(self, content: str | bytes) -> bool:
        draft = self._draft(content)
        try:
            Path(self.path).hardlink_to(draft)
            is_there = True
        except FileExistsError:
            is_there = self.read_bytes() == draft.read_bytes()
        finally:
            draft.unlink(missing_ok=True)
        # Also sync an existing name, because its writer may have died before the sync.
        sync_path(Path(self.path).parent)
        return is_there

    def _draft(self, content: str | bytes) -> Path:
        """Write content to a synced temporary file in the same folder."""
        path = Path(self.path)
        _make_folder(path.parent)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}")
        try:
            with draft.open("wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return draft

    def exists(self) -> bool:
        return Path(self.path).exists()

    def size(self) -> int:
        return Path(self.path).stat().st_size

    def delete(self) -> None:
        Path(self.path).unlink(missing_ok=True)

    def prune(self) -> None:
        # The folder may be gone, or another process may have put a file there.
        with suppress(OSError):
            Path(self.path).rmdir()

    def move(self, target: "LocalLocation") -> None:
        _make_folder(Path(target.path).parent)
        with suppress(FileNotFoundError):
            Path(self.path).rename(target.path)
        # Also sync after a repeated move, because the first writer may have died before the sync.
        sync_path(Path(target.path).parent)

    def names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def files(self) -> Iterator[tuple[str, int]]:
        for folder, _, names in os.walk(self.path, onerror=_unless_absent):
            for name in names:
                path = Path(folder) / name
                try:
                    yield str(path.relative_to(self.path)), path.stat().st_size
                except FileNotFoundError:
                    continue  # the file was removed meanwhile

    def open(self) -> str:
        return self.path

    def begin(self) -> "LocalOutput":
        path = Path(self.path)
        _make_folder(path.parent)
        return LocalOutput(path)


@dataclass(frozen=True, slots=True)
class LocalOutput:
    """A file that Arrow writes under its final name; an unpublished file has a name that no reader looks for."""

    path: Path

    @property
    def target(self) -> str:
        """The path, which Arrow writes faster than a Python file object."""
        return str(self.path)

    def close(self) -> int:
        """Sync the file and its name."""
        sync_path(self.path)
        sync_path(self.path.parent)
        return self.path.stat().st_size

    def discard(self) -> None:
        """Remove the file."""
        self.path.unlink(missing_ok=True)


def _unless_absent(error: OSError) -> None:
    """Raise the error of a folder listing, unless the folder is absent."""
    if not isinstance(error, FileNotFoundError | NotADirectoryError):
        raise error


def _make_folder(folder: Path) -> None:
    """Create a folder with its parents; sync their names."""
    if not folder.is_dir():
        _make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)
