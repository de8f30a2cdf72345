"""
The clock of a replica, corrected by its peers: the replicas of a raft group send each other their times of day.

The rule: if a majority of the raft group shows a time more than a minute earlier or later, this replica uses
the nearest time of that majority. So one wrong clock stamps no message and deletes none. If no majority
agrees on a time within a minute, the time is not confirmed, and nothing is deleted by it. Pure;
``server/peers.py`` exchanges the times.
"""

import logging
import math
from collections import deque
from collections.abc import Set as AbstractSet
from typing import Final

from orderlymq_broker.core.effects import CLOCK_STEP_MS, Now
from orderlymq_broker.replication.interfaces import Clock
from orderlymq_raft.types import NodeId

_log = logging.getLogger(__name__)

# How this machine's clock compares to those of its raft group, for the log.
_AGREED: Final = "agreed"
_CORRECTED: Final = "corrected"
_CONTESTED: Final = "contested"

# How many times of a peer are kept. The latest of them counts, because delays make times only earlier. Two links
# carry fewer before links to a silent peer are renewed.
SHOWN_KEPT: Final = 16


class GroupClock:
    """A `Clock`: this machine's own, unless a majority of the raft group contradicts it.

    Times of day are stored as differences to this machine's steady clock. So the last time of a peer stays
    valid while the peer is away, and the next call notices a step of the own clock. A delay on the network,
    or a pause of this process, makes a peer's time seem earlier, never later.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._peers: AbstractSet[NodeId] = frozenset()
        self._voters: AbstractSet[NodeId] = frozenset()
        # Time of day minus steady time, in ms: what each peer has shown last, and the sorted values of the
        # voters.
        self._shown: dict[NodeId, deque[float]] = {}
        self._shifts: list[float] = []
        self._majority = 1
        # The range of differences that no majority contradicts, and the range in which a majority confirms the
        # own clock.
        self._low, self._high = -math.inf, math.inf
        self._agreed_from, self._agreed_to = -math.inf, math.inf
        self._standing = _AGREED

    def now(self) -> Now:
        """Return the wall time that this replica uses, and monotonic time, in ms."""
        own, steady_ms = self._own.now(), self._steady_ms()
        if self._agreed_from <= own.wall_ms - steady_ms <= self._agreed_to:
            return own  # the usual case, for each request

        shift = own.wall_ms - steady_ms
        counted = min(max(shift, self._low), self._high)
        if abs(shift - counted) <= CLOCK_STEP_MS:
            counted = shift
        near = sum(abs(each - counted) <= CLOCK_STEP_MS for each in (shift, *self._shifts))

        return Now(round(counted + steady_ms), own.monotonic_ms, near >= self._majority)

    def seconds(self) -> float:
        """Return monotonic seconds, which advance while the machine sleeps."""
        return self._own.seconds()

    def own_ms(self) -> int:
        """Return this machine's time of day in ms, which is sent to peers."""
        return self._own.now().wall_ms

    def ahead_s(self) -> float:
        """Return by how many seconds this clock is ahead of a majority, negative if behind; 0 if within the majority's range."""
        return self._ahead_ms(self.own_ms()) / 1000

    def keep(self, peers: AbstractSet[NodeId], voters: AbstractSet[NodeId]) -> None:
        """Count the other *voters*; note the times of other *peers* too, because they may soon be voters."""
        self._peers, self._voters = peers, voters & peers
        self._shown = {node: shifts for node, shifts in self._shown.items() if node in peers}
        self._find_majority()

    def shown(self, node: NodeId, wall_ms: int) -> None:
        """Note the time of day that *node* has just shown; the time of a node that is not a peer is ignored."""
        if node not in self._peers:
            return
        shifts = self._shown.setdefault(node, deque(maxlen=SHOWN_KEPT))
        shifts.append(wall_ms - self._steady_ms())
        self._find_majority()
        self._report()

    def _steady_ms(self) -> float:
        return 1000 * self._own.seconds()

    def _ahead_ms(self, wall_ms: int) -> float:
        own = wall_ms - self._steady_ms()
        return own - min(max(own, self._low), self._high)

    def _find_majority(self) -> None:
        """Find the range of times that no majority contradicts, and the range in which a majority agrees with this machine."""
        self._shifts = shifts = sorted(
            max(shown) for node, shown in self._shown.items() if node in self._voters
        )
        self._majority = majority = (1 + len(self._voters)) // 2 + 1
        is_known = len(shifts) >= majority
        self._low = shifts[-majority] if is_known else -math.inf
        self._high = shifts[majority - 1] if is_known else math.inf
        own = self.own_ms() - self._steady_ms()
        nearest = sorted(shifts, key=lambda each: abs(each - own))[: majority - 1]
        is_agreed = len(nearest) == majority - 1
        self._agreed_from = (
            max(nearest, default=-math.inf) - CLOCK_STEP_MS if is_agreed else math.inf
        )
        self._agreed_to = min(nearest, default=math.inf) + CLOCK_STEP_MS if is_agreed else -math.inf

    def _report(self) -> None:
        ahead_s = self.ahead_s()
        own = self.own_ms() - self._steady_ms()
        if 1000 * abs(ahead_s) > CLOCK_STEP_MS:
            standing = _CORRECTED
        elif self.now().is_confirmed:
            standing = _AGREED
        elif any(abs(each - own) > CLOCK_STEP_MS for each in self._shifts):
            standing = _CONTESTED
        else:
            return  # too few peers have shown their times
        if standing == self._standing:
            return
        if standing == _CORRECTED:
            direction = "ahead of" if ahead_s > 0 else "behind"
            _log.error(
                "the clock of this machine is %.0f s %s a majority of the group, whose time is "
                "used here; set the clock",
                abs(ahead_s),
                direction,
            )
        elif standing == _CONTESTED:
            _log.error(
                "no majority of the group agrees with the time of this machine, so no data is "
                "deleted by its age here; set the clocks"
            )
        else:
            _log.info("the clock of this machine agrees with its group again")
        self._standing = standing
