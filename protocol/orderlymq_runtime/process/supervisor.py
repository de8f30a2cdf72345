"""
The owner of the background tasks of a process: no task ends silently.

Rules: the code that starts a task says what its failure means. A failure of work that is done once is reported and
counted, and ends the process if the process cannot do without that work (`once`). Work that goes on for ever starts
again after a growing pause (`keep`). The starter of a task may still cancel it. A task that fails again and
again is `ailing`, until it has run without failure for `RESTART_MAX_S`; the process shows this in `/readyz` and `/healthz`.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

_log = logging.getLogger(__name__)

# A task that failed by chance is back immediately; a task that always fails costs a log line every ten seconds.
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 10.0

# With pauses that double, the tenth failure in a row comes after about 35 s.
AILING_FAILURES: Final = 10

_Result = TypeVar("_Result")


class Supervisor:
    """Starts tasks, learns of each failure, and decides what follows.

    Life cycle: made, `once` and `keep` at any time, `close` at the end.

    Args:
        failed: called when work fails without which the process cannot go on.
        pause: waits for seconds; tests pass their own.
        clock: returns seconds; tests pass their own.

    Attributes:
        failures: number of failures by the kind of task, for a metric.
    """

    def __init__(
        self,
        failed: Callable[[Exception], None] | None = None,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self.failures: Counter[str] = Counter()
        self._failed = failed
        self._tasks: set[asyncio.Task[Any]] = set()
        # For each name of kept work: its failures in a row, and the last error.
        self._in_a_row: dict[str, tuple[int, str]] = {}
        # For each name of kept work that runs now: the time from which it has run for long enough to forgive those failures.
        self._well_at: dict[str, float] = {}

    @property
    def ailing(self) -> list[str]:
        """The tasks that fail again and again, each with its last error."""
        now = self._clock()
        return [
            f"{name} fails repeatedly: {error}"
            for name, (count, error) in self._in_a_row.items()
            if count >= AILING_FAILURES and now < self._well_at.get(name, math.inf)
        ]

    def once(
        self,
        kind: str,
        work: Coroutine[Any, Any, _Result],
        *,
        name: str | None = None,
        is_vital: bool = False,
    ) -> "asyncio.Task[_Result | None]":
        """Run *work* to its end; the task's result is None if it failed.

        Failures are counted under *kind*; *name* distinguishes one of a kind from the others. If the work *is_vital*,
        the process cannot go on without its result.
        """
        task = self._start(self._watch(kind, name or kind, work, is_vital), name or kind)
        # If the task ends before its first step, the work was never awaited.
        task.add_done_callback(lambda _: work.close())
        return task

    def keep(
        self,
        kind: str,
        make: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str | None = None,
    ) -> "asyncio.Task[None]":
        """Run the coroutine that *make* returns, and a new one each time that it fails; if it returns, the work ends."""
        return self._start(self._repeat(kind, name or kind, make), name or kind)

    def guard(self, kind: str, call: Callable[[], object]) -> None:
        """Make one call for a timer, which goes on after a failure; many failures in a row make it ailing."""
        try:
            call()
        except Exception as error:
            self._failed_again(kind, kind, error)
        else:
            self._in_a_row.pop(kind, None)

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count an exception of a callback of *loop*; for its `set_exception_handler`."""
        self.failures["callback"] += 1
        loop.default_exception_handler(context)

    async def close(self) -> None:
        """Cancel all tasks that still run, and wait for their end."""
        await end_tasks(self._tasks)

    def report(self, kind: str, name: str, error: Exception) -> None:
        """Log and count a failure that was noticed elsewhere."""
        self.failures[kind] += 1
        _log.error("%s failed", name, exc_info=error)

    def _failed_again(self, kind: str, name: str, error: Exception) -> None:
        self.report(kind, name, error)
        count, _ = self._in_a_row.get(name, (0, ""))
        self._in_a_row[name] = (count + 1, f"{type(error).__name__}: {error}")

    def _start(self, work: Coroutine[Any, Any, _Result], name: str) -> "asyncio.Task[_Result]":
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch(
        self, kind: str, name: str, work: Coroutine[Any, Any, _Result], is_vital: bool
    ) -> _Result | None:
        try:
            return await work
        except Exception as error:
            self.report(kind, name, error)
            if is_vital and self._failed is not None:
                self._failed(error)
            return None

    async def _repeat(
        self, kind: str, name: str, make: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        delay_s = RESTART_FIRST_S
        try:
            while True:
                self._well_at[name] = well_at = self._clock() + RESTART_MAX_S
                try:
                    await make()
                    return
                except Exception as error:
                    self._well_at.pop(name, None)
                    if self._clock() >= well_at:
                        # It ran well in between.
                        delay_s = RESTART_FIRST_S
                        self._in_a_row.pop(name, None)
                    self._failed_again(kind, name, error)
                await self._pause(delay_s)
                delay_s = min(2 * delay_s, RESTART_MAX_S)
        finally:
            self._in_a_row.pop(name, None)
            self._well_at.pop(name, None)


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel *tasks* and wait until they have ended."""
    ended = list(tasks)  # a task leaves its owner's set when it ends
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def finish_in_thread(call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run *call* in a thread and wait for its end, even if the waiting task is cancelled.

    Use it for work on an object that is closed next, because a thread cannot be cancelled.
    """
    work = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        failure = work.exception()
        if failure is not None:
            _log.warning("a task whose result is no longer needed failed: %s", failure)
        raise cancelled
    return work.result()
