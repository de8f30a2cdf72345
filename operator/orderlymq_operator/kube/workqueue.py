"""
The work queue: keys that wait for a reconcile, each at most once, each handled by one worker at a time.

Rules: a key that is added while a worker handles it is handled once more, because the reconcile may have read the
objects before the change. After each failure, a key waits longer before it comes back; a success resets that.
"""

import asyncio
from collections.abc import Hashable
from typing import Final, Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

RETRY_FIRST_S: Final = 0.25
# A key that fails for minutes needs a change by a person, and that change wakes the queue anyway.
RETRY_MAX_S: Final = 15.0


class WorkQueue(Generic[Key]):
    """Keys to handle: `add` from anywhere in the loop, `take` and `done` by workers."""

    def __init__(self) -> None:
        self._ready: dict[Key, None] = {}  # in the order of arrival
        self._busy: set[Key] = set()
        self._again: set[Key] = set()
        self._later: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._wake = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    @property
    def idle(self) -> bool:
        """True if no key waits and no worker handles one."""
        return not (self._ready or self._busy or self._again)

    def add(self, key: Key) -> None:
        """Queue *key* to be handled as soon as possible."""
        timer = self._later.pop(key, None)
        if timer is not None:
            timer.cancel()
        if key in self._busy:
            self._again.add(key)
        else:
            self._ready[key] = None
            self._wake.set()

    def add_after(self, key: Key, delay_s: float) -> None:
        """Queue *key* to be handled after *delay_s*, or earlier if it is added meanwhile."""
        loop = asyncio.get_running_loop()
        timer = self._later.get(key)
        if timer is not None:
            if timer.when() <= loop.time() + delay_s:
                return
            timer.cancel()
        self._later[key] = loop.call_later(delay_s, self.add, key)

    async def take(self) -> Key:
        """Wait for a key and return it; `done` or `failed` must follow."""
        while not self._ready:
            self._wake.clear()
            await self._wake.wait()
        key = next(iter(self._ready))
        del self._ready[key]
        self._busy.add(key)
        return key

    def done(self, key: Key) -> None:
        """Report that *key* was handled."""
        self._failures.pop(key, None)
        self._release(key)

    def failed(self, key: Key, pause_s: float = 0) -> float:
        """Report that handling *key* failed; queue it again after at least *pause_s*. Return the delay."""
        count = self._failures[key] = self._failures.get(key, 0) + 1
        delay_s = max(pause_s, min(RETRY_MAX_S, RETRY_FIRST_S * 2.0 ** min(count - 1, 16)))
        # A key that was added meanwhile is handled without the delay, because it reports a new change.
        self._release(key)
        if key not in self._ready:
            self.add_after(key, delay_s)
        return delay_s

    def _release(self, key: Key) -> None:
        self._busy.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)
