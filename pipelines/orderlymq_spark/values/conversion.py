"""
Converts decoded values for Arrow by their Spark type; a value that does not fit raises an error with its place.

Rule: no value is coerced. A text is not a number, a fraction is not a whole number, and a missing field becomes null.
"""

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from struct import pack
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

# A decimal context that never rounds.
EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


class ValueMisfit(ValueError):  # noqa: N818 - says what happened
    """A body does not match its schema; the text names the place and the type found there."""


def fitted(value: Any, kind: pa.DataType, place: str = "value", *, sized: bool = False) -> Any:
    """Return a decoded value in the form that `pyarrow.array` takes for a type.

    Args:
        value: from JSON, Avro or protobuf; times, dates, decimals and bytes may also be texts, as in JSON.
        kind: of the column.
        place: of the value in its body, for errors.
        sized: whether to refuse also values that are too large for the type, which is slow.

    Raises:
        ValueMisfit: The value does not fit.
    """
    if value is None:
        return None
    if pa.types.is_struct(kind):
        return _struct(value, kind, place, sized=sized)
    if pa.types.is_map(kind):
        return _map(value, kind, place, sized=sized)
    if pa.types.is_list(kind):
        if not isinstance(value, list):
            raise _misfit(value, "array", place)
        return [
            fitted(each, kind.value_type, f"{place}[{at}]", sized=sized)
            for at, each in enumerate(value)
        ]
    for holds, convert in _SCALARS:
        if holds(kind):
            try:
                found = convert(value, kind)
                if sized:
                    pa.array([found], kind)
            except (TypeError, ValueError, OverflowError, InvalidOperation):
                break
            return found
    raise _misfit(value, str(kind), place)


def _struct(value: Any, kind: pa.StructType, place: str, *, sized: bool) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _misfit(value, "record", place)
    return {
        field.name: fitted(value.get(field.name), field.type, f"{place}.{field.name}", sized=sized)
        for field in kind
    }


def _map(value: Any, kind: pa.MapType, place: str, *, sized: bool) -> list[tuple[Any, Any]]:
    if not isinstance(value, dict):
        raise _misfit(value, "map", place)
    return [
        (
            fitted(key, kind.key_type, place, sized=sized),
            fitted(each, kind.item_type, f"{place}.{key}", sized=sized),
        )
        for key, each in value.items()
    ]


def _misfit(value: Any, kind: str, place: str) -> ValueMisfit:
    # The text does not show the body's content, because it may be secret.
    return ValueMisfit(f"{place} is a {type(value).__name__}, which is not a {kind}")


def _of(*kinds: type) -> Callable[..., Any]:
    def check(value: Any, _kind: pa.DataType | None = None) -> Any:
        # In Python, True is also an int.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        return value

    return check


def _string(value: Any, _kind: pa.DataType) -> str:
    return str(value if isinstance(value, UUID) else _of(str)(value))


def _float(value: Any, kind: pa.DataType) -> float:
    found = float(_of(int, float, Decimal)(value))
    if pa.types.is_float32(kind):
        pack("<f", found)  # refuses numbers that would become infinity
    return found


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal:
    """Return a number without trailing zeros; Arrow reads past its tables if an exponent is extreme."""
    given = value if isinstance(value, Decimal) else Decimal(str(_of(int, float, str)(value)))
    if not given.is_finite():
        raise ValueError
    if not given:
        return Decimal(0)
    kept = EXACT.normalize(given)
    if (
        int(kept.as_tuple().exponent) < -kind.scale
        or kept.adjusted() >= kind.precision - kind.scale
    ):
        raise OverflowError
    return kept


def _timestamp(value: Any, _kind: pa.DataType) -> datetime:
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(_of(str)(value))
    # A time in another zone may lie outside the years 1 to 9999 in UTC.
    return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)


def _date(value: Any, _kind: pa.DataType) -> date:
    return value if isinstance(value, date) else date.fromisoformat(_of(str)(value))


def _binary(value: Any, _kind: pa.DataType) -> bytes:
    return value if isinstance(value, bytes) else b64decode(_of(str)(value), validate=True)


_SCALARS: Final[tuple[tuple[Any, Callable[[Any, pa.DataType], Any]], ...]] = (
    (pa.types.is_boolean, _of(bool)),
    (pa.types.is_integer, _of(int)),
    (pa.types.is_floating, _float),
    (pa.types.is_string, _string),
    (pa.types.is_binary, _binary),
    (pa.types.is_decimal, _decimal),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_date, _date),
)
