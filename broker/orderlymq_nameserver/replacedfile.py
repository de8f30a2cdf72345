"""A file that is replaced as a whole: after a power cut it is the old one or the new one."""

import os
from pathlib import Path


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
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
