"""Law: no background task fails silently; its owner decides what a failure means."""

import asyncio
import inspect
import logging
import threading

import pytest

from orderlymq_runtime.process.supervisor import (
    AILING_FAILURES,
    RESTART_FIRST_S,
    RESTART_MAX_S,
    Supervisor,
    finish_in_thread,
)


async def give(value: int) -> int:
    return value


async def fail() -> None:
    raise ValueError("broken")


async def test_work_that_is_done_once_gives_its_result() -> None:
    """Law: work that succeeds gives its result and counts no failure."""
    supervisor = Supervisor()

    assert await supervisor.once("sum", give(3)) == 3
    assert not supervisor.failures


async def test_work_that_never_begins_is_closed() -> None:
    """Law: a coroutine whose task is cancelled before its first step is closed."""
    supervisor = Supervisor()
    work = give(3)

    supervisor.once("sum", work)
    await supervisor.close()

    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


async def test_a_failure_is_logged_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Law: a failure is logged and counted even if nobody awaits the task."""
    supervisor = Supervisor()

    with caplog.at_level(logging.ERROR):
        await supervisor.once("sum", fail(), name="sum of 3")

    assert supervisor.failures == {"sum": 1}
    assert [record.message for record in caplog.records] == ["sum of 3 failed"]


@pytest.mark.parametrize("is_vital", [True, False])
async def test_only_vital_work_ends_the_process(is_vital: bool) -> None:
    """Law: only a failure of vital work ends the process."""
    failures: list[str] = []
    supervisor = Supervisor(lambda error: failures.append(str(error)))

    await supervisor.once("swap", fail(), is_vital=is_vital)

    assert failures == (["broken"] if is_vital else [])


async def test_work_that_is_kept_begins_again_with_growing_pauses() -> None:
    """Law: kept work that fails begins again, with growing pauses."""
    pauses: list[float] = []
    failing = 9

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    async def work() -> None:
        if len(pauses) < failing:
            raise OSError("still broken")

    supervisor = Supervisor(pause=pause)
    await supervisor.keep("link", work, name="link to 2")

    assert pauses == [min(RESTART_FIRST_S * 2**n, RESTART_MAX_S) for n in range(failing)]
    assert supervisor.failures == {"link": failing}


async def test_what_fails_again_and_again_is_ailing_until_it_ends() -> None:
    """Law: work that fails again and again is reported as ailing until it is cancelled."""
    turns = asyncio.Semaphore(0)
    paused = asyncio.Semaphore(0)

    async def pause(seconds: float) -> None:
        paused.release()
        await turns.acquire()

    supervisor = Supervisor(pause=pause)
    failing = supervisor.keep("link", fail, name="link to 2")
    for _ in range(AILING_FAILURES - 1):
        await paused.acquire()
        assert supervisor.ailing == []
        turns.release()
    await paused.acquire()

    assert supervisor.ailing == ["link to 2 fails repeatedly: ValueError: broken"]
    failing.cancel()
    await asyncio.wait([failing])
    assert supervisor.ailing == []


async def test_what_runs_well_again_is_not_ailing() -> None:
    """Law: endless work counts as healthy again when it has run for the longest pause without a failure."""
    now_s = [0.0]
    runs_well = asyncio.Event()

    async def pause(seconds: float) -> None:
        now_s[0] += seconds

    async def work() -> None:
        if supervisor.failures["link"] < AILING_FAILURES:
            raise ValueError("broken")
        runs_well.set()
        await asyncio.Event().wait()

    supervisor = Supervisor(pause=pause, clock=lambda: now_s[0])
    supervisor.keep("link", work, name="link to 2")
    await runs_well.wait()
    assert supervisor.ailing == ["link to 2 fails repeatedly: ValueError: broken"]

    now_s[0] += RESTART_MAX_S

    assert supervisor.ailing == []
    await supervisor.close()


async def test_cancelling_is_no_failure() -> None:
    """Law: a cancelled task is not counted as a failure."""
    supervisor = Supervisor()
    never = asyncio.Event()
    task = supervisor.once("wait", never.wait())
    await asyncio.sleep(0)

    await supervisor.close()

    assert task.cancelled()
    assert not supervisor.failures


async def test_who_is_cancelled_waits_for_its_thread() -> None:
    """Law: a cancelled task waits for its thread to end, so nothing is closed while the thread uses it."""
    begun, may_end, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        ended.set()

    task = asyncio.create_task(finish_in_thread(work))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):
        task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
    may_end.set()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended.is_set()


def test_a_timer_that_fails_goes_on_and_is_ailing_when_it_fails_always() -> None:
    """Law: a single failure of a timer is only counted; ten in a row are reported as ailing."""
    supervisor = Supervisor()
    broken = [True]

    def tick() -> None:
        if broken[0]:
            raise ValueError("broken")

    for _ in range(AILING_FAILURES):
        assert supervisor.ailing == []
        supervisor.guard("tick", tick)
    assert supervisor.ailing == ["tick fails repeatedly: ValueError: broken"]

    broken[0] = False
    supervisor.guard("tick", tick)

    assert supervisor.ailing == []
    assert supervisor.failures == {"tick": AILING_FAILURES}


async def test_what_a_callback_raises_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    """Law: an exception in a callback of the loop is counted and logged."""
    supervisor = Supervisor()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(supervisor.callback_failed)

    loop.call_soon(lambda: 1 // 0)
    await asyncio.sleep(0)
    loop.set_exception_handler(None)

    assert supervisor.failures == {"callback": 1}
    assert "ZeroDivisionError" in caplog.text
