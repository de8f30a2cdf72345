"""
Room that many owners share: no owner has more than `FACTOR` times the rest.

One owner alone may take most of it, and further owners still find room, however many there are. With a single limit
for all, the first owner could take everything; fixed parts would be too small if there are few owners. Pure.
"""

from collections import Counter
from collections.abc import Hashable
from typing import Final

# One owner alone gets three quarters; two get three sevenths each.
FACTOR: Final = 3


class SharedRoom:
    """Room of a *size*, in any unit.

    Attributes:
        used: the total that all owners have.
    """

    __slots__ = ("_parts", "_size", "used")

    def __init__(self, size: int) -> None:
        self._size = size
        self.used = 0
        self._parts: Counter[Hashable] = Counter()

    def part(self, owner: Hashable) -> int:
        """Return how much an owner has."""
        return self._parts[owner]

    def has_room(
        self, owner: Hashable, more: int, *, pending: int = 0, pending_of_all: int = 0
    ) -> bool:
        """Return whether an owner may have *more* in addition; *pending* room counts as taken."""
        part = self._parts[owner] + pending + more

        return part <= FACTOR * (self._size - self.used - pending_of_all - more)

    def take(self, owner: Hashable, count: int) -> None:
        """Add *count*, which may be negative, to an owner's part."""
        self.used += count
        self._parts[owner] += count
        if not self._parts[owner]:
            del self._parts[owner]

    def parts(self) -> dict[Hashable, int]:
        """Return the part of each owner that has any."""
        return dict(self._parts)
