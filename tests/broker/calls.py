"""Counts what a step calls: what has a bound must not grow with what is there."""

import sys
from collections.abc import Callable
from types import CodeType, FrameType


def calls_in(step: Callable[[], object], of: CodeType | None = None) -> int:
    """Return how many functions of Python a step calls, or how often that one."""
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
