"""Calls to one address take turns, so that only as many bytes are in transit as it can carry within the time-outs."""

import asyncio
from random import Random

import pytest

from orderlymq_runtime.remoting.client import RequestTimeout
from orderlymq_spark.cluster.credit import CREDIT_MAX, CREDIT_MIN, Credit


@pytest.mark.parametrize("seed", range(5))
async def test_no_more_is_under_way_than_the_limit_and_calls_go_in_their_order(seed: int) -> None:
    """Law: no call, however small, overtakes a waiting one; a call that is larger than the limit is sent alone."""
    chance, credit = Random(seed), Credit()
    under_way: list[int] = []
    begun: list[int] = []

    async def call(number: int, size: int) -> None:
        async with credit.take(size):
            under_way.append(size)
            begun.append(number)
            assert sum(under_way) <= CREDIT_MAX or under_way == [size]
            for _ in range(chance.randrange(5)):
                await asyncio.sleep(0)
            under_way.remove(size)

    sizes = [chance.randrange(2 * CREDIT_MAX >> chance.randrange(8)) for _ in range(100)]
    async with asyncio.TaskGroup() as tasks:
        for number, size in enumerate(sizes):
            tasks.create_task(call(number, size))

    assert begun == list(range(100))


async def test_what_expires_halves_the_limit_and_what_is_answered_raises_it() -> None:
    """Only a time-out halves the limit and only an answer raises it; other failures say nothing about the link."""
    credit = Credit()

    async def call(error: Exception | None = None) -> int:
        try:
            async with credit.take(CREDIT_MIN):
                if error is not None:
                    raise error
        except (RequestTimeout, ConnectionError):
            pass
        return credit.limit

    expired = RequestTimeout("late", address="192.0.2.1:1", maybe_sent=True)

    limits = [await call(each) for each in (ConnectionError(), expired, expired, expired)]
    assert limits == [CREDIT_MAX, CREDIT_MAX // 2, CREDIT_MIN, CREDIT_MIN]
    assert await call() > CREDIT_MIN
    for _ in range(100):
        await call()
    assert credit.limit == CREDIT_MAX


async def test_a_call_that_is_given_up_leaves_its_room_to_the_next() -> None:
    """Law: this holds for a waiting call and for one in transit."""
    credit = Credit()
    answered = asyncio.Event()

    async def call() -> None:
        async with credit.take(CREDIT_MAX):
            await answered.wait()

    first, second, third = (asyncio.create_task(call()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    answered.set()

    async with asyncio.timeout(10):
        await third
