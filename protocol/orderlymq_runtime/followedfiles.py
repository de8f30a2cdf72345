"""Files that a running process reads again when they change."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias, TypeVar

FileStamp: TypeAlias = tuple[int, int, int]
NO_FILE: FileStamp = (0, 0, 0)

T = TypeVar("T")


def file_stamp(path: Path) -> FileStamp:
    """Return a value that changes when the file at *path* or its permissions change; ``NO_FILE`` if there is no file."""
    try:
        facts = path.stat()
    except OSError:
        return NO_FILE
    return facts.st_mtime_ns, facts.st_ctime_ns, facts.st_ino


class FollowedFiles:
    """Files whose content a process keeps in memory.

    A read that failed is tried again each time, because its cause may pass while the files stay unchanged, such as too many
    open files. It is logged once for each state of the files.

    Args:
        stays: text for the log that says what stays effective when a read fails.
        are_read: whether the caller reads the files in their present state directly afterwards.
    """

    def __init__(
        self, *paths: Path, log: logging.Logger, stays: str, are_read: bool = True
    ) -> None:
        self._paths = paths
        self._log = log
        self._stays = stays
        self._read = self._stamps() if are_read else None
        self._failed: tuple[FileStamp, ...] | None = None

    def read_changed(self, read: Callable[[], T], error: type[Exception]) -> T | None:
        """Return the result of *read* if a file has changed since the last successful read; None if none has, or if *read* raises *error*."""
        stamps = self._stamps()
        if stamps == self._read:
            return None
        try:
            found = read()
        except error as failure:
            if stamps != self._failed:
                self._failed = stamps
                self._log.error("%s; %s", failure, self._stays)
            return None
        self._read, self._failed = stamps, None
        return found

    def _stamps(self) -> tuple[FileStamp, ...]:
        return tuple(file_stamp(path) for path in self._paths)
