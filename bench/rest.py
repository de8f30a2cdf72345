"""Waits until what was stored has come to rest on disk: flushes and compactions cost CPU after the last answer."""

import time
from collections.abc import Callable
from typing import Final

#: So many looks alike: what begins only after a pause (of seconds, everywhere) has begun by then.
_LOOKS: Final = 4
#: Two looks are alike when they differ by less than this part.
_ALIKE: Final = 1 / 200


def rested(disk: Callable[[], int], *, every_s: float, limit_s: float) -> int:
    """Wait until some looks at the bytes on disk, one after each pause, are alike; return the last.

    Raises:
        TimeoutError: they never were.
    """
    deadline = time.monotonic() + limit_s
    looks = [disk()]
    while time.monotonic() < deadline:
        time.sleep(every_s)
        looks.append(disk())
        last = looks[-_LOOKS:]
        if len(last) == _LOOKS and max(last) - min(last) < max(1.0, max(last) * _ALIKE):
            return last[-1]
    raise TimeoutError(
        f"what was stored still grows or shrinks after {limit_s:g} s: {looks[-_LOOKS:]} bytes; measure on a quiet disk"
    )
