"""
The limit on bytes that are requested from, or sent to, one address at the same time.

All calls to an address share one connection. Answers to simultaneous requests arrive one after another, but each
time-out starts with its request. Over a slow link the last of many requests expire, and their retries wait behind
answers that no caller needs any more. Rules: a call that waits for room lets no later call pass, so calls leave in
order. A time-out halves the limit, and answers raise it again.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from orderlymq_runtime.remoting.client import RequestTimeout

# With a round trip of 100 ms this allows 40 MiB/s. A link of 0.4 MiB/s transfers it within the 10 s of a pull.
CREDIT_MAX: Final = 4 << 20
CREDIT_MIN: Final = 1 << 20  # the most that one pull returns
_RAISED_BY: Final = 8  # 8 answers of the largest size double the lowest limit


class Credit:
    """The credit of one address, on one event loop.

    Attributes:
        limit: bytes that may be in flight; a single call may take more.
    """

    def __init__(self) -> None:
        self.limit = CREDIT_MAX
        self._taken = 0
        self._turn = asyncio.Lock()
        self._room = asyncio.Event()

    @asynccontextmanager
    async def take(self, size: int) -> AsyncIterator[None]:
        """Wait until *size* more bytes may be in flight, and count them until the block ends."""
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
