"""
Backoff: how soon to reconcile again while something is expected that no watch shows.

Pure. Rule: soon while things change and for some reconciles after that, then later and later. What has not come for a
while waits for a person, whose change wakes the worker anyway.
"""

from collections.abc import Hashable
from typing import Final

from orderlymq_operator.kube.api import ApiError, ConflictError, RetryLaterError

FIRST_S: Final = 1.0
MAX_S: Final = 15.0
# More than it takes to be sure that a replica is lost, or for one that was restarted to be back.
SOON_OBSERVATIONS: Final = 10


class Backoff:
    """How many reconciles of each key in a row have found the same."""

    def __init__(self) -> None:
        self._same: dict[Hashable, tuple[Hashable, int]] = {}

    def pause_s(
        self, key: Hashable, found: Hashable, first_s: float = FIRST_S, max_s: float = MAX_S
    ) -> float:
        """Return how long to wait (s) after a reconcile that has *found* this: *first_s* while that is news."""
        before, times = self._same.get(key, (None, 0))
        times = times + 1 if before == found else 0
        self._same[key] = found, times
        return float(min(max_s, first_s * 2.0 ** min(10, max(0, times - SOON_OBSERVATIONS))))

    def forget(self, key: Hashable) -> None:
        """Start over: nothing is expected any more."""
        self._same.pop(key, None)


# About two seconds, as the work queue paces them: an API server that starts is over it by then.
_PASSING_FAILURES: Final = 3


class Failures:
    """How often in a row the API server has failed with the same text, by key; an error that stays is reported."""

    def __init__(self) -> None:
        self._same: dict[Hashable, tuple[str, int]] = {}

    def stays(self, key: Hashable, error: ApiError) -> bool:
        """Return whether an error does not pass: the API server has refused, or answered 409 or 500 so often."""
        if not isinstance(error, ConflictError | RetryLaterError):
            return True
        if error.status not in (409, 500):  # others say by themselves that they pass
            return False
        text = str(error)
        before, times = self._same.get(key, ("", 0))
        times = times + 1 if before == text else 1
        self._same[key] = text, times
        return times > _PASSING_FAILURES

    def forget(self, key: Hashable) -> None:
        """Start over: a reconcile of *key* has succeeded, or its object is gone."""
        self._same.pop(key, None)
