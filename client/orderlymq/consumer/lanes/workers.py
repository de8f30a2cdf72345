"""
The workers of a consumer by key: tasks that call the listener with the work that the core gives out.

A task continues with the next work for as long as calls end without waiting, so a listener that never waits costs no
task per message. A call that waits keeps its task to itself, and another task takes the work after it. Rules: calls
that end in one turn of the loop become one event of the core. A call sees the context variables of the consumer's start
and those that it sets itself. A cancellation that is meant for one call reaches no other call.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from orderlymq.consumer.lanes.events import End, Ended, Listened, Work
from orderlymq.ownedtasks import OwnedTasks, reason


@dataclass(slots=True, eq=False)
class _Run:
    """One task and its current work."""

    task: asyncio.Task[None] | None = None
    work: Work | None = None
    has_slot: bool = False


class LaneWorkers:
    """All calls of one consumer's listener.

    Args:
        slots: a task holds one slot while it makes calls; no slot is free while the program does not ask for messages.
        listen: calls the listener.
        post: gets the ends of calls.
    """

    def __init__(
        self,
        name: str,
        tasks: OwnedTasks,
        slots: asyncio.Semaphore,
        *,
        listen: Callable[[Work], Awaitable[End]],
        post: Callable[[Ended], None],
    ) -> None:
        self._name = name
        self._tasks = tasks
        self._slots = slots
        self._listen = listen
        self._post = post
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._waiting: deque[Work] = deque()
        self._ends: list[End] = []
        self._runs: set[_Run] = set()
        # The run that takes the waiting work.
        self._next: _Run | None = None
        self._is_turn_due = False
        self._is_stopped = False

    def begin(self, work: Work) -> None:
        """Call the listener as soon as a slot is free; calls start in the order of calls to this method."""
        self._waiting.append(work)
        self._go_on()

    async def stop(self, within_s: float) -> None:
        """Cancel the running calls and drop the waiting work; the ends of calls that last longer than *within_s* are not posted."""
        self._waiting.clear()
        await self._tasks.end([run.task for run in self._runs if run.task is not None], within_s)
        self._runs.clear()
        self._turn()
        self._is_stopped = True

    # -- parts

    def _go_on(self) -> None:
        if self._next is not None or not self._waiting:
            return
        self._next = run = _Run()
        self._runs.add(run)
        lost = partial(self._lost, run)
        # Otherwise the task would start with the context variables of the call whose end led here.
        start = self._context.copy().run
        run.task = start(self._tasks.start, self._run(run), self._name, lost)

    async def _run(self, run: _Run) -> None:
        task = asyncio.current_task()  # an eager task runs before `_go_on` has stored it
        assert task is not None
        before = contextvars.copy_context()
        async with self._slots:
            run.has_slot = True
            self._turn_soon()
            while self._next is run and self._waiting:
                run.work = self._waiting.popleft()
                end = await self._listen(run.work)
                self._ends.append(end)
                run.work = None
                if task.cancelling() or not _is_same(before, contextvars.copy_context()):
                    break
        self._runs.discard(run)
        self._turn_soon()

    def _lost(self, run: _Run, error: BaseException) -> None:
        self._runs.discard(run)
        if run.work is not None:
            self._ends.append(Listened(run.work.attempt, reason(error)))
        if self._next is run:
            self._next = None
        self._turn_soon()

    def _turn_soon(self) -> None:
        if not self._is_turn_due:
            self._is_turn_due = True
            self._loop.call_soon(self._turn, context=self._context)

    def _turn(self) -> None:
        """Post the ended calls; a task that has not come back by now waits for something, so other tasks take the work."""
        self._is_turn_due = False
        if self._next is not None and self._next.has_slot:
            self._next = None
        ends, self._ends = self._ends, []
        if ends and not self._is_stopped:
            self._post(Ended(tuple(ends)))
        self._go_on()


def _is_same(before: contextvars.Context, now: contextvars.Context) -> bool:
    return len(before) == len(now) and all(before.get(each) is now[each] for each in now)
