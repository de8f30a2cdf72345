"""
When leases end, by the leader's clock: of queue locks and of lanes alike. Pure.

A lease that is renewed leaves its former end in the heap, where it is passed over when it is met; there are never many of these.
"""

from collections.abc import Hashable, Iterator
from heapq import heapify, heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Entries of the heap that renewals have outdated, before it is made again.
_HEAP_SLACK: Final = 64


class LeaseClocks(Generic[K]):
    """The ends of running leases by what they are of.

    Attributes:
        ends: monotonic milliseconds at which each lease is over.
    """

    def __init__(self) -> None:
        self.ends: dict[K, int] = {}
        # An entry counts only while it agrees with `ends`.
        self._due: list[tuple[int, K]] = []

    def run(self, key: K, end_ms: int) -> None:
        """Begin a lease, or begin it again."""
        self.ends[key] = end_ms
        heappush(self._due, (end_ms, key))
        if len(self._due) > 2 * len(self.ends) + _HEAP_SLACK:
            self._due = [(end, each) for each, end in self.ends.items()]
            heapify(self._due)

    def stop(self, key: K) -> None:
        """Forget a lease, if it runs."""
        self.ends.pop(key, None)

    def clear(self) -> None:
        """Forget all leases."""
        self.ends.clear()
        self._due.clear()

    def over(self, now_ms: int) -> Iterator[K]:
        """Yield what leases are over of, the earliest first, and forget these."""
        while self._due and self._due[0][0] < now_ms:
            end_ms, key = heappop(self._due)
            if self.ends.get(key) == end_ms:
                del self.ends[key]
                yield key
