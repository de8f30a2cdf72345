"""
The viewers that follow a page now, up to a limit, and the event that is set when the console ends.

Rule: beyond the limit, the account with the most viewers gives its oldest place to one with fewer, so that no account takes all places.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Final, TypeVar

#: Each viewer costs one rendering a second.
VIEWERS_MAX: Final = 100

_Place = TypeVar("_Place")


class Viewers:
    """Counts the viewers, and ends them when the console ends."""

    def __init__(self) -> None:
        self.closing = asyncio.Event()
        # The event that ends each viewer, and the viewer's account; the oldest first.
        self._open: dict[asyncio.Event, str] = {}

    @property
    def count(self) -> int:
        """The number of viewers."""
        return len(self._open)

    def enter(self, account: str) -> asyncio.Event | None:
        """Add a viewer. Return the event that is set when it must end; None if there is no place for one more of *account*."""
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
        """Give a place back; harmless if another viewer has it already."""
        self._open.pop(ended, None)


def oldest_of_most(accounts: Mapping[_Place, str]) -> _Place:
    """Return the oldest place of the account with the most places; *accounts* lists the account of each place, the oldest first."""
    counts = Counter(accounts.values())
    most = max(counts, key=counts.__getitem__)
    return next(place for place, account in accounts.items() if account == most)
