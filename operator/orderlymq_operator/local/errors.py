"""Errors of local commands, named by what the caller can do next; commands turn each into an exit code."""


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
