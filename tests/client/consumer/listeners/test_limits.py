"""Time limits cancel the calls that exceed them, and no others."""

import asyncio

import pytest

from orderlymq.consumer.listeners.limits import CallLimits

LONG_S = 60.0
SHORT_S = 0.01


async def test_what_outlives_its_limit_is_cancelled_and_nothing_else() -> None:
    """Law: each limit ends at its own time, whatever the order in which they began."""
    limits, ended = CallLimits(), list[str]()
    gate = asyncio.Event()

    async def call(name: str, limit_s: float) -> None:
        try:
            with limits.within(limit_s):
                await gate.wait()
                ended.append(f"{name} is done")
        except TimeoutError as error:
            ended.append(f"{name}: {error}")
            gate.set()

    async with asyncio.TaskGroup() as group:
        group.create_task(call("long", LONG_S))
        group.create_task(call("short", SHORT_S))

    assert ended == [
        "short: cancelled, because it ran for longer than the consumeTimeout of 0.01 s",
        "long is done",
    ]


async def test_one_timer_serves_all_calls_one_after_the_other() -> None:
    """Law: one timer serves all calls, also after one that ended in time or was cancelled."""
    limits = CallLimits()
    for _ in range(2):
        with limits.within(SHORT_S):
            pass
        with pytest.raises(TimeoutError), limits.within(SHORT_S):
            await asyncio.Event().wait()
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_a_call_that_catches_its_cancellation_is_cancelled_once_and_counts() -> None:
    limits, cancelled = CallLimits(), 0
    with limits.within(SHORT_S):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled += 1
        await asyncio.sleep(3 * SHORT_S)

    assert cancelled == 1


async def test_the_cancellation_of_somebody_else_stays_one() -> None:
    """Law: a cancellation from outside stays one, even if the limit ends at the same moment."""
    limits = CallLimits()
    results: list[str] = []

    async def call(limit_s: float) -> None:
        try:
            with limits.within(limit_s):
                try:
                    await asyncio.Event().wait()
                finally:
                    if limit_s == SHORT_S:
                        me = asyncio.current_task()
                        assert me is not None
                        me.cancel()
        except asyncio.CancelledError:
            results.append("cancelled")
            raise

    tasks = [asyncio.create_task(call(each)) for each in (LONG_S, SHORT_S)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    await asyncio.wait(tasks)

    assert results == ["cancelled", "cancelled"]
    assert all(task.cancelled() for task in tasks)


async def test_an_error_of_the_call_is_passed_on() -> None:
    limits = CallLimits()
    with pytest.raises(TimeoutError, match="the card service"), limits.within(LONG_S):
        raise TimeoutError("the card service is slow")
