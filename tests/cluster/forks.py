"""
Broker and name server processes that are forked from a process that has imported both.

An import of the broker takes half a second of CPU time, and a group of three starts four processes. A forked process
runs the same `main` as `python -m`. It has its own session, environment and log, and tests signal and kill it.
"""

import atexit
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from multiprocessing import active_children, get_context
from multiprocessing.connection import wait
from pathlib import Path
from threading import Lock
from typing import Final

MODULES: Final = ("orderlymq_broker", "orderlymq_nameserver")
_CONTEXT: Final = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.cluster.template", __name__])
# The fork server gives the exit code to the first thread that asks for it, and nothing to a second one.
_LOCK: Final = Lock()


@atexit.register
def _end_all() -> None:
    # This runs before multiprocessing terminates daemons and waits for them: a paused one would never end.
    for each in active_children():
        each.kill()


class Forked:
    """A process with those parts of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.args = arguments
        _, module, *words = arguments
        # Use this process's present file limit and environment, not those of the fork server.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        told = (module, words, str(log), dict(os.environ), files)
        # A daemon ends with pytest, even if a test did not stop it.
        self._process = _CONTEXT.Process(target=_run, args=told, daemon=True)
        with _LOCK:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while the process runs."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for the end of the process; return its exit code."""
        wait([self._process.sentinel], timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout_s or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(
    module: str, words: list[str], log: str, environment: Mapping[str, str], files: tuple[int, int]
) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    os.environ.clear()
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    sys.argv = [module, *words]
    from tests.cluster.template import MAINS  # noqa: PLC0415 it has been imported before the fork

    sys.exit(MAINS[module](words))
