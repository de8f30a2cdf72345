"""
Accepted connections whose callers have not proven their identity yet.

The rule: they are bounded in number and in time for all callers, and none keeps the next one out. The oldest goes when
there are too many, so that a replica gets in as long as fewer strangers call during its handshake
than there is room for.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from orderlymq_broker.replication.transport.connection import FrameConnection

# A group has 14 members at most, and each opens a few at a time. One costs about 20 KB with what it may have sent.
UNPROVEN_MAX: Final = 128
# A greeting and its proof take two round trips: 1.6 s where one takes 800 ms.
GREETING_TIMEOUT_S: Final = 4.0

Close = Callable[[FrameConnection, str, str], None]


class UnprovenConnections:
    """Holds them from when they are accepted until they are proven or gone.

    Args:
        close: is given a connection, the kind of the close and its reason.
    """

    def __init__(self, close: Close) -> None:
        self._close = close
        # Oldest first: when each was accepted.
        self._accepted_at: dict[FrameConnection, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._accepted_at)

    def add(self, connection: FrameConnection) -> None:
        """Take one more, and close the oldest when that is one too many."""
        loop = asyncio.get_running_loop()
        self._accepted_at[connection] = loop.time()
        if len(self._accepted_at) > UNPROVEN_MAX:
            reason = f"{UNPROVEN_MAX} others have not proven who they are, and it is the oldest"
            self._drop(next(iter(self._accepted_at)), "crowded", reason)
        self._arm(loop)

    def discard(self, connection: FrameConnection) -> None:
        """Forget one that is proven or gone."""
        self._accepted_at.pop(connection, None)

    def close(self) -> None:
        """Close all of them."""
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self._accepted_at):
            connection.abort()
        self._accepted_at.clear()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Wait for the oldest: one timer for all, which holds nothing that is closed."""
        oldest = next(iter(self._accepted_at.values()), None)
        if self._timer is None and oldest is not None:
            self._timer = loop.call_at(oldest + GREETING_TIMEOUT_S, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        due = loop.time() - GREETING_TIMEOUT_S
        for connection in [each for each, at in self._accepted_at.items() if at <= due]:
            reason = f"it did not greet and prove who it is within {GREETING_TIMEOUT_S:g} s"
            self._drop(connection, "silent", reason)
        self._arm(loop)

    def _drop(self, connection: FrameConnection, kind: str, reason: str) -> None:
        del self._accepted_at[connection]
        self._close(connection, kind, reason)
