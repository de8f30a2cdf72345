"""
Who looks now: those who follow a page, up to a limit, and the moment when the console ends.

Rule: beyond the limit the account with most gives its oldest up to one that has fewer, so that none takes the places of all.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

#: Each costs a rendering a second.
VIEWERS_MAX: Final = 100

_Place = TypeVar("_Place")


class Viewers:
    """Counts those who look, and ends them when the console ends."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        # What ends each, and its account, the oldest first.
        self._open: dict[asyncio.Event, str] = {}

    @property
    def count(self) -> int:
        """How many look."""
        return len(self._open)

    def enter(self, account: str) -> asyncio.Event | None:
        """Return what is set when a new viewer has to end; None where there is no place for one more of *account*."""
        if self.count >= VIEWERS_MAX:
            counts, oldest = Counter(self._open.values()), oldest_of_most(self._open)
            if counts[self._open[oldest]] <= counts[account] + 1:
                return None
            oldest.set()
            self.leave(oldest)
        ended = asyncio.Event()
        self._open[ended] = account
        return ended

    def leave(self, ended: asyncio.Event) -> None:
        """Give a place back; harmless when it was given to another one."""
        self._open.pop(ended, None)


def oldest_of_most(accounts: Mapping[_Place, str]) -> _Place:
    """Return the first of the places, whose accounts are given with the oldest first, of the account that has most."""
    counts = Counter(accounts.values())
    most = max(counts, key=counts.__getitem__)
    return next(place for place, account in accounts.items() if account == most)
