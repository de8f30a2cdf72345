"""Errors of local commands, named by what the caller can do next; commands turn each into an exit code."""

import errno
import os
import pwd
from pathlib import Path
from typing import Final

_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)


def in_words(error: OSError) -> str:
    """Return what the system refused; for a file that may not be used, also which folder needs which rights."""
    if error.errno not in _FORBIDDEN or not isinstance(error.filename, str | os.PathLike):
        return str(error)
    folder = Path(error.filename).parent
    return (
        f"the system refuses the access to a file in {folder} ({error.strerror}); the folder and its files must be readable "
        f"and writable by the user {_user()}, who runs this program"
    )


def _user() -> str:
    try:
        return repr(pwd.getpwuid(os.geteuid()).pw_name)
    except KeyError:  # a container may run as a number without a name
        return str(os.geteuid())


class LocalError(Exception):
    """The command cannot be done; the text is one sentence that says what to do."""


class RefusedError(LocalError):
    """The present state does not allow the command; nothing was changed."""


class HeldError(RefusedError):
    """A supervisor, or a command that starts or ends one, holds the data directory; *owner* says which process."""

    def __init__(self, directory: str, owner: str) -> None:
        super().__init__(
            f"a supervisor{owner} already runs on {directory}, or is starting or stopping; change its cluster with `orderlymq "
            "apply`, or stop it with `orderlymq down`"
        )
        self.owner = owner


class UnreachableError(LocalError):
    """The process that should answer does not."""


class BusyError(UnreachableError):
    """A process has not answered in time; it may answer later."""


class FailedError(LocalError):
    """The command was tried and did not work."""


class InterruptedWaitError(LocalError):
    """The user interrupted the command; the operation that it waited for continues."""
