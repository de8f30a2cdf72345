"""Waits until stored data is stable on disk, because flushes and compactions use CPU after the last answer."""

import time
from collections.abc import Callable
from typing import Final

#: The number of similar readings required. Work that starts only after a pause of seconds has started by then.
_LOOKS: Final = 4
#: Readings are similar if they differ by less than this share.
_ALIKE: Final = 1 / 200


def rested(disk: Callable[[], int], *, every_s: float, limit_s: float) -> int:
    """Wait until several readings of the bytes on disk, one after each pause, are similar; return the last.

    Raises:
        TimeoutError: They never became similar.
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
