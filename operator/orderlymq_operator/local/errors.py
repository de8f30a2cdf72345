"""Errors on one machine, named by the caller's next step; commands turn each into an exit code."""


class LocalError(Exception):
    """The command cannot be done; the text is one sentence that says what to do."""


class RefusedError(LocalError):
    """It is not allowed as things stand; nothing was touched."""


class HeldError(RefusedError):
    """A supervisor holds the data directory, or a command that starts or ends one; *owner* says which process."""

    def __init__(self, directory: str, owner: str) -> None:
        super().__init__(
            f"a supervisor{owner} runs on {directory} already, or just begins or ends; change its cluster with "
            "`orderlymq apply`, or stop it with `orderlymq down`"
        )
        self.owner = owner


class UnreachableError(LocalError):
    """Nobody answers who should."""


class BusyError(UnreachableError):
    """Nobody has answered yet who may answer later."""


class FailedError(LocalError):
    """It was tried and did not work."""


class InterruptedWaitError(LocalError):
    """Somebody interrupted the command, and what it waited for goes on."""
