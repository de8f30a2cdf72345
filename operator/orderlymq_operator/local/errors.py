"""Errors on one machine, named by the caller's next step; commands turn each into an exit code."""


class LocalError(Exception):
    """The command cannot be done; the text is one sentence that says what to do."""


class RefusedError(LocalError):
    """It is not allowed as things stand; nothing was touched."""


class UnreachableError(LocalError):
    """Nobody answers who should."""


class FailedError(LocalError):
    """It was tried and did not work."""
