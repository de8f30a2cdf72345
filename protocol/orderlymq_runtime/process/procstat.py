"""The fields of a process in Linux's /proc/PID/stat (proc(5)): one line, whose second field may contain any text."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

# Indexes into the result of `stat_fields`.
STATE: Final = 0
THREADS: Final = 17
#: In ticks since the boot, because a start as a time of day changes when the clock is set.
STARTED: Final = 19


def stat_fields(pid: int) -> list[str]:
    """Return the fields behind the name of a process, the state first.

    Raises:
        OSError: The process has ended, or this is not Linux.
    """
    text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
