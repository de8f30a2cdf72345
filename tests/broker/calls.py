"""Counts the function calls of a step, because the work of a bounded step must not grow with the amount of data."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType


def calls_in(step: Callable[[], object], of: CodeType | None = None) -> int:
    """Return the number of Python function calls during a step; with a name, the calls of that function."""
    count = 0

    def note(frame: FrameType, event: str, _: object) -> None:
        nonlocal count
        count += event == "call" and of in (None, frame.f_code)

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)

    return count
