"""
Time limits of calls: one timer serves all calls of a listener, since nearly all of them end long before.

Rules, as in `asyncio.timeout`: a block that exceeds its limit is cancelled once. The `CancelledError` of that
cancellation, and of no other, becomes a `TimeoutError` when it leaves the block.
"""

import asyncio
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final

_NEVER: Final = float("inf")
# The clock of a loop counts milliseconds, so its timer may fire up to one early.
_EARLY_S: Final = 0.001


@dataclass(slots=True, eq=False)
class CallLimit:
    """A block in a task that is cancelled at the loop time *end*."""

    limits: "CallLimits"
    task: asyncio.Task[object]
    limit_s: float
    end: float
    cancelling: int
    is_over: bool = False

    def __enter__(self) -> None:
        self.limits.add(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.limits.remove(self)
        if self.is_over:
            is_other = self.task.uncancel() > self.cancelling
            if kind is asyncio.CancelledError and not is_other:
                text = f"cancelled, because it ran for longer than the consumeTimeout of {self.limit_s:g} s"
                raise TimeoutError(text) from error


@dataclass(slots=True)
class CallLimits:
    """The limits of all running calls."""

    _running: set[CallLimit] = field(default_factory=set)
    _timer: asyncio.TimerHandle | None = None
    _at: float = _NEVER

    def within(self, limit_s: float) -> CallLimit:
        """Return a block for the current task that may take up to *limit_s*."""
        task = asyncio.current_task()
        assert task is not None
        end = asyncio.get_running_loop().time() + limit_s
        return CallLimit(self, task, limit_s, end, task.cancelling())

    def add(self, limit: CallLimit) -> None:
        """Start to watch the limit."""
        self._running.add(limit)
        if limit.end < self._at:
            self._wake(limit.end)

    def remove(self, limit: CallLimit) -> None:
        """Stop watching the limit; the timer stays, for the calls that follow."""
        self._running.discard(limit)

    def _wake(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._at = at
        self._timer = asyncio.get_running_loop().call_at(at, self._fire)

    def _fire(self) -> None:
        self._timer, self._at = None, _NEVER
        now = asyncio.get_running_loop().time() + _EARLY_S
        for limit in self._running:
            if not limit.is_over and limit.end <= now:
                limit.is_over = True
                limit.task.cancel()
        ends = [each.end for each in self._running if not each.is_over]
        if ends:
            self._wake(min(ends))
