"""
Whether a broker process should live on, and whether it does its work: the truth behind ``/healthz`` and ``/readyz``.

The rule: not alive is what only another process can cure (ticks that stopped, a swap or a disk that does
not end, a task that fails for ever); not ready is everything that keeps clients from being served. Pure:
``app.py`` takes the signs, ``status.py`` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Ticks come every 25 ms. One that is seconds late has met a long call; ten seconds are no such call any more.
TICK_LATE_MAX_S: Final = 10.0

# Opening a store and syncing its files takes seconds, minutes with slow disks.
SWAP_MAX_S: Final = 300.0

# The leader has gone after two seconds. A disk that is back after a minute was away for a while; one that is
# not keeps its replica out of the group, and a new start finds another disk or says what is wrong.
DISK_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Signs:
    """Result of one look at the process.

    Attributes:
        idle_s: how long ago the last tick was.
        swapping_s: for how long a snapshot has been taking the place of the store; None when none is.
        disk_waits_s: for how long a write has been under way while none ended.
        is_disk_stalled: whether that is too long for a leader.
        stores_nothing: whether the disk of a replica that does not serve is full. A leader still serves what is there; without
            what a follower should store, a node that is drained takes the majority with it.
        lacks_log: whether it follows a leader and lacks what the group has committed. It counts for no majority then, so that a drain
            must leave the others alone.
        ailing: what fails again and again.
        address_complaint: why this leader cannot be reached, "" when it can or does not lead.
        has_failed: whether the process ends because of a failure.
        is_ending: whether the process ends.
    """

    idle_s: float
    swapping_s: float | None
    disk_waits_s: float
    is_disk_stalled: bool
    stores_nothing: bool
    lacks_log: bool
    ailing: Sequence[str]
    address_complaint: str
    has_failed: bool
    is_ending: bool


def alive(signs: Signs) -> tuple[bool, str]:
    """Return whether the process should live on, and why not."""
    if signs.has_failed:
        return False, "has failed and ends"
    if signs.swapping_s is not None:
        text = f"a snapshot has been taking the place of the store for {signs.swapping_s:.0f} s"
        return (True, "ok") if signs.swapping_s < SWAP_MAX_S else (False, text)
    if signs.idle_s > TICK_LATE_MAX_S:
        return False, f"the replication loop has not ticked for {signs.idle_s:.0f} s"
    if signs.disk_waits_s > DISK_MAX_S:
        return False, f"the disk has not ended a write for {signs.disk_waits_s:.0f} s"
    if signs.ailing:
        return False, signs.ailing[0]
    return True, "ok"


def hindrance(signs: Signs) -> str:
    """Return what keeps the process from its work, "" when nothing does."""
    is_alive, reason = alive(signs)
    if not is_alive:
        return reason
    if signs.is_ending:
        return "was asked to end"
    if signs.swapping_s is not None:
        return "takes over a snapshot"
    if signs.is_disk_stalled:
        return f"the disk has not ended a write for {signs.disk_waits_s:.0f} s"
    if signs.stores_nothing:
        return "stores nothing, because the disk is full"
    if signs.lacks_log:
        return "follows, but has not caught up with the log of its group"
    if signs.address_complaint:
        return f"leads, but cannot be reached: {signs.address_complaint}"
    return ""
