"""
Group commit: how long proposals linger for others while an entry is on its way.

An entry costs three syncs and its way to the followers and back, as much CPU as fifteen messages in it. So
proposals linger while one is on its way, until there are so many that the next should go immediately, or until
most of the time has passed that an entry takes here: the next one then leaves while the last is answered.
That time is measured, because a busy machine needs several times as long for an entry as an idle one, and
entries that leave too early there only add to what it is busy with. ``loop.py`` asks before each entry.
"""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from orderlymq_broker.core.effects import Propose
from orderlymq_broker.core.entrybuilder import next_group

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


class WaitingProposals:
    """The proposals that are not in the log yet, in their order, and the timer that ends their linger."""

    def __init__(
        self,
        seconds: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], object],
        wake: Callable[[], None],
    ) -> None:
        self.group_commit = GroupCommit()
        self._seconds = seconds
        self._call_later = call_later
        self._wake = wake
        self._queue: deque[Propose] = deque()
        self._timer_runs = False

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, proposal: Propose) -> None:
        """Put a proposal behind the others."""
        self._queue.append(proposal)

    def next_group(self) -> Sequence[Propose]:
        """Take out the proposals of the next entry."""
        return next_group(self._queue)

    def put_back(self, group: Sequence[Propose]) -> None:
        """Put *group* before the others again: the log did not take it."""
        self._queue.extendleft(reversed(group))

    def take_all(self) -> Sequence[Propose]:
        """Take out all proposals, for a replica that leads no more."""
        taken, self._queue = self._queue, deque()
        return taken

    def lingers(self) -> bool:
        """Return whether they wait for others, an entry being on its way."""
        return self.group_commit.lingers(len(self._queue), self._seconds())

    def end_later(self) -> None:
        """Wake the loop when the linger ends, in case that no write or commit does so before."""
        if not self._timer_runs:
            self._timer_runs = True
            self._call_later(self.group_commit.limit_s, self._end)

    def _end(self) -> None:
        self._timer_runs = False
        if self._queue:
            self._wake()
