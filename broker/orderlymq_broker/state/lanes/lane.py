"""
One key lane that is not idle, and the rows that keep it.

States: Ready -> InHand(attempt, holder) -> idle, Ready, Parked(until), Held or Dying; Parked and Ready are handed out, Held waits
for an administrator, Dying for its dead letter. A lane owes its *head*, which is in memory, and behind it the runs of its index, which are on
disk: (first offset, -1) to the last. A lane that owes nothing has no row, unless it is in hand.
"""

from enum import IntEnum
from typing import Final

import msgspec

from orderlymq_broker.state.integerranges import Natural, Position

# Owed offsets of one lane in memory, some 2 KiB, and in one run of its index, a few hundred bytes.
RUN_MAX: Final = 64
# Bytes of a key that a lane is known by; a longer one is known by a digest (``processors/lanes/scan.py``).
KEY_BYTES_MAX: Final = 1_024
# A member that dies may have had many lanes in hand that waited for a worker. One that was in hand at two deaths in a row is
# a suspect, and goes to members that have no other one.
SUSPECT_LOST: Final = 2


class LaneState(IntEnum):
    """Reason for which a lane waits; numbers stand in rows."""

    READY = 0
    IN_HAND = 1
    PARKED = 2
    HELD = 3
    DYING = 4


class Lane(msgspec.Struct, array_like=True):
    """A lane.

    Attributes:
        number: given when the lane stopped to be idle; unique in its queue for ever.
        head: the first owed offsets, rising; the first *taken* are in the attempt.
        attempt: number of the newest hand-out, 0 when there was none.
        holder: the member that has it, or had it last.
        sequence: the holder's number of the fetch that got it.
        tries: how often the first message has failed, or was in hand of a member that ended without a word.
        lost: how often the latter in a row.
        due_ms: of a parked lane: wall ms from which it is handed out.
        since_ms: wall ms when it came into its state.
        stops: its message is dead under StopQueue, so the queue hands nothing else out.
        then: first offset of the first run in the index, -1 when there is none.
        last: last owed offset in the index.
        behind: how many offsets the index has.
    """

    number: Position
    key: str
    head: tuple[int, ...] = ()
    state: LaneState = LaneState.READY
    attempt: Position = 0
    taken: Natural = 0
    holder: str = ""
    sequence: int = 0
    lease_ms: Natural = 0
    tries: Natural = 0
    due_ms: int = 0
    since_ms: int = 0
    reason: str = ""
    stops: bool = False
    then: int = -1
    last: int = -1
    behind: int = 0
    lost: Natural = 0

    @property
    def is_suspect(self) -> bool:
        """Return whether the first message may kill its consumers."""
        return self.lost >= SUSPECT_LOST

    @property
    def first(self) -> int:
        """Return the first owed offset, -1 when nothing is owed."""
        return self.head[0] if self.head else self.then

    @property
    def owed(self) -> int:
        """Return how many messages are owed."""
        return len(self.head) + self.behind

    def ends_at(self, offset: int) -> bool:
        """Return whether nothing is owed once the attempt is complete up to *offset*."""
        return 0 < self.taken == self.owed and self.head[-1] <= offset

    def check(self, scanned: int) -> None:
        """Assert what always holds."""
        assert self.owed or self.state == LaneState.IN_HAND, f"an idle lane is kept: {self}"
        assert self.taken <= len(self.head) <= RUN_MAX, self
        assert self.state == LaneState.IN_HAND or not self.taken, self
        assert self.state != LaneState.IN_HAND or (self.holder and self.attempt), self
        assert list(self.head) == sorted(set(self.head)), self
        assert (self.then < 0) == (self.behind == 0), self
        assert self.then < 0 or self.then <= self.last < scanned, self
        assert not self.head or self.head[-1] < (scanned if self.then < 0 else self.then), self
        assert not self.stops or self.state in (
            LaneState.PARKED,
            LaneState.IN_HAND,
            LaneState.READY,
        ), self


class LaneRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a lane."""

    group: str
    topic: str
    queue_id: int
    lane: Lane


class QueueRow(msgspec.Struct, frozen=True, array_like=True):
    """The row of a queue: every offset below *scanned* was looked at, *serial* is the last number given."""

    group: str
    topic: str
    queue_id: int
    scanned: int
    serial: int
