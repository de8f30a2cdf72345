"""
Tasks with an owner: they are started with a name and ended together, and their failures are never lost.

For objects that live from `start()` to `close()`, where a TaskGroup's block does not fit. Rule: only the owner ends
a task early, by `stop` or `cancel`. Any other early end is logged and reported to the object that waits for the
result; that includes a `CancelledError` raised by a user's code.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, Self, TypeAlias

_log = logging.getLogger(__name__)

RESTART_S: Final = 1.0  # a loop that always fails must not fill the log

Lost: TypeAlias = Callable[[BaseException], object]
"""Called with the exception that ended a task early: a `CancelledError` if other code cancelled it."""


def reason(error: BaseException) -> str:
    """Return why a task ended before its time, as text that can be sent: lone surrogates become `?`."""
    cancelled = isinstance(error, asyncio.CancelledError)
    text = "cancelled" if cancelled else f"{type(error).__name__}: {error}"
    return text.encode("utf-8", "replace").decode()


class Lifecycle:
    """An object with `start` and `close`; `async with` calls both."""

    async def start(self) -> None:
        """Begin."""
        raise NotImplementedError

    async def close(self) -> None:
        """End."""
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close()


class Shutdown:
    """The end of one object. It runs as its own task, so that a cancelled `close` does not leave the object half open.

    The first call of `close` begins it, and every call waits for it.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run *work*, which ends the object; only the end of the loop cancels it."""
        self._task = asyncio.create_task(work, name=name)

    async def wait(self) -> None:
        """Return when the work is done, or immediately if it was never begun; raise its error."""
        if self._task is not None:
            await asyncio.shield(self._task)


class OwnedTasks:
    """The tasks of one object; `cancel` ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: set[asyncio.Task[None]] = set()
        self._restarts: dict[str, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._tasks)

    def start(
        self, work: Coroutine[Any, Any, None], name: str, lost: Lost | None = None
    ) -> asyncio.Task[None]:
        """Run *work*; if it raises or another caller cancels it, log that and call *lost*."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(partial(self._ended, lost))
        return task

    def keep(
        self, work: Callable[[], Coroutine[Any, Any, None]], name: str, ended: Lost | None = None
    ) -> asyncio.Task[None]:
        """Run *work*, which should never end; if it ends anyway, call *ended* and start it again after a second."""

        def begin_again() -> None:
            del self._restarts[name]
            self.keep(work, name, ended)

        def lost(error: BaseException) -> None:
            if ended is not None:
                ended(error)
            loop = asyncio.get_running_loop()
            self._restarts[name] = loop.call_later(RESTART_S, begin_again)

        return self.start(work(), name, lost)

    def stop(self, task: asyncio.Task[None]) -> None:
        """Cancel one task; its `lost` is not called, even if the task has just failed by itself."""
        if task not in self._tasks:
            return
        self._stopped.add(task)
        task.cancel()

    async def cancel(self, within_s: float | None = None) -> None:
        """Cancel all tasks and wait until they have ended, or for at most *within_s*."""
        for handle in self._restarts.values():
            handle.cancel()
        self._restarts.clear()
        mine = [task for task in self._tasks if task is not asyncio.current_task()]
        await self.end(mine, within_s)

    async def end(
        self, tasks: Iterable[asyncio.Task[None]], within_s: float | None = None
    ) -> set[asyncio.Task[None]]:
        """Stop some tasks and wait until they have ended.

        Return the tasks that still run after *within_s*; they have no owner from then on.
        """
        stopped = list(tasks)
        for task in stopped:
            self.stop(task)
        if within_s is None:
            await asyncio.gather(*stopped, return_exceptions=True)
            return set()
        if not stopped:
            return set()
        _, left = await asyncio.wait(stopped, timeout=within_s)
        self._tasks -= left

        return left

    def _ended(self, lost: Lost | None, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        stopped = task in self._stopped
        self._stopped.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("the task %s failed", task.get_name(), exc_info=error)
        elif not task.cancelled() or stopped:
            return
        else:
            _log.error("the task %s was cancelled by other code", task.get_name())
        if lost is not None and not stopped:
            lost(asyncio.CancelledError() if error is None else error)
