"""Run a server on uvloop, with enough open files for its clients, until it is asked to end."""

import sys
from collections.abc import Coroutine
from typing import Any, Final

import uvloop

from orderlymq_runtime.process import ending, openfiles

# A thread that wants the interpreter gets it from a busy event loop after this time. The thread that writes the log wants it
# before and after every sync, and Python's default of 5 ms is as long as several syncs.
THREAD_SWITCH_S: Final = 0.0005


def run(main: Coroutine[Any, Any, int | None], *, close_max_s: float = ending.CLOSE_MAX_S) -> int:
    """Run *main* as `ending.run` does."""
    openfiles.raise_limit()
    sys.setswitchinterval(THREAD_SWITCH_S)
    return ending.run(main, close_max_s=close_max_s, loop_factory=uvloop.new_event_loop)
