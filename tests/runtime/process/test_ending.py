"""The end of a process."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
import uvloop

from orderlymq_runtime.process import ending

PROGRAM = """
import asyncio, ctypes, sys, threading
from contextlib import suppress
from orderlymq_runtime.process import ending

async def main():
    try:
        print("up", flush=True)
        await asyncio.Event().wait()
    finally:
        print("closing", flush=True)
        match sys.argv[1]:
            case "slow":
                await asyncio.Event().wait()
            case "blocked":
                threading.Event().wait()
            case "thread":
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await asyncio.to_thread(threading.Event().wait)
            case "briefly":
                await asyncio.sleep(0.3)
            case "selfish":
                # A call that keeps the interpreter, as a binding does: no thread runs any more.
                ctypes.PyDLL(None).sleep(600)
        await asyncio.sleep(0)
        print("closed", flush=True)

sys.exit(ending.run(main(), close_max_s=float(sys.argv[2]) if sys.argv[2:] else 20.0))
"""


def test_a_process_ends_within_fifteen_seconds() -> None:
    """Law: by default a process ends within 15 seconds, whatever hangs in it."""
    assert ending.CLOSE_MAX_S + ending.FORCE_AFTER_S <= 15


@pytest.mark.parametrize(
    "numbers",
    [
        [signal.SIGTERM],
        [signal.SIGINT],
        [signal.SIGHUP],
        [signal.SIGHUP, signal.SIGHUP],
        [signal.SIGTERM, signal.SIGHUP],
    ],
)
def test_the_first_signal_lets_main_close_what_it_owns(numbers: list[signal.Signals]) -> None:
    """Law: the first signal cancels main once, so it can close, and the exit code is 0; also for SIGHUP.

    The test sends SIGHUP twice, because both the shell and the kernel send it when a terminal closes.
    """

    def prepare() -> None:
        for each in numbers:
            signal.signal(each, signal.SIG_DFL)

    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "briefly"],
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=prepare,  # noqa: PLW1509 no thread runs yet
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(numbers[0])
        assert process.stdout.readline() == "closing\n"
        for each in numbers[1:]:
            process.send_signal(each)
        rest = process.stdout.read()

    assert (rest, process.returncode) == ("closed\n", 0)


def test_a_process_of_nohup_outlives_its_terminal() -> None:
    """Law: if SIGHUP is ignored at the start (nohup) it stays ignored."""

    async def main() -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        return int(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN)

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert ending.run(main()) == 1
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_second_signal_ends_the_process_immediately() -> None:
    """Law: a second signal ends the process immediately, with an exit code that shows the signal."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "slow"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        assert process.stdout.readline() == "closing\n"
        process.send_signal(signal.SIGTERM)
        rest = process.stdout.read()

    assert (rest, process.returncode) == ("", 128 + signal.SIGTERM)


def test_results_and_errors_of_main_pass_through() -> None:
    """Law: the exit code is main's result, and main's exceptions reach the caller."""

    async def give(code: int | None) -> int | None:
        return code

    async def fail() -> None:
        raise RuntimeError("broken")

    assert (ending.run(give(None)), ending.run(give(3))) == (0, 3)
    with pytest.raises(RuntimeError, match="broken"):
        ending.run(fail())


@pytest.mark.parametrize("loop_factory", [None, uvloop.new_event_loop])
def test_a_run_without_a_signal_leaves_signals_as_they_were(
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None,
) -> None:
    """Law: after a run without a signal the former handlers and the interpreter's wakeup file are restored."""

    async def nothing() -> None:
        pass

    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    assert ending.run(nothing(), loop_factory=loop_factory) == 0

    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)] == before
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("hang", ["slow", "blocked", "thread"])
def test_a_close_that_takes_too_long_ends_and_says_where_it_stood(hang: str) -> None:
    """Law: if a task, the loop or a thread hangs while closing, the process ends all the same, and the log says where."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, hang, "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()

    assert process.returncode == 128 + signal.SIGTERM
    assert "not closed within 0.2 s" in said
    assert {"slow": "in main", "blocked": "waiter.acquire", "thread": "in wait"}[hang] in said


def test_a_call_that_keeps_the_interpreter_does_not_keep_the_process() -> None:
    """Law: a call that never releases the interpreter cannot delay the end; all stacks are written to the log."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "selfish", "0.1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()

    assert process.returncode == 1
    assert "in main" in said
