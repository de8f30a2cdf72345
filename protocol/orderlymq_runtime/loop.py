"""
Run a process: the event loop, the signals that end it, and enough open files for its clients.

The first SIGTERM or SIGINT cancels the main coroutine once, which then hands over and closes what it
owns; a second one ends the process at once, for someone is waiting, and so does a close that takes too
long, which says what it waited for. Exit codes follow the shell's custom: 0 after an asked-for end,
128 + signal when it was forced.
"""

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from orderlymq_runtime import openfiles

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

# Before Kubernetes loses patience, which kills after 30 s and learns nothing.
CLOSE_MAX_S: Final = 20.0

# A thread that wants the interpreter from a busy event loop gets it after so long. The one that writes the log wants it
# before and after every sync, and Python's own 5 ms are the time of several syncs.
THREAD_SWITCH_S: Final = 0.0005


def run(main: Coroutine[Any, Any, int | None], *, close_max_s: float = CLOSE_MAX_S) -> int:
    """Run *main* until it returns or a signal ends it; return the exit code.

    Exceptions of *main* pass through; being cancelled by a signal is a normal end (0). What it does then
    may take *close_max_s* seconds.
    """
    openfiles.raise_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_supervise(main, close_max_s))


async def _supervise(main: Coroutine[Any, Any, int | None], close_max_s: float) -> int:
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(main, name="main")
    signalled = False

    def on_signal(number: signal.Signals) -> None:
        nonlocal signalled
        if signalled:
            _log.warning("%s again: leaving at once", number.name)
            os._exit(128 + number)
        signalled = True
        _log.info("%s: shutting down", number.name)
        task.cancel()
        loop.call_later(close_max_s, _give_up, close_max_s, number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        return await task or 0
    except asyncio.CancelledError:
        if not signalled:
            raise
        return 0
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def _give_up(after_s: float, number: signal.Signals) -> None:
    waiting = "".join(
        f"\n{task.get_name()}\n{''.join(_stack_of(task))}" for task in asyncio.all_tasks()
    )
    _log.error("not closed within %g s: leaving at once; what is under way:%s", after_s, waiting)
    logging.shutdown()
    os._exit(128 + number)


def _stack_of(task: "asyncio.Task[Any]") -> list[str]:
    """Return where *task* waits, down to the innermost coroutine."""
    frames = []
    inner: Any = task.get_coro()
    while inner is not None and getattr(inner, "cr_frame", None) is not None:
        frames.append((inner.cr_frame, inner.cr_frame.f_lineno))
        inner = inner.cr_await
    return traceback.StackSummary.extract(iter(frames)).format()
