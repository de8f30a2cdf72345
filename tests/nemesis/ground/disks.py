"""
A separate file system for each replica, and its faults.

With loop devices the disk is a file with ext4 on it. Power loss is then as on a real machine: the processes are
killed, the file is copied as the device left it before the kernel writes anything more back, and the copy is mounted,
which replays its journal. Data that was not synced is not in it.
"""

import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.nemesis.ground.ground import GroundError, run

# A run of an hour writes some hundred MiB; the file is sparse.
DISK_SIZE_MIB: Final = 2048
# The free space of a "full" disk; less than one flush of the store.
LEFT_FREE: Final = 256 * 1024
_UMOUNT_TRIES: Final = 50


@dataclass(slots=True)
class Disk:
    """One file system. Life cycle: `mount`, any other method, `unmount`."""

    image: Path
    where: Path
    _is_full: bool = False
    # Two faults may hit one disk at the same time.
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def mount(self) -> None:
        """Make the file system on first use, and mount it."""
        self.where.mkdir(parents=True, exist_ok=True)
        if not self.image.exists():
            with self.image.open("wb") as file:
                file.truncate(DISK_SIZE_MIB << 20)
            run("mkfs.ext4", "-q", "-F", "-m", "0", str(self.image))
        # No commit by time: the device holds only what a process synced.
        run("mount", "-o", "loop,commit=300,noatime", str(self.image), str(self.where))

    def unmount(self) -> None:
        """Unmount; waits for processes that are about to end."""
        for attempt in range(_UMOUNT_TRIES):
            last = attempt == _UMOUNT_TRIES - 1
            with suppress(GroundError):
                run("umount", str(self.where))
                return
            if not last:
                time.sleep(0.1)
        run("umount", "--lazy", str(self.where))

    def keep_what_is_synced(self) -> Path:
        """Return a copy of the device as it is now. Call it immediately after the last process died."""
        copy = self.image.with_suffix(".synced")
        run("cp", "--sparse=always", str(self.image), str(copy))
        return copy

    def lose_power(self, copy: Path) -> None:
        """Replace the file system by *copy*."""
        with self._lock:
            self.unmount()
            copy.replace(self.image)
            self.mount()
            if not self._is_full:
                self._drop_ballast()

    def fill(self) -> None:
        """Leave almost no free space."""
        with self._lock:
            self._is_full = True
            usage = os.statvfs(self.where)
            size = usage.f_bavail * usage.f_frsize - LEFT_FREE
            if size <= 0:
                return
            # Some of the free space is needed for the ballast's own extents.
            with (self.where / "ballast").open("wb") as file, suppress(OSError):
                os.posix_fallocate(file.fileno(), 0, size)

    def empty(self) -> None:
        """Free the space that `fill` took; a loss of power does not bring the ballast back."""
        with self._lock:
            self._is_full = False
            self._drop_ballast()

    def _drop_ballast(self) -> None:
        (self.where / "ballast").unlink(missing_ok=True)
        directory = os.open(self.where, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)


def can_mount(directory: Path) -> bool:
    """Return whether file systems in files can be mounted here."""
    disk = Disk(directory / "trial.img", directory / "trial")
    try:
        disk.mount()
        disk.unmount()
    except (GroundError, OSError):
        return False
    finally:
        disk.image.unlink(missing_ok=True)
    return True
