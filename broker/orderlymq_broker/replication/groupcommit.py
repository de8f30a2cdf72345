"""
Group commit: how long proposals linger for others to share their entry.

An entry costs three syncs and a round trip to the followers, as much CPU as fifteen messages in it. So
proposals linger in two cases.

While an entry is on its way, they linger until there are enough of them to send the next one immediately, or
until most of the usual time of an entry has passed. The next entry then leaves while the last one is
answered.

After an entry, they linger for the clients that it has answered, if most of these usually propose again
within that time. Otherwise the clients would keep taking turns: each entry would carry one half of them while
the other half waits.

Both times are measured, because a busy machine needs several times as long as an idle one, and entries that
leave too early only add to its load. ``loop.py`` asks before each entry about the proposals in
``proposals.py``.
"""

from collections.abc import Callable
from math import ceil
from typing import Final

LINGER_COUNT_MAX: Final = 48
#: A shorter wait for an entry on its way brings no gain.
LINGER_MIN_S: Final = 0.002
#: The most time that counts for one entry: a longer one met a disk that hangs or waited for a lost majority.
ENTRY_MAX_S: Final = 0.020
#: Proposals linger at most for this fraction of an entry's usual time.
LINGER_PART: Final = 0.8
#: Of the clients that an entry has answered, this share must have proposed again; the rest is not waited for.
RETURN_SHARE: Final = 0.75

# The weight of the newest entry in the usual times: a few entries show that the machine has become busy.
_WEIGHT: Final = 1 / 8
# A return counts at most this many usual times of an entry: a longer one only shows that it takes too long.
_RETURN_MAX: Final = 2


class GroupCommit:
    """Decides how long a leader lets proposals wait; *seconds* is a clock.

    Attributes:
        limit_s: how long proposals linger at most while an entry is on its way, counted from the start of its write.
    """

    def __init__(self, seconds: Callable[[], float]) -> None:
        self.limit_s = LINGER_MIN_S
        self._seconds = seconds
        self._began_at = 0.0
        self._usual_s = 0.0
        self._answered_at = 0.0
        self._usual_return_s = ENTRY_MAX_S
        self._returned = 0
        self._wanted = 0

    def began(self) -> None:
        """Note that an entry was handed to the disk."""
        self._began_at = self._seconds()

    def ended(self, elapsed_s: float, answered: int) -> None:
        """Note that an entry of *answered* proposals was applied, *elapsed_s* after it was proposed."""
        self._usual_s += (min(elapsed_s, ENTRY_MAX_S) - self._usual_s) * _WEIGHT
        self.limit_s = max(self._usual_s * LINGER_PART, LINGER_MIN_S)
        if self._returned < self._wanted:
            self._note_return()
        self._answered_at = self._seconds()
        self._returned = 0
        self._wanted = ceil(answered * RETURN_SHARE)

    def arrived(self) -> None:
        """Note that a client has proposed something."""
        self._returned += 1
        if self._returned == self._wanted:
            self._note_return()

    def linger_s(self, collected: int, *, on_its_way: bool) -> float:
        """Return how long *collected* proposals wait from now on; 0 or less means not at all.

        *on_its_way* tells whether an entry is proposed and not applied yet.
        """
        if collected >= LINGER_COUNT_MAX:
            return 0.0
        if on_its_way:
            return self._began_at + self.limit_s - self._seconds()
        limit_s = self._usual_s * LINGER_PART
        if self._returned >= self._wanted or self._usual_return_s >= limit_s:
            return 0.0
        return self._answered_at + limit_s - self._seconds()

    def _note_return(self) -> None:
        elapsed_s = min(self._seconds() - self._answered_at, self._usual_s * _RETURN_MAX)
        self._usual_return_s += (elapsed_s - self._usual_return_s) * _WEIGHT
