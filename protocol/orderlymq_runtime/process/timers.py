"""The timers of a process by name; each name has one timer at most."""

import asyncio
from collections.abc import Callable


class Timers:
    """Calls that the event loop makes later.

    Arm a repeated timer before its work is done, so that a failure does not stop it.
    """

    def __init__(self) -> None:
        self._handles: dict[str, asyncio.TimerHandle] = {}

    def arm(self, name: str, delay_s: float, call: Callable[[], None]) -> None:
        """Make *call* after *delay_s* seconds; a pending timer of that name is cancelled."""
        self.stop(name)
        self._handles[name] = asyncio.get_running_loop().call_later(delay_s, call)

    def stop(self, name: str) -> None:
        """Cancel the timer of that name, if there is one."""
        timer = self._handles.pop(name, None)
        if timer is not None:
            timer.cancel()

    def close(self) -> None:
        """Cancel all timers."""
        for name in list(self._handles):
            self.stop(name)
