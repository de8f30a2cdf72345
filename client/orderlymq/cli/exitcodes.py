"""Exit codes of commands; no command of any package has a number of its own for one of these."""

from enum import IntEnum


class ExitCode(IntEnum):
    """Meaning of a command's exit code."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    UNKNOWN = 5
    INTERRUPTED = 130
