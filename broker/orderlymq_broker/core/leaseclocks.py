"""
When leases end, by the leader's clock: of queue locks and of lanes alike. Pure.

Leases that end in the same millisecond stand together, and a renewed one leaves its former end immediately: the memory, and the time of
one look, do not grow with renewals.
"""

from collections.abc import Hashable, Iterator
from heapq import heappop, heappush
from typing import Final, Generic, TypeVar

K = TypeVar("K", bound=Hashable)

# Times at which no lease ends any more, before they are left out.
_HEAP_SLACK: Final = 64


class LeaseClocks(Generic[K]):
    """The ends of running leases by their subjects.

    Attributes:
        ends: monotonic milliseconds at which each lease is over.
    """

    def __init__(self) -> None:
        self.ends: dict[K, int] = {}
        self._by_end: dict[int, dict[K, None]] = {}
        # A heap of all times at which leases end, and of some at which none does any more.
        self._times: list[int] = []

    def run(self, key: K, end_ms: int) -> None:
        """Begin a lease, or begin it again."""
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
        """Forget a lease, if it runs."""
        end_ms = self.ends.pop(key, -1)
        keys = self._by_end.get(end_ms)
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._by_end[end_ms]

    def clear(self) -> None:
        """Forget all leases."""
        self.ends.clear()
        self._by_end.clear()
        self._times.clear()

    def over(self, now_ms: int) -> Iterator[K]:
        """Yield what leases are over of, the earliest first, and forget these; leases may begin and stop in between."""
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
