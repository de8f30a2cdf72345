"""
The owner of the background tasks of a process: no task ends in silence.

The rule: the code that starts a task says what its failure means. Work that is done once is reported and
counted, and ends the process when that cannot do without it (`once`); work that goes on for ever begins
again after a pause that grows (`keep`). The starter of a task may still cancel it. A task that fails again and
again is `ailing`, until it has run well for `RESTART_MAX_S`; the process shows it in `/readyz` and `/healthz`.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, Final, TypeVar

_log = logging.getLogger(__name__)

# A task that failed by chance is back immediately; one that fails always costs a log line every ten seconds.
RESTART_FIRST_S: Final = 0.1
RESTART_MAX_S: Final = 10.0

# With pauses that double, the tenth failure in a row comes after about 35 s.
AILING_FAILURES: Final = 10

_Result = TypeVar("_Result")


class Supervisor:
    """Starts tasks, hears of each failure, and decides what follows.

    Life cycle: made, `once` and `keep` at any time, `close` at the end.

    Args:
        failed: called when work has failed without which the process cannot go on.
        pause: waits for seconds; tests have their own.
        clock: tells seconds; tests have their own.

    Attributes:
        failures: how often tasks failed, by their kind; for a metric.
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
        # By name the failures in a row of work that is kept, and the last error.
        self._in_a_row: dict[str, tuple[int, str]] = {}
        # By name of work that is kept and runs now, when it has run well for long enough to forgive those failures.
        self._well_at: dict[str, float] = {}

    @property
    def ailing(self) -> list[str]:
        """Return what fails again and again, each with its last error."""
        now = self._clock()
        return [
            f"{name} fails again and again: {error}"
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
        """Run *work* to its end; the task's result is None when it failed.

        Failures are counted under *kind*; *name* distinguishes one of a kind from the others. Without the result
        of work that *is_vital* the process cannot go on.
        """
        task = self._start(self._watch(kind, name or kind, work, is_vital), name or kind)
        # Where the task ends before its first step, nobody has awaited the work.
        task.add_done_callback(lambda _: work.close())
        return task

    def keep(
        self,
        kind: str,
        make: Callable[[], Coroutine[Any, Any, None]],
        *,
        name: str | None = None,
    ) -> "asyncio.Task[None]":
        """Run what *make* returns, and again whenever it fails; its return is its end."""
        return self._start(self._repeat(kind, name or kind, make), name or kind)

    def guard(self, kind: str, call: Callable[[], object]) -> None:
        """Make one call of a timer, which goes on after a failure; many in a row are ailing."""
        try:
            call()
        except Exception as error:
            self._failed_again(kind, kind, error)
        else:
            self._in_a_row.pop(kind, None)

    def callback_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Count what a callback of *loop* has raised; for its `set_exception_handler`."""
        self.failures["callback"] += 1
        loop.default_exception_handler(context)

    async def close(self) -> None:
        """Cancel what still runs and wait for its end."""
        await end_tasks(self._tasks)

    def report(self, kind: str, name: str, error: Exception) -> None:
        """Log and count a failure that was met elsewhere."""
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
    ended = list(tasks)  # a task may leave its owner's set by its end
    for task in ended:
        task.cancel()
    await asyncio.gather(*ended, return_exceptions=True)


async def finish_in_thread(call: Callable[..., _Result], *arguments: Any) -> _Result:
    """Run *call* in a thread and wait for its end, also when the waiting task is cancelled.

    For work on something that is closed next: a thread cannot be cancelled.
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
            _log.warning("work that nobody waits for any more failed: %s", failure)
        raise cancelled
    return work.result()
