"""The durations and times of options and manifests: texts become whole milliseconds. Pure."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from orderlymq_spark.errors import OptionError

_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)")
_UNITS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_duration_ms(text: str, name: str = "the duration") -> int:
    """Read a duration such as 500ms, 15s, 2m or 1h.

    Raises:
        OptionError: The text is not a duration.
    """
    found = _DURATION.fullmatch(text.strip().lower())
    if found is None:
        raise OptionError(f"{name} is {text!r}; write for example 500ms, 15s, 2m or 1h")
    return int(float(found[1]) * _UNITS[found[2]])


def parse_timestamp_ms(text: str, name: str = "the time") -> int:
    """Read an ISO time (UTC if it has no zone) or milliseconds since the epoch.

    Raises:
        OptionError: The text is neither.
    """
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise OptionError(
            f"{name} is {text!r}; write 2026-01-31T12:00:00Z or milliseconds"
        ) from error
    return epoch_ms(moment if moment.tzinfo else moment.replace(tzinfo=UTC))


def epoch_ms(moment: datetime) -> int:
    """Return a time with a zone in ms since the epoch, rounded down.

    Floating-point seconds are not used, because they are often slightly below the millisecond.
    """
    return (moment - _EPOCH) // timedelta(milliseconds=1)
