"""
Decoded values as Arrow takes them for a type of Spark's; what does not fit is an error that names its place.

Rule: nothing is made to fit. A text is no number, a fraction is no whole number, and only null stands for a missing field.
"""

from base64 import b64decode
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal, InvalidOperation
from struct import pack
from typing import Any, Final
from uuid import UUID

import pyarrow as pa

# No arithmetic of it rounds.
EXACT: Final = Context(prec=MAX_PREC, Emin=MIN_EMIN, Emax=MAX_EMAX)


class ValueMisfit(ValueError):  # noqa: N818 - says what happened
    """A body is none of its schema; the text names the place and what is there."""


def fitted(value: Any, kind: pa.DataType, place: str = "value", *, sized: bool = False) -> Any:
    """Return a decoded value as `pyarrow.array` takes it for a type.

    Args:
        value: of JSON, Avro or protobuf; times, dates, decimals and bytes may also be texts, as JSON has them.
        kind: of the column.
        place: of the value in its body, for errors.
        sized: whether to refuse what is too large for its type, too, which is slow.

    Raises:
        ValueMisfit: It does not fit.
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
    # The content of a body is not shown: it may be secret.
    return ValueMisfit(f"{place} is a {type(value).__name__}, which is no {kind}")


def _of(*kinds: type) -> Callable[..., Any]:
    def check(value: Any, _kind: pa.DataType | None = None) -> Any:
        # True is an int in Python.
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise TypeError
        return value

    return check


def _string(value: Any, _kind: pa.DataType) -> str:
    return str(value if isinstance(value, UUID) else _of(str)(value))


def _float(value: Any, kind: pa.DataType) -> float:
    found = float(_of(int, float, Decimal)(value))
    if pa.types.is_float32(kind):
        pack("<f", found)  # refuses what would become infinity there
    return found


def _decimal(value: Any, kind: pa.Decimal128Type) -> Decimal:
    """Return a number without the zeros at its end; Arrow reads beyond its tables when an exponent is far out."""
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
    # A time of another zone may be beyond the years there are.
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
