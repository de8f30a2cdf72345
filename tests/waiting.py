"""Wait for what happens elsewhere."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
    """Wait until *condition* holds; the loop is given up in between, not the clock."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in code under test
            await asyncio.sleep(0.002)


async def turns(count: int = 40) -> None:
    """Let the loop finish what it has accepted, which its server does not know yet."""
    for _ in range(count):
        await asyncio.sleep(0)
