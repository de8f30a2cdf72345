"""
How long the event loop of this process stood still: a histogram that `/metrics` shows.

A timer is due every `PERIOD_S`; its delay is how long a callback, or the machine, kept the loop from it. The
CPU time of the loop's thread in that span distinguishes the two. A callback that computes uses CPU time; a process that
gets no CPU or waits for a disk does not. The timer costs a hundred short callbacks a second.
"""

import asyncio
import time
from typing import Final

from prometheus_client import CollectorRegistry, Histogram

# A stall is measured to within this; the limit that matters is ten times as long.
PERIOD_S: Final = 0.01
_SECONDS: Final = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 3.0)


class LoopStall:
    """Measures the running loop from `start` to `close`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        histogram = Histogram(
            "orderlymq_loop_stall_seconds",
            "Seconds by which the event loop was late for a timer; clock=cpu counts only the CPU "
            "time of its thread",
            labelnames=["clock"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._wall = histogram.labels("wall")
        self._cpu = histogram.labels("cpu")
        self._timer: asyncio.TimerHandle | None = None
        self._due_s = 0.0
        self._cpu_s = 0.0

    def start(self) -> None:
        """Begin measuring; the loop must run in the calling thread."""
        self._arm(asyncio.get_running_loop())

    def close(self) -> None:
        """Stop; harmless if it never began."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        self._cpu_s = time.thread_time()
        self._due_s = loop.time() + PERIOD_S
        self._timer = loop.call_at(self._due_s, self._measure, loop)

    def _measure(self, loop: asyncio.AbstractEventLoop) -> None:
        late_s = max(0.0, loop.time() - self._due_s)
        self._wall.observe(late_s)
        self._cpu.observe(min(late_s, time.thread_time() - self._cpu_s))
        self._arm(loop)
