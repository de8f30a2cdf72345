"""Waits with a limit."""

import asyncio
import contextlib


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until *event* is set, but at most *timeout_s* if it is given; return whether *event* is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
