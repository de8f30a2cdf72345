"""
Work on many objects, with some requests to the API server at a time.

Rule: the API server's connections are few, and proofs of deaths wait for one, too. After a failure nothing more begins: the next
reconcile does everything again.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

Each = TypeVar("Each")

# Half of the connections.
AT_ONCE: Final = 8


async def for_each(items: Iterable[Each], work: Callable[[Each], Awaitable[object]]) -> None:
    """Do *work* with each of *items*, with `AT_ONCE` of them at the same time.

    Raises:
        Exception: the first that *work* raised, when what was under way has ended.
    """
    waiting, failed = deque(items), list[Exception]()

    async def do_next() -> None:
        while waiting:
            try:
                await work(waiting.popleft())
            except Exception as error:
                failed.append(error)
                waiting.clear()

    await asyncio.gather(*(do_next() for _ in range(min(AT_ONCE, len(waiting)))))
    if failed:
        raise failed[0]
