"""The clocks of this machine in milliseconds: the time of day, as messages, signatures and backups carry it, and a monotonic one."""

import time


def machine_ms() -> int:
    """Return the time of day in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_ms() -> int:
    """Return milliseconds since a fixed moment; a change of the time of day does not affect them."""
    return time.monotonic_ns() // 1_000_000
