"""The facts of a process in /proc/PID/stat of Linux (proc(5)): one line, whose second field may contain anything."""

from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

# Places in what `stat_fields` returns.
STATE: Final = 0
THREADS: Final = 17
#: In ticks since the boot: the time of day of a start changes when the clock is set.
STARTED: Final = 19


def stat_fields(pid: int) -> list[str]:
    """Return the fields behind the name of a process, the state first.

    Raises:
        OSError: It has ended, or this is no Linux.
    """
    text = (PROC / str(pid) / "stat").read_text(encoding="ascii", errors="replace")
    return text.rpartition(")")[2].split()
