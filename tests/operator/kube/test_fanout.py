"""Work on many objects: some at a time, and nothing more after a failure."""

import asyncio

import pytest

from orderlymq_operator.kube.fanout import AT_ONCE, for_each


async def test_everything_is_done_some_at_a_time() -> None:
    """Law: as many objects as allowed are worked on at a time, until all are done."""
    done: list[int] = []
    under_way, most = 0, 0

    async def work(number: int) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        done.append(number)

    await for_each(range(100), work)
    await for_each([], work)

    assert sorted(done) == list(range(100))
    assert most == AT_ONCE


async def test_after_a_failure_nothing_begins_and_nothing_is_left_running() -> None:
    """Law: after a failure nothing new begins, and the caller hears the first failure when all running work has ended."""
    begun: list[int] = []
    ended: list[int] = []

    async def work(number: int) -> None:
        begun.append(number)
        for _ in range(number):
            await asyncio.sleep(0)
        if number in (1, 2):
            raise ValueError(number)
        ended.append(number)

    with pytest.raises(ValueError, match="1"):
        await for_each(range(3, 0, -1), work)
    with pytest.raises(ValueError, match="1"):
        await for_each([5, 4, 1, *range(10, 100)], work)

    assert begun[3:] == [5, 4, 1, *range(10, 10 + AT_ONCE - 3)]
    assert ended == [3, 4, 5, *range(10, 10 + AT_ONCE - 3)]
