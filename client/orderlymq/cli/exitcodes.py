"""Exit codes of commands; the commands of all packages use these, and none has its own."""

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
