"""
Cached state: a reconcile that uses it may only find that there is nothing to do.

Rule: the caller opens `deciding_from_cache`, and every change inside it raises `NotReadError`. The caller then reads
the current state and decides again.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar


class NotReadError(Exception):
    """A change would be decided from cached state: read the current state, then decide again."""


_CACHED: ContextVar[bool] = ContextVar("cached", default=False)


@contextmanager
def deciding_from_cache() -> Iterator[None]:
    """Refuse changes inside this context, because they would be decided from cached state.

    Writes of statuses and events stay allowed: the next reconcile corrects them.
    """
    before = _CACHED.set(True)
    try:
        yield
    finally:
        _CACHED.reset(before)


def may_change() -> bool:
    """Return whether changes are allowed; if so, cached state must not be used."""
    return not _CACHED.get()


def must_have_read() -> None:
    """Check that changes are allowed.

    Raises:
        NotReadError: they are not; see `deciding_from_cache`.
    """
    if not may_change():
        raise NotReadError
