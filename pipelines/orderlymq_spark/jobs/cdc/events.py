"""
Converts change events of three binlog readers to one form, and derives what a batch means for each key. Pure.

Rules: in a batch, only the last change of a key by position counts. In a history every change counts, and the history
is the same for any division, order and repetition of batches. A position is the message's offset in its queue, and a
key stays in one queue. A changed primary key is a delete of the old key and an upsert of the new one. An event that
cannot be read is not lost: it is returned with the reason.
"""

import json
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final, Literal

from orderlymq_spark.values.conversion import EXACT

Format = Literal["debezium", "canal", "maxwell"]

# Our own columns of the table; the last three exist only in a history.
KEY: Final = "_key"
POSITION: Final = "_position"
DELETED: Final = "_deleted"
FROM: Final = "_valid_from"
TO: Final = "_valid_to"
CURRENT: Final = "_is_current"
OWN: Final = frozenset((KEY, POSITION, DELETED, FROM, TO, CURRENT))
_TRUNCATE: Final = (
    "the source table was emptied, which has no position among the changes of its rows; begin behind it, with "
    "a new path and a new checkpoint"
)
# Debezium's placeholder for a value that the database did not log: as text, as bytes, and as an array of numbers.
_UNAVAILABLE: Final = b"__debezium_unavailable_value"
_UNAVAILABLE_TEXTS: Final = frozenset((_UNAVAILABLE.decode(), b64encode(_UNAVAILABLE).decode()))
_UNAVAILABLE_NUMBERS: Final = list(_UNAVAILABLE)
_INTEGER_DIGITS: Final = 4300  # the most digits that Python reads and writes
_NO_NAME: Final = frozenset("`\0")  # in a name they would end Delta's expressions, or the name


class EventError(ValueError):
    """The body is not a change event of this format."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of a source table at one position; *row* is None if it was deleted. Objects and arrays are JSON texts."""

    key: tuple[Any, ...]
    row: Mapping[str, Any] | None
    position: int

    @property
    def name(self) -> str:
        """The key as the table stores it; in Python, true, 1 and 1.0 would be one key."""
        return to_json(self.key)


