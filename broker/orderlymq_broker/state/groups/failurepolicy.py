"""
Policy for a message that has failed: its pause, its last try, and the next step of its group. Pure.

The rules are one for groups by queue and by key. Continue: the dead letter goes, later messages of its key are consumed. HoldKey:
the key is held until an administrator releases it; a message without a key holds nothing, so it goes. StopQueue: nothing
goes, the message is tried for ever. A key that is held already holds its next dead letter, whatever its group says by now.
By queue: ``processors/groups/parkedkeys.py``; by key: ``state/lanes/queue.py``.
"""

from collections.abc import Mapping
from enum import IntEnum
from typing import Final

# More doublings of a millisecond than the longest pause has.
_DOUBLINGS_MAX: Final = 27


class DeadPolicy(IntEnum):
    """Policy for a message that has failed too often; numbers stand in the log."""

    CONTINUE = 1
    HOLD = 2
    STOP = 3


# As a group's ``onDeadLetter`` names them.
POLICIES: Final[Mapping[str, DeadPolicy]] = {
    "Continue": DeadPolicy.CONTINUE,
    "HoldKey": DeadPolicy.HOLD,
    "StopQueue": DeadPolicy.STOP,
}


def dead_policy(on_dead_letter: str) -> DeadPolicy:
    """Return the policy that a group names."""
    return POLICIES.get(on_dead_letter, DeadPolicy.CONTINUE)


def is_dead(tries: int, tries_max: int) -> bool:
    """Return whether a message has failed too often; a negative maximum is none."""
    return 0 <= tries_max <= tries


def after_death(policy: DeadPolicy, key: str | None, *, is_held: bool = False) -> DeadPolicy:
    """Return what follows a dead message of *key*, which may be held already."""
    if is_held:
        return DeadPolicy.HOLD
    if policy == DeadPolicy.HOLD and not key:
        return DeadPolicy.CONTINUE

    return policy


def backoff_ms(pause_ms: int, pause_max_ms: int, tries: int) -> int:
    """Return how long a lane waits whose message has failed so often; the group says how long the first time, and at most."""
    return min(pause_max_ms, pause_ms << min(tries - 1, _DOUBLINGS_MAX))
