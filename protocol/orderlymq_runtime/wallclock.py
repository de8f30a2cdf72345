"""The time of day of this machine, as messages, signatures and backups carry it."""

import time


def machine_ms() -> int:
    """Return the time of day in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
