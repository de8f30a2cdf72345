"""
Runs work on many objects, with a limited number at the same time.

Rules: connections to the API server are few, and the takeover of dead consumers needs them, too. After a failure no
further work begins: the next reconcile repeats everything.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

Each = TypeVar("Each")

# Half of the connections.
AT_ONCE: Final = 8


async def for_each(items: Iterable[Each], work: Callable[[Each], Awaitable[object]]) -> None:
    """Do *work* on each of *items*, at most `AT_ONCE` at the same time.

    Raises:
        Exception: the first error of *work*; raised after the work that was running has ended.
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
