"""
Time slices of a connection table: how long it hands requests over before the event loop serves its timers and other sockets.

One read may bring thousands of requests, and thousands of connections may read in one loop iteration. When the time slice (a
turn) is over, a connection that still has requests waits in a queue; the loop then runs timers and reads from its other sockets before
the queue resumes. After a pause a turn begins by itself, so that a single request costs a reading of the clock and no callback.
"""

import asyncio
import math
from collections import deque
from typing import Final, Protocol

# The leader of a raft group answers its peers between turns; they wait ten times as long before they elect another. A burst of 64 sends
# takes a third of a turn. If a burst is split, its rest costs a log entry of its own, in this turn and in each that follows.
TURN_S: Final = 0.015
# For all peers that hang up in one loop iteration: time for hundreds of requests, but short enough for replicas to hear their leader.
GOODBYE_S: Final = 0.05
# If nothing was handed over for this long, the loop did something else meanwhile. Loop clocks count milliseconds.
_PAUSE_S: Final = 0.001


class Waiter(Protocol):
    """A connection, or the router, with requests that are not handed over yet."""

    def resume(self) -> None:
        """Hand requests over until the turn is over, and wait again if there are more."""


class Turns:
    """The turns of one connection table, and the queue of connections that wait for the next turn."""

    def __init__(self) -> None:
        self._waiting: deque[Waiter] = deque()
        self._is_due = False
        self._worked_at = self._until = -math.inf
        self._goodbye_until: float | None = None

    @property
    def has_waiters(self) -> bool:
        """Whether a connection waits already."""
        return bool(self._waiting)

    def may_begin(self, now: float) -> bool:
        """Return whether requests that came at *now* can be handed over immediately."""
        if self._waiting:
            return False
        if now - self._worked_at >= _PAUSE_S:
            self._until = now + TURN_S
        return now < self._until

    def is_over(self, now: float) -> bool:
        """Record that a request was handed over at *now*; return whether the turn is over."""
        self._worked_at = now
        return now >= self._until

    def goodbye_until(self, now: float) -> float:
        """Return until when a peer that hung up at *now* is served; all such peers of one loop iteration share the time."""
        if self._goodbye_until is None:
            self._goodbye_until = now + GOODBYE_S
            asyncio.get_running_loop().call_soon(self._end_goodbyes)
        return self._goodbye_until

    def _end_goodbyes(self) -> None:
        self._goodbye_until = None

    def wait(self, waiter: Waiter) -> None:
        """Let *waiter*, which does not wait yet, resume after the others."""
        self._waiting.append(waiter)
        self._schedule()

    def wait_first(self, waiter: Waiter) -> None:
        """Let *waiter*, which does not wait yet, resume before the others, because its requests came before theirs."""
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
