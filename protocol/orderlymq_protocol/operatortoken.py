"""
The token of an operator: brokers refuse an operator with a smaller one than they have seen.

The rule: a token is never below the seconds since 2026, and rises by one with each operator that takes over,
which is less than once a second. So a token that is far above the time was made by nobody who operates, and
brokers refuse it: stored, it would lock every operator out. An operator that was given such a one, by a clock that
was wrong, begins again at the time. Brokers whose clocks were wrong, too, have believed it: they go on from there, and
the operator learns it from them. Both sides compute it here.
"""

from collections.abc import Iterable
from typing import Final

# 2026-01-01. The Lease of Kubernetes has 31 bits for it, which last until 2094.
_EPOCH_S: Final = 1_767_225_600
# How far the clocks of brokers and operators may differ.
AHEAD_S: Final = 600


def token_at(wall_s: float) -> int:
    """Return the smallest token that an operator takes at this time."""
    return max(1, int(wall_s) - _EPOCH_S)


def token_max_at(wall_ms: int, believed: int = 0) -> int:
    """Return the greatest token that a broker believes at this time, when *believed* is the greatest that it has."""
    return max(token_at(wall_ms / 1000), believed) + AHEAD_S


def token_after(former: Iterable[int], wall_s: float) -> int:
    """Return the token of an operator that takes over at this time from those with *former* ones."""
    maximum = token_max_at(int(wall_s * 1000))
    return max([token_at(wall_s), *(1 + each for each in former if each < maximum)])


def stale_operator(token: int, greatest: int) -> str:
    """Return why an operator's request is refused."""
    return (
        f"operatorToken {token} is smaller than {greatest}, the greatest one seen: another operator "
        f"has taken over; read the Lease again before asking for changes"
    )
