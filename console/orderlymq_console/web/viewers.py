"""Who looks now: a count with a limit, and the moment when the console ends."""

import asyncio


class Viewers:
    """Counts those who look, and ends them when the console ends."""

    def __init__(self) -> None:
        self.count = 0
        self.closing = asyncio.Event()
