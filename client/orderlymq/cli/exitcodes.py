"""What the exit code of a command means; no command of any package has a number of its own for one of these."""

from enum import IntEnum


class ExitCode(IntEnum):
    """What the exit code of a command means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    UNKNOWN = 5
    INTERRUPTED = 130
