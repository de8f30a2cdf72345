"""
Room that many share: nobody has more than `FACTOR` times the rest.

One owner alone may take most of it, and further owners still find room, however many there are. One limit for all
would be taken by the first owner that wants all of it, and a fixed part would be too small where there are few. Pure.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final

# One alone gets three quarters, two get three sevenths each.
FACTOR: Final = 3


class SharedRoom:
    """Room of a *size*, in whatever it is counted.

    Attributes:
        used: what all have together.
    """

    __slots__ = ("_parts", "_size", "used")

    def __init__(self, size: int) -> None:
        self._size = size
        self.used = 0
        self._parts: Counter[Hashable] = Counter()

    def part(self, owner: Hashable) -> int:
        """Return what somebody has."""
        return self._parts[owner]

    def has_room(
        self, owner: Hashable, more: int, *, pending: int = 0, pending_of_all: int = 0
    ) -> bool:
        """Return whether an owner may have so much more; *pending* room counts as taken."""
        part = self._parts[owner] + pending + more

        return part <= FACTOR * (self._size - self.used - pending_of_all - more)

    def take(self, owner: Hashable, count: int) -> None:
        """Note that somebody has *count* more, or less."""
        self.used += count
        self._parts[owner] += count
        if not self._parts[owner]:
            del self._parts[owner]

    def parts(self) -> dict[Hashable, int]:
        """Return the part of each owner that has any."""
        return dict(self._parts)
