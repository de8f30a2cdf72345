"""Files that survive a power cut: a replaced file has either its old or its new content."""

import os
import secrets
from pathlib import Path


def sync_path(path: Path) -> None:
    """Write the content of a file, or the names in a folder, to the disk, and return when it is there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write *data* to a new file, sync it, and put it in place of the old one; its mode is *mode* less the umask.

    Two writers at the same time each use their own new file; the last one wins.

    Raises:
        OSError: The file cannot be written, and the old one stays; or only the new name could not be synced.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
    # The new name must survive a power cut, too, not only the content.
    sync_path(path.parent)
