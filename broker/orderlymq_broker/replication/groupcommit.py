"""
Group commit: how long proposals linger for others while an entry is on its way.

An entry costs three syncs and its way to the followers and back, as much CPU as fifteen messages in it. So
proposals linger while one is on its way, until there are so many that the next should go immediately, or until
most of the time has passed that an entry takes here: the next one then leaves while the last is answered.
That time is measured, because a busy machine needs several times as long for an entry as an idle one, and
entries that leave too early there only add to what it is busy with. ``loop.py`` asks before each entry, for what ``proposals.py`` keeps.
"""

from typing import Final

LINGER_COUNT_MAX: Final = 48
#: A shorter wait saves nothing.
LINGER_MIN_S: Final = 0.002
#: So much counts of one entry: what takes longer met a disk that hangs or waited for a lost majority.
ENTRY_MAX_S: Final = 0.020
#: Which part of an entry's usual time the next one waits at most.
LINGER_PART: Final = 0.8

# The weight of the newest entry in the usual time: a few entries show that the machine has become busy.
_WEIGHT: Final = 1 / 8


class GroupCommit:
    """The rule by which a leader lets proposals wait; times in seconds of one clock."""

    def __init__(self) -> None:
        self._written_at = 0.0
        self._usual_s = 0.0
        #: How long the first proposal waits at most, counted from the last entry's beginning.
        self.limit_s = LINGER_MIN_S

    def began(self, now: float) -> None:
        """Note that an entry was handed to the disk."""
        self._written_at = now

    def ended(self, elapsed_s: float) -> None:
        """Note that an entry was committed and applied, *elapsed_s* after it was proposed."""
        self._usual_s += (min(elapsed_s, ENTRY_MAX_S) - self._usual_s) * _WEIGHT
        self.limit_s = max(self._usual_s * LINGER_PART, LINGER_MIN_S)

    def lingers(self, collected: int, now: float) -> bool:
        """Return whether *collected* proposals still wait, an entry being on its way."""
        return collected < LINGER_COUNT_MAX and now - self._written_at < self.limit_s
