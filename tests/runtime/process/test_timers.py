"""Timers by name."""

import asyncio

from orderlymq_runtime.process.timers import Timers


async def test_a_stopped_timer_makes_no_call_and_the_others_go_on() -> None:
    timers = Timers()
    calls: list[str] = []
    done = asyncio.get_running_loop().create_future()
    timers.arm("stopped", 0, lambda: calls.append("stopped"))
    timers.arm("kept", 0, lambda: done.set_result(None))

    timers.stop("stopped")
    await done

    assert calls == []


async def test_closed_timers_make_no_call() -> None:
    timers = Timers()
    calls: list[str] = []
    for name in ("raft", "core"):
        timers.arm(name, 0, lambda: calls.append("late"))

    timers.close()
    timers.close()
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert calls == []


async def test_a_name_has_one_timer() -> None:
    """Law: a name has one timer: arming it again replaces it, and after a stop it makes no call."""
    timers = Timers()
    calls: list[str] = []
    timers.arm("core", 0, lambda: calls.append("first"))
    timers.arm("core", 0, lambda: calls.append("second"))

    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert calls == ["second"]