@dataclass(frozen=True, slots=True)
class Number:
    """A fraction that Python would write with other digits."""

    text: str


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raises the errors of `json.loads`."""
    return json.loads(text, parse_float=_number)


def _number(text: str) -> float | Number:
    value = float(text)
    return value if repr(value) == text else Number(text)


def to_json(value: object) -> str:
    """Return a value from `read_json` as JSON, with the original digits of its numbers."""
    try:
        return json.dumps(value)
    except TypeError:
        return _with_digits(value)


def _with_digits(value: object) -> str:
    match value:
        case Number():
            return value.text
        case dict():
            parts = (f"{json.dumps(name)}: {_with_digits(each)}" for name, each in value.items())
            return f"{{{', '.join(parts)}}}"
        case list() | tuple():
            return f"[{', '.join(map(_with_digits, value))}]"
    return json.dumps(value)


def read_changes(
    body: bytes, form: Format, keys: Sequence[str], table: str | None, position: int
) -> list[Change]:
    """Return the changes of one message; empty for tombstones (a delete precedes each), schema changes and other tables.

    Raises:
        EventError: The message does not match the format.
    """
    if body in (b"", b"null"):
        return []
    try:
        event = read_json(body)
    except (ValueError, RecursionError) as error:
        raise EventError(f"no JSON: {error}") from error
    if not isinstance(event, dict):
        raise EventError("no JSON object")
    match form:
        case "debezium":
            pairs = _debezium(event, table)
        case "canal":
            pairs = _canal(event, table)
        case "maxwell":
            pairs = _maxwell(event, table)
    found: list[Change] = []
    for before, after in pairs:
        _check_names(tuple(after or ()))
        old = None if before is None else _key(before, keys)
        new = None if after is None else _key(after, keys)
        if old is None and new is None:
            raise EventError(
                "it does not name the row that it changes; let the database log whole rows"
            )
        if old is not None and (new is None or to_json(old) != to_json(new)):
            found.append(Change(old, None, position))
        if new is not None:
            found.append(Change(new, _with_texts(after or {}), position))
    return found


_Pair = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]


def _debezium(event: dict[str, Any], table: str | None) -> list[_Pair]:
    payload = event.get("payload", event)
    if payload is None:
        return []
    kind = payload.get("op") if isinstance(payload, dict) else None
    if kind == "m" or (kind is None and isinstance(payload, dict) and "ddl" in payload):
        return []
    if kind not in ("c", "r", "u", "d", "t"):
        raise EventError(f"op is {kind!r}, not one of c, r, u, d")
    source = _object(payload, "source")
    if "table" in source and not _is_of(
        table, source.get("db"), source.get("schema"), source["table"]
    ):
        return []
    if kind == "t":
        raise EventError(_TRUNCATE)
    after = None if kind == "d" else _row(payload.get("after"))
    _check_available(after or {})
    return [(_row(payload.get("before")), after)]


def _check_available(row: Mapping[str, Any]) -> None:
    """Refuse a row in which Postgres did not log a large value because it did not change (TOAST)."""
    for name, value in row.items():
        parts = value if isinstance(value, list | dict) else (value,)
        if value == _UNAVAILABLE_NUMBERS or any(
            isinstance(each, str) and each in _UNAVAILABLE_TEXTS for each in parts
        ):
            raise EventError(
                f"it does not contain {name}, because that did not change; let Postgres log whole rows "
                "(ALTER TABLE … REPLICA IDENTITY FULL)"
            )


def _is_of(table: str | None, *place: object) -> bool:
    """Return whether an event belongs to the wanted table.

    The table may be named with its schema and database; *place* has all parts of the event's name.
    """
    names = [str(each) for each in place if each]
    return table is None or any(table == ".".join(names[at:]) for at in range(len(names)))


def _canal(event: dict[str, Any], table: str | None) -> list[_Pair]:
    kind = event.get("type")
    if not _is_of(table, event.get("database"), event.get("table")):
        return []
    if kind == "TRUNCATE":
        raise EventError(_TRUNCATE)
    if event.get("isDdl"):
        return []
    if kind not in ("INSERT", "UPDATE", "DELETE"):
        raise EventError(f"type is {kind!r}, not one of INSERT, UPDATE, DELETE")
    rows = _rows(event, "data")
    # `old` has only the changed columns.
    olds = _rows(event, "old") or [None] * len(rows)
    if not rows:
        raise EventError("data has no rows")
    if kind == "DELETE":
        return [(_row(row), None) for row in rows]
    if len(olds) != len(rows):
        raise EventError(f"data has {len(rows)} rows, old has {len(olds)}")
    pairs = zip(rows, olds, strict=True)
    return [(None if old is None else {**_row(row), **_row(old)}, _row(row)) for row, old in pairs]


def _maxwell(event: dict[str, Any], table: str | None) -> list[_Pair]:
    kind = event.get("type")
    if not _is_of(table, event.get("database"), event.get("table")):
        return []
    if kind in ("bootstrap-start", "bootstrap-complete") or str(kind).startswith("table-"):
        return []
    row = _row(event.get("data"))
    match kind:
        case "insert" | "bootstrap-insert":
            return [(None, row)]
        case "update":
            return [({**row, **_object(event, "old")}, row)]
        case "delete":
            return [(row, None)]
    raise EventError(f"type is {kind!r}, not one of insert, update, delete")


def _object(event: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a member that is an object; empty if it is absent."""
    value = event.get(name) or {}
    if not isinstance(value, dict):
        raise EventError(f"{name} is not a JSON object")
    return value


def _rows(event: Mapping[str, Any], name: str) -> list[Any]:
    """Return a member that is a list; empty if it is absent."""
    value = event.get(name) or []
    if not isinstance(value, list):
        raise EventError(f"{name} is not a JSON array")
    return value


