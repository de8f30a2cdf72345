"""Files that survive a power cut: a file that is replaced is the old one or the new one."""

import os
import secrets
from pathlib import Path


def sync_path(path: Path) -> None:
    """Return when the content of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Write *data* to a new file, synced, and put it in place of the old one; its mode is *mode* less the umask.

    Each of two writers has a new file of its own; the last one wins.

    Raises:
        OSError: It cannot be written; the old one stays, and nothing else.
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
    # The new name must survive a power cut as well as the content.
    sync_path(path.parent)
