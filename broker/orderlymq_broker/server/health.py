"""
Decides whether a broker process should live on and whether it does its work, for ``/healthz`` and ``/readyz``.

The rule: a process is not alive if only a new process can cure the problem. Examples are ticks that stopped, a swap
or a disk write that does not end, and a task that always fails. It is not ready if anything keeps clients from being
served. Pure: ``app.py`` collects the signs, and ``status.py`` asks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

# Ticks come every 25 ms. If one is seconds late, a long call delayed it; no call takes ten seconds.
TICK_LATE_MAX_S: Final = 10.0

# Opening a store and syncing its files takes seconds, or minutes with slow disks.
SWAP_MAX_S: Final = 300.0

# The leader has changed after two seconds. A disk that returns within a minute was away for a while. One that does
# not keeps its replica out of the group; a new start finds another disk or reports what is wrong.
DISK_MAX_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Signs:
    """The observed signs of the process.

    Attributes:
        idle_s: the time since the last tick.
        swapping_s: for how long a snapshot has been replacing the store; None if none is.
        disk_waits_s: for how long a write has been in progress without any write ending.
        is_disk_stalled: whether that is too long for a leader.
        stores_nothing: whether the disk of a replica that does not serve is full. A leader still serves what is
            stored. If a follower cannot store entries, draining another node breaks the majority.
        lacks_log: whether it follows a leader and lacks entries that the group has committed. It then counts for no
            majority, so a drain must leave the others alone.
        ailing: the tasks that fail again and again.
        address_complaint: why clients cannot reach this leader, "" if they can or it does not lead.
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
    """Return whether the process should live on, and the reason if not."""
    if signs.has_failed:
        return False, "has failed and ends"
    if signs.swapping_s is not None:
        text = f"a snapshot has been replacing the store for {signs.swapping_s:.0f} s"
        return (True, "ok") if signs.swapping_s < SWAP_MAX_S else (False, text)
    if signs.idle_s > TICK_LATE_MAX_S:
        return False, f"the replication loop has not ticked for {signs.idle_s:.0f} s"
    if signs.disk_waits_s > DISK_MAX_S:
        return False, f"a write to the disk has not ended for {signs.disk_waits_s:.0f} s"
    if signs.ailing:
        return False, signs.ailing[0]
    return True, "ok"


def hindrance(signs: Signs) -> str:
    """Return what keeps the process from its work, or "" if nothing does."""
    is_alive, reason = alive(signs)
    if not is_alive:
        return reason
    if signs.is_ending:
        return "was asked to end"
    if signs.swapping_s is not None:
        return "is installing a snapshot"
    if signs.is_disk_stalled:
        return f"a write to the disk has not ended for {signs.disk_waits_s:.0f} s"
    if signs.stores_nothing:
        return "stores nothing, because the disk is full"
    if signs.lacks_log:
        return "follows, but has not caught up with the log of its group"
    if signs.address_complaint:
        return f"leads, but cannot be reached: {signs.address_complaint}"
    return ""