def _row(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise EventError("a row is not a JSON object")
    return value


@lru_cache(maxsize=1024)  # the names of a table's columns are the same in every event
def _check_names(names: tuple[str, ...]) -> None:
    """Refuse names that a table cannot have as columns."""
    seen: set[str] = set()
    for name in names:
        lower = name.lower()
        if lower in seen:
            raise EventError(
                f"two columns differ from {name!r} in case alone, which no table can hold"
            )
        if lower in OWN:
            raise EventError(
                f"the column {name!r} is reserved: the table has a column of its own with this name"
            )
        if not _NO_NAME.isdisjoint(name) or not _is_text(name):
            raise EventError(f"the column {name!r} has characters that are not allowed in a table")
        seen.add(lower)


def _with_texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with objects and arrays as JSON; refuse texts that cannot be encoded."""
    try:
        found = {
            name: to_json(value) if isinstance(value, dict | list) else value
            for name, value in row.items()
        }
    except RecursionError as error:
        raise EventError(f"a value is nested too deep: {error}") from error
    if not _is_text("".join(value for value in found.values() if isinstance(value, str))):
        raise EventError(
            "a text has half a character (a lone surrogate), which a table cannot store"
        )
    return found


def _is_text(text: str) -> bool:
    """Return whether a text has no lone surrogates, which JSON allows."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _key(row: Mapping[str, Any], keys: Sequence[str]) -> tuple[Any, ...] | None:
    if not row:
        return None
    missing = [name for name in keys if row.get(name) is None]
    if missing:
        raise EventError(f"the row has no {missing[0]}; it has {', '.join(row)}")
    found = tuple(_comparable(row[name]) for name in keys)
    # Debezium writes an Oracle number without a precision as an object, which cannot be compared as a key.
    for name, value in zip(keys, found, strict=True):
        if isinstance(value, dict | list):
            raise EventError(
                f"the key {name} is {to_json(value)[:255]}, neither text nor a number; let the binlog reader write "
                "it as one of these, as Debezium does with decimal.handling.mode=string"
            )
        if isinstance(value, str) and not _is_text(value):
            raise EventError(f"the key {name} is {value!r}, which has half a character")
    return found


def _comparable(value: object) -> object:
    """Return the comparable form of a key's member: trailing zeros are dropped, and 1.0 becomes 1."""
    if not isinstance(value, float | Number):
        return value
    try:
        exact = EXACT.normalize(Decimal(value.text if isinstance(value, Number) else repr(value)))
    except InvalidOperation:  # the exponent is too large
        return value
    if not exact.is_finite():
        return value
    if exact == exact.to_integral_value() and exact.adjusted() < _INTEGER_DIGITS:
        return int(exact)
    nearest = float(exact)
    return nearest if Decimal(repr(nearest)) == exact else Number(str(exact))


@dataclass(frozen=True, slots=True)
class Version:
    """A row of a source table from one change of its key to the next.

    Attributes:
        valid_from: position of the change that created it.
        valid_to: position of the key's next change; None for the last one.
        change: the content of the row; None if the history already has it and only its end is new.
    """

    key: tuple[Any, ...]
    valid_from: int
    valid_to: int | None
    change: Change | None


def new_versions(known: Mapping[str, Iterable[int]], changes: Iterable[Change]) -> list[Version]:
    """Return the versions that *changes* add to a history, and the existing versions that get a new end.

    Args:
        known: the start positions of each key's versions in the history, by the key's name.
        changes: any changes, including those that the history already has.
    """
    added: dict[str, dict[int, Change]] = {}
    for change in changes:
        added.setdefault(change.name, {})[change.position] = change
    found: list[Version] = []
    for name, by_position in added.items():
        key = next(iter(by_position.values())).key
        present = frozenset(known.get(name, ()))
        places = sorted(present | by_position.keys())
        for place, following in zip(places, [*places[1:], None], strict=True):
            if place not in present:
                found.append(Version(key, place, following, by_position[place]))
            elif following is not None and following not in present:
                found.append(Version(key, place, following, None))
    return found


def last_by_key(changes: Iterable[Change]) -> dict[str, Change]:
    """Return the last change of each key by its name; of equal positions, the later one in *changes*."""
    found: dict[str, Change] = {}
    for change in changes:
        name = change.name
        known = found.get(name)
        if known is None or change.position >= known.position:
            found[name] = change
    return found
