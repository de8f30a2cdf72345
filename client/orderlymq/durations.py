"""
Time spans as users give them: one rule for every argument and setting of the SDK.

Rule: a span is a number of seconds (`3`, `0.25`) or a `timedelta`; brokers get whole milliseconds.
"""

import math
from datetime import timedelta
from typing import TypeAlias

from orderlymq.errors import SettingError

Duration: TypeAlias = float | timedelta
"""Seconds, or a `timedelta`."""


def seconds(span: Duration) -> float:
    """Return a span in seconds.

    Raises:
        SettingError: It is neither a number nor a `timedelta`.
    """
    if isinstance(span, timedelta):
        return span.total_seconds()
    try:
        is_span = (
            isinstance(span, int | float) and not isinstance(span, bool) and not math.isnan(span)
        )
    except OverflowError:  # an integer with hundreds of digits
        is_span = False
    if not is_span:
        raise SettingError(f"{span!r:.40} is not a time span; give seconds or a timedelta")
    return span


def milliseconds(span: Duration) -> int:
    """Return a span in whole milliseconds; raises as `seconds` does, and refuses an infinite span."""
    span_s = seconds(span)
    if math.isinf(span_s):
        raise SettingError(f"{span!r} is infinite; give seconds or a timedelta")
    return round(span_s * 1000)
