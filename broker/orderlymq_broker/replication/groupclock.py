"""
The clock of a replica, which its peers correct: the replicas of a group show each other their times of day.

The rule: where a majority of the group shows a time that is more than a minute earlier, or later, this replica goes by the
nearest time of that majority. So one wrong clock stamps no message and deletes none. Pure; ``server/peers.py``
exchanges the times.
"""

import logging
import math
from collections.abc import Set as AbstractSet

from orderlymq_broker.core.effects import CLOCK_STEP_MS, Now
from orderlymq_broker.replication.interfaces import Clock
from orderlymq_raft.types import NodeId

_log = logging.getLogger(__name__)


class GroupClock:
    """A `Clock`: this machine's own where no majority of the group contradicts it.

    Times of day are kept as differences to this machine's steady clock, so what a peer has shown stays good
    while it is away, and a step of the own clock is seen by the next call.
    """

    def __init__(self, own: Clock) -> None:
        self._own = own
        self._peers: AbstractSet[NodeId] = frozenset()
        self._shifts: dict[NodeId, float] = {}  # of peers: time of day less steady time, in ms
        self._low, self._high = -math.inf, math.inf
        self._is_corrected = False

    def now(self) -> Now:
        """Return the wall time that this replica goes by, and monotonic time, in ms."""
        own = self._own.now()
        ahead_ms = self._ahead_ms(own.wall_ms)
        if abs(ahead_ms) <= CLOCK_STEP_MS:
            return own

        return Now(own.wall_ms - round(ahead_ms), own.monotonic_ms)

    def seconds(self) -> float:
        """Return seconds that go on while the machine sleeps."""
        return self._own.seconds()

    def own_ms(self) -> int:
        """Return this machine's time of day in ms, which peers are shown."""
        return self._own.now().wall_ms

    def ahead_s(self) -> float:
        """Return by how many seconds this machine's clock is ahead of a majority, negative behind it; 0 between the others."""
        return self._ahead_ms(self.own_ms()) / 1000

    def keep(self, peers: AbstractSet[NodeId]) -> None:
        """Let *peers* count: all other members of the group."""
        self._peers = peers
        self._shifts = {node: shift for node, shift in self._shifts.items() if node in peers}
        self._find_majority()

    def shown(self, node: NodeId, wall_ms: int) -> None:
        """Note the time of day that *node* has shown just now; one that is no member counts for nothing."""
        if node not in self._peers:
            return
        self._shifts[node] = wall_ms - self._steady_ms()
        self._find_majority()
        self._report()

    def _steady_ms(self) -> float:
        return 1000 * self._own.seconds()

    def _ahead_ms(self, wall_ms: int) -> float:
        own = wall_ms - self._steady_ms()
        return own - min(max(own, self._low), self._high)

    def _find_majority(self) -> None:
        """Find the earliest and the latest time that no majority contradicts."""
        shifts = sorted(self._shifts.values())
        majority = (1 + len(self._peers)) // 2 + 1
        is_known = len(shifts) >= majority
        self._low = shifts[-majority] if is_known else -math.inf
        self._high = shifts[majority - 1] if is_known else math.inf

    def _report(self) -> None:
        ahead_s = self.ahead_s()
        is_corrected = 1000 * abs(ahead_s) > CLOCK_STEP_MS
        if is_corrected and not self._is_corrected:
            direction = "ahead of" if ahead_s > 0 else "behind"
            _log.error(
                "the clock of this machine is %.0f s %s a majority of the group, whose time counts here; set the clock",
                abs(ahead_s),
                direction,
            )
        elif self._is_corrected and not is_corrected:
            _log.info("the clock of this machine agrees with its group again")
        self._is_corrected = is_corrected
