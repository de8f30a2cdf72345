"""The timer of a push consumer's core: the core has no clock, so the timer wakes it when it asked for that."""

import asyncio
from collections.abc import Callable

from orderlymq.consumer.push.brokercalls import lease_clock_ms


class CoreTimer:
    """Calls *tick* at the time that was set last."""

    def __init__(self, tick: Callable[[], None]) -> None:
        self._tick = tick
        self._handle: asyncio.TimerHandle | None = None
        self._at_ms: int | None = None

    def set(self, at_ms: int | None) -> None:
        """Wake at a time of the lease clock; None means never."""
        if at_ms == self._at_ms:
            return
        self.stop()
        self._at_ms = at_ms
        if at_ms is not None:
            delay_s = max(0, at_ms - lease_clock_ms()) / 1000
            self._handle = asyncio.get_running_loop().call_later(delay_s, self._fire)

    def stop(self) -> None:
        """Do not wake until the timer is set again."""
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._at_ms = None

    def _fire(self) -> None:
        self._handle = self._at_ms = None
        self._tick()
