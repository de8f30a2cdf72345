"""
The properties of one message, read once: as text, and by name.

The rule: what is found by name is what ``orderlymq_protocol.message.properties`` finds; changing one property leaves
every other character of the text as it is. Text, because searching text is several times faster than searching
bytes. Names that only one module asks for are in ``orderlymq_protocol.message.properties``.
"""

from typing import Final, final

from orderlymq_protocol.message.properties import (
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    append_property,
    remove_property,
)


@final
class Properties:
    """The properties of a message.

    Attributes:
        text: as they are stored.
        by_name: values by name; of two entries with one name the last counts, empty ones do not.
    """

    __slots__ = ("by_name", "text")

    def __init__(self, text: str, by_name: dict[str, str] | None = None) -> None:
        self.text = text
        if by_name is None:
            by_name = {}
            for entry in text.split(PROPERTY_SEPARATOR):
                name, _, value = entry.partition(NAME_VALUE_SEPARATOR)
                if name and value:
                    by_name[name] = value
        self.by_name: Final[dict[str, str]] = by_name

    def before(self, others: "Properties") -> "Properties":
        """Return these and behind them *others*, which are not read again."""
        text = self.text
        if text and text[-1] != PROPERTY_SEPARATOR:
            text += PROPERTY_SEPARATOR

        return Properties(text + others.text, self.by_name | others.by_name)

    def add(self, name: str, value: str) -> None:
        """Add one property at the end, where it counts.

        Raises:
            PropertyError: the name is empty, or name or value hold a separator.
        """
        self.text = append_property(self.text.encode(), name, value).decode()
        self.by_name[name] = value

    def drop(self, *names: str) -> None:
        """Remove every entry of these names."""
        for name in names:
            if self.by_name.pop(name, None) is not None:
                self.text = _without(self.text, name)


def _without(text: str, name: str) -> str:
    """Return *text* without the entries of a name, at the speed a send needs where it is there once."""
    start = name + NAME_VALUE_SEPARATOR
    at = text.find(start)
    end = text.find(PROPERTY_SEPARATOR, at)
    if end < 0 or (at and text[at - 1] != PROPERTY_SEPARATOR) or text.find(start, end) >= 0:
        return remove_property(text.encode(), name).decode()

    return text[:at] + text[end + 1 :]


def properties_of(stored: bytes | memoryview) -> Properties:
    """Return stored properties; what is no UTF-8 becomes U+FFFD."""
    return Properties(bytes(stored).decode(errors="replace"))
