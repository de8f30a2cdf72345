"""
How many bytes an address is asked for, or sent, at a time.

All calls of an address share one connection: what is asked for together comes one after the other, and each time-out counts from its
question. Over a slow link the last ones of many expire, and what was asked again stands behind answers that nobody waits for. Rules:
who waits for room lets nobody pass, so calls leave in their order; what expires halves the limit, and what is answered raises it
again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from orderlymq_runtime.remoting.client import RequestTimeout

# Over a way of 100 ms that is 40 MiB a second; within the 10 s of a pull it comes over a link of 0.4 MiB a second.
CREDIT_MAX: Final = 4 << 20
CREDIT_MIN: Final = 1 << 20  # what one pull brings at most
_RAISED_BY: Final = 8  # answers double the limit when it is at its least


class Credit:
    """That of one address, on one event loop.

    Attributes:
        limit: bytes that may be under way; a single call may take more.
    """

    def __init__(self) -> None:
        self.limit = CREDIT_MAX
        self._taken = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Wait until *size* bytes may be under way; they are until the end of the block."""
        async with self._turn:
            while self._taken and self._taken + size > self.limit:
                self._room.clear()
                await self._room.wait()
            self._taken += size
        try:
            yield
        except RequestTimeout:
            self.limit = max(CREDIT_MIN, self.limit // 2)
            raise
        else:
            self.limit = min(CREDIT_MAX, self.limit + size // _RAISED_BY)
        finally:
            self._taken -= size
            self._room.set()
