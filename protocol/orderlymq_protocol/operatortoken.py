"""
The token of an operator: brokers refuse an operator whose token is smaller than one that they have seen.

Rules: a token is never below the seconds since 2026. It rises by one with each operator that takes over,
which happens less than once a second. So a token far above the present time comes from no real operator, and
brokers refuse it: if they stored it, it would lock every operator out. An operator that got such a token from a wrong
clock begins again at the present time. Brokers whose clocks were wrong, too, have accepted the token; they go on from it,
and the operator learns it from them. Both sides compute it here.
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
    """Return the greatest token that a broker accepts at this time; *believed* is the greatest that it has accepted."""
    return max(token_at(wall_ms / 1000), believed) + AHEAD_S


def token_after(former: Iterable[int], wall_s: float) -> int:
    """Return the token of an operator that takes over at this time; *former* are the tokens of the operators before it."""
    maximum = token_max_at(int(wall_s * 1000))
    return max([token_at(wall_s), *(1 + each for each in former if each < maximum)])


def stale_operator(token: int, greatest: int) -> str:
    """Return why an operator's request is refused."""
    return (
        f"operatorToken {token} is smaller than {greatest}, the greatest one received: another "
        "operator has taken over; read the Lease again before you request changes"
    )
