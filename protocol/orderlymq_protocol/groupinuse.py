"""
Why a consumer group cannot be deleted: its members consume under locks or lanes that the deletion would forget.

Brokers refuse the deletion (code 20517). The SDK checks all of them first, so that no broker group deletes what another one keeps.
"""

from typing import Final

from orderlymq_protocol.plurals import counted

_IN_USE: Final = (
    "group[{group}] is in use: its members {hold} (orderlymq group show); stop its consumers, or wait until their leases end, "
    "then delete it again"
)


def in_use(group: str, locks: int, lanes: int, *, is_giving: bool = False) -> str:
    """Return why a consumer group cannot be deleted; empty if it can.

    Args:
        group: the consumer group.
        locks: queue locks that its members hold.
        lanes: lanes that they have in hand.
        is_giving: whether they are about to get some.
    """
    counts = [counted(*each) for each in ((locks, "queue lock"), (lanes, "lane")) if each[0]]
    if not (counts or is_giving):
        return ""
    hold = f"hold {' and '.join(counts)}" if counts else "are being given queue locks or lanes"

    return _IN_USE.format(group=group, hold=hold)
