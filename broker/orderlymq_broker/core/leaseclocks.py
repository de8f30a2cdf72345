"""
The ends of leases of queue locks and lanes, by the leader's clock. Pure.

Leases that end in the same millisecond are stored together, and a renewed lease is removed from its former
end immediately. So neither the memory nor the time of one check grows with renewals.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# How many times without a lease the heap may hold before it is rebuilt.
_HEAP_SLACK: Final = 64


class LeaseClocks(Generic[K]):
    """The ends of running leases by their keys.

    Attributes:
        ends: monotonic time in milliseconds at which each lease ends.
    """

    def __init__(self) -> None:
        self.ends: dict[K, int] = {}
        self._by_end: dict[int, dict[K, None]] = {}
        # A heap of all times at which leases end, and of some at which none ends any more.
        self._times: list[int] = []

    def run(self, key: K, end_ms: int) -> None:
        """Begin or renew a lease."""
        self.stop(key)
        self.ends[key] = end_ms
        keys = self._by_end.get(end_ms)
        if keys is None:
            keys = self._by_end[end_ms] = {}
            heappush(self._times, end_ms)
            if len(self._times) > 2 * len(self._by_end) + _HEAP_SLACK:
                self._times = sorted(self._by_end)
        keys[key] = None

    def stop(self, key: K) -> None:
        """Drop a lease if it runs."""
        end_ms = self.ends.pop(key, -1)
        keys = self._by_end.get(end_ms)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._by_end[end_ms]

    def clear(self) -> None:
        """Drop all leases."""
        self.ends.clear()
        self._by_end.clear()
        self._times.clear()

    def over(self, now_ms: int) -> Iterator[K]:
        """Yield and drop the keys whose leases are over, earliest first; leases may begin and stop meanwhile."""
        while self._times and self._times[0] < now_ms:
            end_ms = self._times[0]
            keys = self._by_end.get(end_ms)
            if keys is None:
                heappop(self._times)
                continue
            key, _ = keys.popitem()
            if not keys:
                del self._by_end[end_ms]
            if self.ends.get(key) == end_ms:
                del self.ends[key]
                yield key
