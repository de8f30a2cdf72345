"""A small file system that a test can fill."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(where: Path, *, mib: int = 48) -> Iterator[Path]:
    """Mount a file system of *mib* MiB at *where*; skip the test if that is not allowed."""
    where.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(where)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    try:
        yield where
    finally:
        # Lazy, because a failed test may have left its store open.
        subprocess.run(["umount", "--lazy", str(where)], check=True)


def fill(disk: Path, *, leave: int) -> Path:
    """Fill the disk with a file, except for *leave* bytes."""
    ballast = disk / "ballast"
    with ballast.open("wb") as file:
        piece = bytes(65_536)
        while free(disk) > leave + len(piece):
            file.write(piece)
            file.flush()
    return ballast


def free(disk: Path) -> int:
    """Return the number of bytes that can still be written."""
    usage = os.statvfs(disk)
    return usage.f_bavail * usage.f_frsize
