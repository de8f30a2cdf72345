"""
Decides whether a request may store messages: whether the disk has room, and whether the broker is writable.

The rules: the broker begins and ends refusing at different disk marks, so that it does not flap. A refused
message was not stored. Reads continue. Delayed messages wait longer (``processors/schedule/``), except those
at the floor of the log, which keep retention from making room.
"""

from typing import Final

from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_protocol.body.config import PERM_WRITE
from orderlymq_protocol.codes import ResponseCode

DISK_FULL: Final = (
    "service not available now. It may be caused by one of the following reasons: the broker's "
    "disk is full [{ratio:.0%} used], messages are put to the slave, message store has been shut "
    "down, etc."
)
FORBIDDEN: Final = "the broker[{broker}] sending message is forbidden: "
_BROKER_FORBIDS: Final = (
    f"{FORBIDDEN}brokerPermission is {{permission}}; an administrator can set it to 6"
)
# Each proposal takes some 2 KB of memory in addition to its bytes in the log.
UNCOMMITTED_COUNT_MAX: Final = 100_000
BUSY: Final = "[REJECTREQUEST]system busy, start flow control for a while"


def set_disk(context: Context, ratio: float) -> None:
    """Store how full the disk is (0 to 1), and whether that means refusing sends."""
    storage = context.settings.storage
    context.disk_ratio = ratio
    mark = storage.disk_resume_ratio if context.disk_full else storage.disk_refuse_ratio
    context.disk_full = ratio >= mark


def is_nearly_full(context: Context, ratio: float) -> bool:
    """Return whether a disk at *ratio* has no room for delayed messages: above this mark, refused sends stay refused."""
    return ratio >= context.settings.storage.disk_resume_ratio


def waiting_end(context: Context) -> int:
    """Return the physical offset below which waiting messages may be stored in their real queues.

    On a full disk only messages at the floor of the log may be, and none if nothing can be written at all.
    """
    if not context.disk_full:
        return context.state.physical_end

    return context.held_end if context.disk_ratio < 1.0 else 0


def check_room(context: Context) -> None:
    """Refuse a request that stores messages while there is no room for them.

    Raises:
        RequestRefused: the disk is nearly full (14), or too many bytes are not committed yet (2).
    """
    if context.disk_full:
        remark = DISK_FULL.format(ratio=context.disk_ratio)
        raise RequestRefused(ResponseCode.SERVICE_NOT_AVAILABLE, remark)
    if context.entries.uncommitted > context.settings.raft.uncommitted_size_max:
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, BUSY)


def check_backlog(context: Context, repeats: int = 0) -> None:
    """Refuse a request that would wait for its record while too many do; sends are refused far earlier.

    Requests that free something always pass, because a client that leaves says so only once. A repeat counts
    the *repeats* that wait, itself included. Other requests do not count them, so that repeats keep no client
    from a lock.

    Raises:
        RequestRefused: too much is not committed yet (2).
    """
    entries = context.entries
    if (
        entries.uncommitted > 2 * context.settings.raft.uncommitted_size_max
        or entries.uncommitted_count + repeats > UNCOMMITTED_COUNT_MAX
    ):
        raise RequestRefused(ResponseCode.SYSTEM_BUSY, BUSY)


def check_writable(context: Context) -> None:
    """Refuse a write if the broker's permission allows only reads.

    Raises:
        RequestRefused: the broker may not be written to (16).
    """
    settings = context.settings
    if not settings.permission & PERM_WRITE:
        remark = _BROKER_FORBIDS.format(broker=settings.group, permission=settings.permission)
        raise RequestRefused(ResponseCode.NO_PERMISSION, remark)
