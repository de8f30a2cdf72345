"""
Accepted connections whose callers have not proven their identity yet.

The rule: their number and time are limited for all callers together, and none keeps the next one out. If
there are too many, the oldest is closed. So a replica gets in as long as fewer strangers call during its
handshake than there is room for.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from orderlymq_broker.replication.transport.connection import FrameConnection

# A raft group has at most 14 members, and each opens a few connections at a time. One costs about 20 KB with the
# data that it may have sent.
UNPROVEN_MAX: Final = 128
# A greeting and its proof take two round trips: 1.6 s if one takes 800 ms.
GREETING_TIMEOUT_S: Final = 4.0

Close = Callable[[FrameConnection, str, str], None]


class UnprovenConnections:
    """Holds connections from when they are accepted until they are proven or closed.

    Args:
        close: called with a connection, the kind of the close and its reason.
    """

    def __init__(self, close: Close) -> None:
        self._close = close
        # The time at which each was accepted, oldest first.
        self._accepted_at: dict[FrameConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._accepted_at)

    def add(self, connection: FrameConnection) -> None:
        """Add a connection, and close the oldest if there are too many."""
        loop = asyncio.get_running_loop()
        self._accepted_at[connection] = loop.time()
        if len(self._accepted_at) > UNPROVEN_MAX:
            reason = (
                f"{UNPROVEN_MAX} other connections have not proven their identity, and this is "
                "the oldest"
            )
            self._drop(next(iter(self._accepted_at)), "crowded", reason)
        self._arm(loop)

    def discard(self, connection: FrameConnection) -> None:
        """Remove a connection that is proven or closed."""
        self._accepted_at.pop(connection, None)

    def close(self) -> None:
        """Close all connections."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._accepted_at):
            connection.abort()
        self._accepted_at.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start the timer for the oldest connection; a single timer keeps no closed connection in memory."""
        oldest = next(iter(self._accepted_at.values()), None)
        if self._timer is None and oldest is not None:
            self._timer = loop.call_at(oldest + GREETING_TIMEOUT_S, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        due = loop.time() - GREETING_TIMEOUT_S
        for connection in [each for each, at in self._accepted_at.items() if at <= due]:
            reason = f"it did not greet and prove its identity within {GREETING_TIMEOUT_S:g} s"
            self._drop(connection, "silent", reason)
        self._arm(loop)

    def _drop(self, connection: FrameConnection, kind: str, reason: str) -> None:
        del self._accepted_at[connection]
        self._close(connection, kind, reason)
