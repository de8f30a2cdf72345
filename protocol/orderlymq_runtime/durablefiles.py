"""Files that survive a power cut: a file that is replaced is the old one or the new one."""

import os
from pathlib import Path


def sync_path(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write *data* to a new file, synced, and put it in place of the old one.

    Raises:
        OSError: It cannot be written; the old one stays.
    """
    temporary = path.with_name(path.name + ".new")
    path.parent.mkdir(parents=True, exist_ok=True)
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    # The new name must survive a power cut as well as the content.
    sync_path(path.parent)
