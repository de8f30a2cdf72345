"""Waits with a limit."""

import asyncio
import contextlib


async def wait_for(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Wait until *event* is set, at most *timeout_s* where there is one; return whether it is."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()
    return event.is_set()
