"""
One key lane that is not idle, and the rows that store it.

States: Ready -> InHand(attempt, holder) -> idle, Ready, Parked(until), Held or DeadLettering. Lanes that are Parked or
Ready are handed out; a Held lane waits for an administrator, a DeadLettering one for its dead letter. A lane owes its
*head*, which is in memory, and after that the runs of its index, which are on disk, from (first offset, -1) to the last.
A lane that owes nothing has no row, unless it is in hand.
"""

from enum import IntEnum
from typing import Final

import msgspec

from orderlymq_broker.state.integerranges import Natural, Position

# The most owed offsets of a lane in memory, about 2 KiB, and in one run of its index, a few hundred bytes.
RUN_MAX: Final = 64
# The most bytes of a key that names a lane; a longer key is represented by a digest (``processors/lanes/scan.py``).
KEY_BYTES_MAX: Final = 1_024
# A member that dies may have many lanes in hand that waited for a worker. A lane that was in hand at two deaths in a
# row is a suspect, and goes only to members that have no other suspect.
SUSPECT_LOST: Final = 2


class LaneState(IntEnum):
    """The state of a lane; the numbers are in rows."""

    READY = 0
    IN_HAND = 1
    PARKED = 2
    HELD = 3
    DEAD_LETTERING = 4


class Lane(msgspec.Struct, array_like=True):
    """A lane.

    Attributes:
        number: given when the lane stops being idle; never used again in its queue.
        head: the first owed offsets, ascending; the first *taken* are in the attempt.
        attempt: the number of the newest hand-out, 0 if there was none.
        holder: the member that has it, or had it last.
        sequence: the holder's number of the fetch that got it.
        tries: how often the first message failed, or was in hand when a member ended without a report.
        lost: how often the latter happened in a row.
        due_ms: for a parked lane: the wall ms from which it is handed out.
        since_ms: the wall ms when it entered its state.
        stops: its message is dead under StopQueue, so the queue hands out nothing else.
        then: the first offset of the first run in the index, -1 if there is none.
        last: the last owed offset in the index.
        behind: the number of offsets in the index.
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
        """Whether the first message may kill its consumers."""
        return self.lost >= SUSPECT_LOST

    @property
    def first(self) -> int:
        """The first owed offset, or -1 if nothing is owed."""
        return self.head[0] if self.head else self.then

    @property
    def owed(self) -> int:
        """The number of owed messages."""
        return len(self.head) + self.behind

    def ends_at(self, offset: int) -> bool:
        """Return whether nothing is owed once the attempt is complete up to *offset*."""
        return 0 < self.taken == self.owed and self.head[-1] <= offset

    def check(self, scanned: int) -> None:
        """Assert the invariants."""
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
    """The row of a queue: every offset below *scanned* was scanned, *serial* is the last number given."""

    group: str
    topic: str
    queue_id: int
    scanned: int
    serial: int
