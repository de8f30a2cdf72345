"""Waits with a limit."""

import asyncio

import pytest

from orderlymq_runtime.process.waits import wait_for


async def test_a_wait_ends_with_its_event_or_its_time() -> None:
    """Law: a wait ends with its event or its time, and says which; a set event is seen even with no time."""
    event = asyncio.Event()
    found = [await wait_for(event, 0)]
    asyncio.get_running_loop().call_soon(event.set)
    found.append(await wait_for(event, 60))
    found.append(await wait_for(event, 0))

    assert found == [False, True, True]


async def test_who_waits_can_be_cancelled() -> None:
    """Law: a wait with a limit can be cancelled."""
    task = asyncio.create_task(wait_for(asyncio.Event(), 60))
    await asyncio.sleep(0)

    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
