"""
Deadlines by the leader's clock: the ends of leases of queue locks and lanes, and of requests that wait. Pure.

Deadlines in the same millisecond are stored together, and a renewed one is removed from its former time
immediately. So neither the memory nor the time of one check grows with renewals.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# How many times without a deadline the heap may hold before it is rebuilt.
_HEAP_SLACK: Final = 64


class DeadlineQueue(Generic[K]):
    """The deadlines of keys, one for each key.

    Attributes:
        ends: monotonic time in milliseconds of each key's deadline.
    """

    def __init__(self) -> None:
        self.ends: dict[K, int] = {}
        self._by_end: dict[int, dict[K, None]] = {}
        # A heap of all times with a deadline, and of some that have none any more.
        self._times: list[int] = []

    def set(self, key: K, end_ms: int) -> None:
        """Set or renew the deadline of a key."""
        self.cancel(key)
        self.ends[key] = end_ms
        keys = self._by_end.get(end_ms)
        if keys is None:
            keys = self._by_end[end_ms] = {}
            heappush(self._times, end_ms)
            if len(self._times) > 2 * len(self._by_end) + _HEAP_SLACK:
                self._times = sorted(self._by_end)
        keys[key] = None

    def cancel(self, key: K) -> None:
        """Remove the deadline of a key, if it has one."""
        end_ms = self.ends.pop(key, -1)
        keys = self._by_end.get(end_ms)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._by_end[end_ms]

    def clear(self) -> None:
        """Remove all deadlines."""
        self.ends.clear()
        self._by_end.clear()
        self._times.clear()

    def pop_expired(self, now_ms: int) -> Iterator[K]:
        """Yield and remove the keys whose deadline is over, earliest first; others may be set and cancelled meanwhile."""
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
