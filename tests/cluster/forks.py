"""
Processes of brokers and name servers that are forked from one that has imported both.

An interpreter needs half a second of a CPU to import a broker, and a group of three starts four interpreters. The forked
process runs the `main` that `python -m` runs. It has a session, an environment and a log of its own, and tests signal and kill it.
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
# The first thread that asks for the end of a process gets it from the fork server, another one would get nothing.
_LOCK: Final = Lock()


@atexit.register
def _end_all() -> None:
    # Before multiprocessing asks daemons to end and waits for them: one that a test has paused never would.
    for each in active_children():
        each.kill()


class Forked:
    """One process, with what tests use of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], log: Path) -> None:
        self.args = arguments
        _, module, *words = arguments
        # The files that it may open and its environment are those of now, not those of the fork server.
        files = resource.getrlimit(resource.RLIMIT_NOFILE)
        told = (module, words, str(log), dict(os.environ), files)
        # A daemon ends with pytest; a test that leaves one open does not keep pytest.
        self._process = _CONTEXT.Process(target=_run, args=told, daemon=True)
        with _LOCK:
            self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        with _LOCK:
            return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end; return the exit code."""
        wait([self._process.sentinel], timeout_s)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout_s or 0.0)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
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
