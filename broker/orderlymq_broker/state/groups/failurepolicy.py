"""
The policy for a failed message: its pause, its last try, and the next step of its consumer group. Pure.

The rules are the same for groups by queue and by key. Continue: the message goes to the dead letters, and later
messages of its key are consumed. HoldKey: the key is held until an administrator releases it; a message without a key
holds nothing, so it goes to the dead letters. StopQueue: no message goes there, and the failed one is tried forever.
If a key is held already, its next dead letter is held, too, even if the group's policy has changed since. By queue:
``processors/groups/parkedkeys.py``; by key: ``state/lanes/queue.py``.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

# More doublings than the longest pause allows, starting from a millisecond.
_DOUBLINGS_MAX: Final = 27


class DeadPolicy(IntEnum):
    """The policy for a message that has failed too often; the numbers are in the log."""

    CONTINUE = 1
    HOLD = 2
    STOP = 3


# By their names in a group's ``onDeadLetter``.
POLICIES: Final[Mapping[str, DeadPolicy]] = {
    "Continue": DeadPolicy.CONTINUE,
    "HoldKey": DeadPolicy.HOLD,
    "StopQueue": DeadPolicy.STOP,
}


def dead_policy(on_dead_letter: str) -> DeadPolicy:
    """Return the policy that a group names."""
    return POLICIES.get(on_dead_letter, DeadPolicy.CONTINUE)


def is_dead(tries: int, tries_max: int) -> bool:
    """Return whether a message has failed too often; a negative maximum means no limit."""
    return 0 <= tries_max <= tries


def after_death(policy: DeadPolicy, key: str | None, *, is_held: bool = False) -> DeadPolicy:
    """Return what follows a dead message of *key*, which may be held already."""
    if is_held:
        return DeadPolicy.HOLD
    if policy == DeadPolicy.HOLD and not key:
        return DeadPolicy.CONTINUE

    return policy


def backoff_ms(pause_ms: int, pause_max_ms: int, tries: int) -> int:
    """Return the pause of a lane after *tries* failures; the group sets the first pause and the longest one."""
    return min(pause_max_ms, pause_ms << min(tries - 1, _DOUBLINGS_MAX))
