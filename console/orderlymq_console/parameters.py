"""
Parameters of a request, checked for type and range before a page sees them.

Rule: an absent parameter takes its default. A wrong one is refused with a sentence that names it.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

from orderlymq_protocol.names import InvalidName, check_group_name

#: No name, key or id is longer.
TEXT_LENGTH_MAX: Final = 1_024
#: The stamp of a reset names each of its queues.
STAMP_LENGTH_MAX: Final = 48 * 1_024
# Larger values, from the year 6429 on, are not treated as times, because a producer may write any number.
MOMENT_MAX: Final = 2**47
OFFSET_MAX: Final = 2**63 - 1
_BROKER: Final = re.compile(r"[^\x00-\x1f\x7f]{1,255}")


class BadParameter(ValueError):  # noqa: N818 - says what it is
    """A parameter that cannot be used; the text names it and says what is right."""


class Parameters:
    """The parameters of one request, by name."""

    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "", *, length_max: int = TEXT_LENGTH_MAX) -> str:
        """Return a text without the blanks around it."""
        return _checked(name, self._values.get(name, default).strip(), length_max)

    def raw(self, name: str) -> str:
        """Return a text unchanged, because blanks around a key are part of the key."""
        return _checked(name, self._values.get(name, ""), TEXT_LENGTH_MAX)

    def number(self, name: str, default: int, *, low: int = 0, high: int = OFFSET_MAX) -> int:
        """Return a whole number in a range."""
        text = self.text(name)
        if not text:
            return default
        if len(text) > 20 or not re.fullmatch(r"-?[0-9]+", text):
            raise BadParameter(f"{name} must be a whole number")
        value = int(text)
        if not low <= value <= high:
            raise BadParameter(f"{name} is {value}; it must be between {low} and {high}")
        return value

    def flag(self, name: str) -> bool:
        """Return whether a switch is on."""
        return self.text(name) in ("1", "true", "on", "yes")

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """Return one of *choices*; the first one if the parameter is absent."""
        value = self.text(name) or choices[0]
        if value not in choices:
            raise BadParameter(f"{name} must be one of {', '.join(choices)}")
        return value

    def name(self, name: str) -> str:
        """Return the name of a topic or consumer group, checked by the rules of the protocol."""
        value = self.text(name)
        try:
            check_group_name(value)
        except InvalidName as error:
            raise BadParameter(str(error)) from error
        return value

    def moment(self, name: str) -> int | None:
        """Return a time in wall ms, in UTC if it names no zone; None if it is absent."""
        text = self.text(name, length_max=40)
        if not text:
            return None
        try:
            found = datetime.fromisoformat(text)
            moment_ms = int(
                (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp() * 1000
            )
        except (ValueError, OverflowError) as error:
            raise BadParameter(f"{name} must be a time like 2026-01-31T12:00:00") from error
        if not 0 <= moment_ms < MOMENT_MAX:
            raise BadParameter(f"{name} must be after 1970 and before the year 6429")
        return moment_ms

    def queue(self, name: str) -> tuple[str, int] | None:
        """Return the broker group and number of a queue written as ``broker-a:3``; None if it is absent."""
        value = self.text(name)
        if not value:
            return None
        broker, colon, number = value.rpartition(":")
        if not colon or not re.fullmatch(r"[0-9]{1,9}", number) or not _BROKER.fullmatch(broker):
            raise BadParameter(f"{name} must be a broker group and a number, such as broker-a:3")
        return broker, int(number)


def _checked(name: str, value: str, length_max: int) -> str:
    if len(value) > length_max:
        raise BadParameter(f"{name} has {len(value)} characters; at most {length_max} are allowed")
    if "\x00" in value:
        raise BadParameter(f"{name} holds a character that is not allowed in names")

    return value
