"""
Time slices of a connection table: how long it hands requests over before the event loop serves its timers and other sockets.

One read may bring thousands of requests, and thousands of connections may read in one iteration of the loop. When the time slice (a
turn) is over, a connection that still has requests waits in a queue; the loop then runs timers and reads from its other sockets before
the queue resumes. A turn begins again by itself after a pause, so that a request that comes alone costs a reading of the clock and no callback.
"""

import asyncio
import math
from collections import deque
from typing import Final, Protocol

# A leader of a group answers its peers in between; they wait ten times as long before they elect another. A burst of 64 sends
# takes a third of it: the rest of one that is parted costs an entry of its own, in this turn and in each that follows.
TURN_S: Final = 0.015
# Of all peers that hang up in one iteration of the loop: hundreds of requests, and not enough to keep replicas from hearing their leader.
GOODBYE_S: Final = 0.05
# Nothing was handed over for so long: the loop was somewhere else meanwhile. The clocks of loops count milliseconds.
_PAUSE_S: Final = 0.001


class Waiter(Protocol):
    """A connection, or the router, with requests that are not handed over yet."""

    def resume(self) -> None:
        """Hand requests over until the turn is over, and wait again if there are more."""


class Turns:
    """The turns of one table of connections, and the queue of those that wait for the next."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._is_due = False
        self._worked_at = self._until = -math.inf
        self._goodbye_until: float | None = None

    @property
    def has_waiters(self) -> bool:
        """Return whether a connection waits already."""
        return bool(self._waiting)

    def may_begin(self, now: float) -> bool:
        """Return whether what has come at *now* can be handed over immediately."""
        if self._waiting:
            return False
        if now - self._worked_at >= _PAUSE_S:
            self._until = now + TURN_S
        return now < self._until

    def is_over(self, now: float) -> bool:
        """Return, after a request was handed over at *now*, whether the time is up."""
        self._worked_at = now
        return now >= self._until

    def goodbye_until(self, now: float) -> float:
        """Return until when a peer that has hung up at *now* is served: those of one iteration of the loop share the time."""
        if self._goodbye_until is None:
            self._goodbye_until = now + GOODBYE_S
            asyncio.get_running_loop().call_soon(self._end_goodbyes)
        return self._goodbye_until

    def _end_goodbyes(self) -> None:
        self._goodbye_until = None

    def wait(self, waiter: Waiter) -> None:
        """Let *waiter*, which does not wait yet, go on behind the others."""
        self._waiting.append(waiter)
        self._schedule()

    def wait_first(self, waiter: Waiter) -> None:
        """Let *waiter*, which does not wait yet, go on before the others: what it holds came before what they hold."""
        self._waiting.appendleft(waiter)
        self._schedule()

    def _schedule(self) -> None:
        if self._waiting and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        self._is_due = False
        self._until = loop.time() + TURN_S
        try:
            while self._waiting:
                self._waiting.popleft().resume()
                if self.is_over(loop.time()):
                    break
        finally:
            self._schedule()
