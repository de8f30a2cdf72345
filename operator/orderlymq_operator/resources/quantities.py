"""
Sizes and times in the notation of manifests: `20Gi`, `72h`.

Both stay text in the model, so that a manifest is written back as it was read; the number is a property.
"""

import re
from decimal import Decimal
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

_UNITS_BYTES: Final = {
    "": 1,
    "k": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "P": 10**15,
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}
_QUANTITY: Final = re.compile(r"^([0-9]+(?:\.[0-9]+)?)(n|u|m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi|E|Ei)?$")
_UNITS_KUBERNETES: Final = {
    "": Decimal(1),
    **{unit: Decimal(1000) ** -power for power, unit in enumerate("mun", start=1)},
    **{unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)},
    **{f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)},
}
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}

QUANTITY_PATTERN: Final = r"^[1-9][0-9]{0,14}(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
DURATION_PATTERN: Final = r"^([1-9][0-9]{0,8}(ms|s|m|h)){1,5}$"
_TEXT_MAX: Final = 32  # longer than any sensible value, and short enough for the CEL cost budget


class Quantity(str):
    """An amount of bytes with an optional decimal (k, M, G, T, P) or binary (Ki ... Pi) suffix."""

    __slots__ = ()

    @property
    def size_bytes(self) -> int:
        """The amount in bytes."""
        digits = self.rstrip("kKMGTPi")
        return int(digits) * _UNITS_BYTES[self[len(digits) :]]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_schema(cls, QUANTITY_PATTERN)


class Duration(str):
    """A positive time: numbers with the units ms, s, m or h, as in `1h30m`."""

    __slots__ = ()

    @property
    def milliseconds(self) -> int:
        """The time in milliseconds."""
        parts = re.findall(r"([0-9]+)(ms|s|m|h)", self)
        return sum(int(number) * _UNITS_MS[unit] for number, unit in parts)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_schema(cls, DURATION_PATTERN)


def _text_schema(cls: type[str], pattern: str) -> CoreSchema:
    text = core_schema.str_schema(pattern=pattern, max_length=_TEXT_MAX)
    return core_schema.no_info_after_validator_function(
        cls, text, serialization=core_schema.plain_serializer_function_ser_schema(str)
    )


def quantity(value: Any) -> Decimal | None:
    """Return the number that a quantity stands for; None if it is not a quantity."""
    found = _QUANTITY.match(value) if isinstance(value, str) else None
    return Decimal(found[1]) * _UNITS_KUBERNETES[found[2] or ""] if found else None
