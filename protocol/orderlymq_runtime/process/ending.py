"""
How signals end a process.

The first SIGTERM, SIGINT or SIGHUP cancels the main coroutine once, which then hands over and closes what it
owns. A second SIGTERM or SIGINT ends the process immediately, because someone is waiting. A close that takes too long
also ends it, and logs what it waited for. A second SIGHUP does not count as asking again. A closed terminal sends it
twice, by its shell and by the kernel, and systemd may send it right after SIGTERM. Exit codes follow the shell's
custom: 0 after a requested end, 128 + signal if it was forced. A separate thread watches the end. Without it, a
close could hang in a call that blocks the event loop, or a thread that does not return could keep the interpreter alive.
"""

import asyncio
import faulthandler
import logging
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

_log = logging.getLogger(__name__)

_URGENT: Final = (signal.SIGTERM, signal.SIGINT)
# A closed terminal sends SIGHUP to what runs in it; `nohup` lets a process ignore that.
_SIGNALS: Final = (*_URGENT, signal.SIGHUP)

# From SIGTERM to the end: the default of a broker or name server (`shutdown_max_ms`), and the limit of every other process.
SERVER_CLOSE_MAX_MS: Final = 12_000
# It is shorter than the 30 s after which Kubernetes kills a process and nobody learns why it hung.
CLOSE_MAX_S: Final = SERVER_CLOSE_MAX_MS / 1000

# If a call blocks the interpreter, so that even the watching thread cannot run, `faulthandler` ends the process.
FORCE_AFTER_S: Final = 1.0


def run(
    main: Coroutine[Any, Any, int | None],
    *,
    close_max_s: float = CLOSE_MAX_S,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """Run *main* until it returns or a signal ends it; return the exit code.

    Exceptions of *main* pass through; a cancellation by a signal is a normal end (0). From the signal to
    the end of the process it may take *close_max_s* seconds.
    """
    ending = _Ending(close_max_s)
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_supervise(main, ending))
    finally:
        ending.release()


@contextmanager
def interrupted_by_termination() -> Iterator[None]:
    """Let SIGTERM act like Ctrl-C while the block runs, so that a command without `run` cleans up."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


async def _supervise(main: Coroutine[Any, Any, int | None], ending: "_Ending") -> int:
    task = asyncio.create_task(main, name="main")
    ending.watch(asyncio.get_running_loop(), task.cancel)
    try:
        return await task or 0
    except asyncio.CancelledError:
        if not ending.signalled:
            raise
        return 0


class _Ending:
    """The thread that receives signals and makes sure that one of them ends the process.

    Life cycle: `watch` on the event loop, `release` when the loop is closed. After a signal it watches until
    the process is gone.
    """

    def __init__(self, close_max_s: float) -> None:
        self.signalled = False
        self._close_max_s = close_max_s
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        self._former: dict[signal.Signals, Any] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def watch(self, loop: asyncio.AbstractEventLoop, cancel: Callable[[], object]) -> None:
        """Start watching: the first signal calls *cancel* on *loop*."""
        self._loop = loop
        is_deaf = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
        heard = [each for each in _SIGNALS if each is not signal.SIGHUP or not is_deaf]
        self._former = {number: signal.signal(number, _noted) for number in heard}
        # The interpreter writes the number of each signal there, even while the main thread is busy.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(
            target=self._run, args=(cancel,), name="signals", daemon=True
        )
        self._thread.start()

    def release(self) -> None:
        """Restore the signal handlers, unless a signal has come; then the process ends in any case."""
        if self.signalled:
            return
        for number, handler in self._former.items():
            signal.signal(number, handler)
        # uvloop has restored the former descriptor; asyncio leaves ours, whose number would soon belong to another file.
        current = signal.set_wakeup_fd(-1)
        if current != self._writer:
            signal.set_wakeup_fd(current)
        os.write(self._writer, b"\0")
        if self._thread is not None:
            self._thread.join()
        os.close(self._reader)
        os.close(self._writer)

    def _run(self, cancel: Callable[[], object]) -> None:
        number = self._next(_SIGNALS, None)
        if number is None or self._loop is None:
            return
        self.signalled = True
        faulthandler.dump_traceback_later(self._close_max_s + FORCE_AFTER_S, exit=True)
        _log.info("%s: shutting down", number.name)
        self._loop.call_soon_threadsafe(cancel)
        again = self._next(_URGENT, self._close_max_s)
        if again is None:
            _log.error(
                "not closed within %g s: leaving immediately; unfinished tasks:%s",
                self._close_max_s,
                _under_way(self._loop),
            )
        else:
            number = again
            _log.warning("%s again: leaving immediately", number.name)
        logging.shutdown()
        os._exit(128 + number)

    def _next(
        self, numbers: Collection[signal.Signals], timeout_s: float | None
    ) -> signal.Signals | None:
        """Wait for one of these signals; return None if none came in time, or if the watching is over."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            left_s = None if until is None else max(0.0, until - time.monotonic())
            readable, _, _ = select.select([self._reader], [], [], left_s)
            if not readable:
                return None
            byte = os.read(self._reader, 1)[0]
            if byte == 0:
                return None
            if byte in numbers:
                return signal.Signals(byte)


def _noted(number: int, frame: FrameType | None) -> None:
    """Do nothing, because the signal's number is already in the pipe."""


def _under_way(loop: asyncio.AbstractEventLoop) -> str:
    """Return where each task and each thread stands."""
    frames = sys._current_frames()
    threads = {
        f"thread {thread.name}": traceback.format_stack(frames[thread.ident])
        for thread in threading.enumerate()
        if thread.ident in frames and thread is not threading.current_thread()
    }
    try:
        tasks = {f"task {task.get_name()}": _stack_of(task) for task in asyncio.all_tasks(loop)}
    except RuntimeError:
        tasks = {}  # the loop has made or ended one meanwhile, so it does not hang
    return "".join(f"\n{name}\n{''.join(stack)}" for name, stack in {**tasks, **threads}.items())


def _stack_of(task: "asyncio.Task[Any]") -> list[str]:
    """Return where *task* waits, down to the innermost coroutine."""
    frames = []
    inner: Any = task.get_coro()
    while inner is not None and getattr(inner, "cr_frame", None) is not None:
        frames.append((inner.cr_frame, inner.cr_frame.f_lineno))
        inner = inner.cr_await
    return traceback.StackSummary.extract(iter(frames)).format()
