"""
Run a process: the event loop, the signals that end it, and enough open files for its clients.

The first SIGTERM or SIGINT cancels the main coroutine once, which then hands over and closes what it
owns; a second one ends the process at once, for someone is waiting. Exit codes follow the shell's
custom: 0 after an asked-for end, 128 + signal when it was forced.
"""

import asyncio
import logging
import os
import signal
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from orderlymq_runtime import openfiles

_log = logging.getLogger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run(main: Coroutine[Any, Any, int | None]) -> int:
    """Run *main* until it returns or a signal ends it; return the exit code.

    Exceptions of *main* pass through; being cancelled by a signal is a normal end (0).
    """
    openfiles.raise_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_supervise(main))


async def _supervise(main: Coroutine[Any, Any, int | None]) -> int:
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
