"""
Backoff: the pause before the next reconcile while the operator waits for something that no watch shows.

Pure. Rule: pauses are short while the state changes and for some reconciles after that, then they grow. If the state
does not change for long, a person must act, and that person's change wakes the worker anyway.
"""

from collections.abc import Hashable
from typing import Final

from orderlymq_operator.kube.errors import ApiError, ConflictError, RetryLaterError

FIRST_S: Final = 1.0
MAX_S: Final = 15.0
# More reconciles than the operator needs to detect a lost replica, or than a restarted replica needs to come back.
SOON_OBSERVATIONS: Final = 10


class Backoff:
    """The number of consecutive reconciles of each key that found the same state."""

    def __init__(self) -> None:
        self._same: dict[Hashable, tuple[Hashable, int]] = {}

    def pause_s(
        self, key: Hashable, found: Hashable, first_s: float = FIRST_S, max_s: float = MAX_S
    ) -> float:
        """Return the pause (s) after a reconcile that *found* this: *first_s* while it is new, then up to *max_s*."""
        before, times = self._same.get(key, (None, 0))
        times = times + 1 if before == found else 0
        self._same[key] = found, times
        return float(min(max_s, first_s * 2.0 ** min(10, max(0, times - SOON_OBSERVATIONS))))

    def forget(self, key: Hashable) -> None:
        """Reset a key, because nothing is expected any more."""
        self._same.pop(key, None)


# With the pauses of the work queue, this is about two seconds, enough for an API server that is starting.
_PASSING_FAILURES: Final = 3


class Failures:
    """Counts consecutive API errors with the same text, by key, to report only errors that do not pass."""

    def __init__(self) -> None:
        self._same: dict[Hashable, tuple[str, int]] = {}

    def stays(self, key: Hashable, error: ApiError) -> bool:
        """Return whether an error is permanent: a refusal, or too many equal answers 409 or 500 in succession."""
        if not isinstance(error, ConflictError | RetryLaterError):
            return True
        if error.status not in (409, 500):  # other such errors are always temporary
            return False
        text = str(error)
        before, times = self._same.get(key, ("", 0))
        times = times + 1 if before == text else 1
        self._same[key] = text, times
        return times > _PASSING_FAILURES

    def forget(self, key: Hashable) -> None:
        """Reset *key*, because a reconcile succeeded or its object is gone."""
        self._same.pop(key, None)
