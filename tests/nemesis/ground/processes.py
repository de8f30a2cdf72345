"""Processes that are started, killed and paused on purpose, and distinguished from those that end by themselves."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

# The time that Kubernetes gives a pod.
END_TIMEOUT_S: Final = 30.0


@dataclass(slots=True)
class Child:
    """One process with its log file.

    Life cycle: `start`, `kill` or `end` or its own end, `start` again. `wanted` says whether it should be running; a
    wanted process that does not run has ended by itself. Faults and the watch call from different threads.

    Attributes:
        excused_until: monotonic time up to which it may end with one of the codes of a failed store.
    """

    name: str
    command: Sequence[str]
    log_path: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    keep_input: bool = False  # leave standard input open; some programs end with it
    wanted: bool = False
    paused: bool = False
    excused_until: float = 0.0
    process: subprocess.Popen[bytes] | None = None
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def start(self) -> None:
        """Start it unless it runs."""
        with self._lock:
            self.wanted = True
            if not self.runs:
                self._start()

    def _start(self) -> None:
        self.paused = False
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.PIPE if self.keep_input else subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environment},
            )

    @property
    def runs(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        assert self.process is not None, f"{self.name} was never started"
        return self.process.pid

    def kill(self) -> None:
        """Send SIGKILL and wait until it is gone."""
        with self._lock:
            self.wanted = False
            if self.process is not None and self.runs:
                self.process.kill()
                self.process.wait(END_TIMEOUT_S)
            self.paused = False

    def end(self, timeout_s: float = END_TIMEOUT_S) -> int | None:
        """Send SIGTERM and return the exit code; None if it had to be killed."""
        with self._lock:
            self.wanted = False
            self.resume()
            if self.process is None:
                return 0
            if self.runs:
                self.process.terminate()
            try:
                return self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                # Python's fault handler writes to the log where it hangs.
                self.process.send_signal(signal.SIGABRT)
                self.process.wait(END_TIMEOUT_S)
                return None

    def close_input(self) -> None:
        """Close its standard input, if it has one."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def pause(self) -> None:
        """Send SIGSTOP."""
        if self.process is not None and self.runs:
            self.paused = True
            self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT."""
        if self.process is not None and self.paused and self.runs:
            self.process.send_signal(signal.SIGCONT)
        self.paused = False

    def look(self) -> int | None:
        """Return the exit code if it ended by itself since the last call."""
        with self._lock:
            if not self.wanted or self.process is None:
                return None
            code = self.process.poll()
            if code is None:
                return None
            self.wanted = False
            return code


def python(*words: str) -> list[str]:
    """Return the command of one of our Python modules."""
    return [sys.executable, "-X", "faulthandler", "-m", *words]


def wait_until(condition: Callable[[], bool], timeout_s: float, pause_s: float = 0.05) -> bool:
    """Wait for *condition*; return False if it does not become true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(pause_s)
    return condition()
