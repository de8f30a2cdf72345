"""
Stacks of the threads and tasks of this process, as RocketMQ's tools show them for a consumer (307).

Rule: the text is for people who look for a listener that hangs. It is bounded and contains only names of code, no
values.
"""

import asyncio
import sys
import threading
import traceback
from collections.abc import Iterator
from itertools import islice
from typing import Final

#: At most half a MiB of an answer; with the other data of a consumer, that is far below what a broker passes on.
LENGTH_MAX: Final = 256 * 1024
THREADS_MAX: Final = 500
TASKS_MAX: Final = 500
DEPTH_MAX: Final = 60


def stacks() -> str:
    """Return the stack of every thread, and of every task of the running loop, the innermost call last."""
    text = "\n".join([*_threads(), *_tasks()])

    return text[:LENGTH_MAX]


def _threads() -> Iterator[str]:
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in islice(sys._current_frames().items(), THREADS_MAX):
        calls = "".join(traceback.format_stack(frame, DEPTH_MAX))
        yield f"thread {names.get(ident, 'of another library')}, id {ident}\n{calls}"


def _tasks() -> Iterator[str]:
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # no loop runs here
        return
    for task in islice(sorted(tasks, key=lambda each: each.get_name()), TASKS_MAX):
        frames = task.get_stack(limit=DEPTH_MAX)
        calls = "".join(line for each in frames for line in traceback.format_stack(each, 1))
        yield f"task {task.get_name()}\n{calls}"
