"""Whether a file that a running process follows has changed since it was read."""

from pathlib import Path


def file_stamp(path: Path) -> tuple[int, int]:
    """Return what changes when the file at *path* does, (0, 0) without one."""
    try:
        facts = path.stat()
    except OSError:
        return 0, 0
    return facts.st_mtime_ns, facts.st_ino
