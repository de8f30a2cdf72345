"""
The queues of all groups that have lanes, and the number of such queues of each group.

The rule: a queue adds itself when it gets its first lane and discards itself when it loses its last one.
"""

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orderlymq_broker.state.lanes.queue import LaneQueue


class BusyQueues:
    """The queues that have lanes.

    Attributes:
        by_group: the number of them of each group.
    """

    __slots__ = ("by_group", "by_place")

    def __init__(self) -> None:
        self.by_place: dict[tuple[str, str, int], LaneQueue] = {}
        self.by_group: Counter[str] = Counter()

    def add(self, queue: "LaneQueue") -> None:
        """Add a queue that has lanes from now on."""
        self.by_place[queue.place] = queue
        self.by_group[queue.place[0]] += 1

    def discard(self, queue: "LaneQueue") -> None:
        """Remove a queue that no longer has lanes."""
        if self.by_place.pop(queue.place, None) is not None:
            group = queue.place[0]
            self.by_group[group] -= 1
            if not self.by_group[group]:
                del self.by_group[group]
