"""
Tasks with an owner: started with a name, ended together, their failures never lost.

For objects whose life spans `start()` and `close()`, where a TaskGroup's block does not fit.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

_log = logging.getLogger(__name__)


class OwnedTasks:
    """The tasks of one object; `cancel` ends them all."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run *work*; a failure is logged with the task's name."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def cancel(self) -> None:
        """Cancel everything and wait until it has ended."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def drain(self, timeout_s: float) -> bool:
        """Wait until everything has ended by itself; tell whether it did."""
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        if not tasks:
            return True
        _, pending = await asyncio.wait(tasks, timeout=timeout_s)
        return not pending

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("the task %s failed", task.get_name(), exc_info=task.exception())
