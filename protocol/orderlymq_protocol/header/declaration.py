"""
How a header is declared: a frozen dataclass whose fields are the texts of `ext`, with their Java types.

`request_header(code, …)` and `response_header(code, …)` turn a class into such a dataclass and enter it into
REQUEST_HEADERS or RESPONSE_HEADERS. `queue_id: Int` is read from and written to `queueId`. Rules: a field
without a default is required. A number must fit its Java type. A field that is None is not written.
The headers themselves are in the package `header`.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Self,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from orderlymq_protocol.body.declaration import wire_name_of
from orderlymq_protocol.integers import read_integer


class HeaderError(ValueError):
    """A field of a request or response is missing or cannot be read; the text names field and code."""


class Header:
    """Base of the declared headers."""

    __slots__ = ()

    # "request 30" or "response 30", for messages to people.
    described: ClassVar[str] = "header"

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Read the header; unknown fields are ignored.

        Raises:
            HeaderError: A required field is missing, or a number is malformed or too large for its type.
        """
        return cls(*read_fields(cls, ext, _names(cls)))

    def to_ext(self) -> dict[str, str]:
        """Return the fields as text, without those that are None."""
        return write_fields(self, _names(type(self)))


Read = Callable[[str], Any]
_HeaderT = TypeVar("_HeaderT", bound=Header)

REQUEST_HEADERS: Final[dict[int, type[Header]]] = {}
RESPONSE_HEADERS: Final[dict[int, type[Header]]] = {}

_FIELDS: Final[dict[type[Header], tuple[tuple[str, Read, Any], ...]]] = {}
_NAMES: Final[dict[type[Header], tuple[str, ...]]] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def request_header(*codes: int) -> Callable[[type[_HeaderT]], type[_HeaderT]]:
    """Declare the header of the requests with these codes."""
    return _declare("request", codes, REQUEST_HEADERS)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def response_header(*codes: int) -> Callable[[type[_HeaderT]], type[_HeaderT]]:
    """Declare the header of the responses to requests with these codes."""
    return _declare("response", codes, RESPONSE_HEADERS)


def register(
    cls: type[_HeaderT], kind: str, codes: tuple[int, ...], table: dict[int, type[Header]]
) -> type[_HeaderT]:
    """Register a class that is already a dataclass, for hot headers that read or write themselves."""
    cls.described = f"{kind} {'/'.join(str(int(code)) for code in codes)}"
    table.update(dict.fromkeys(map(int, codes), cls))
    hints = get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
    _FIELDS[cls] = tuple(
        (field.name, _reader(hints[field.name]), field.default) for field in fields
    )
    _NAMES[cls] = tuple(map(wire_name_of, fields))
    return cls


def read_fields(cls: type[Header], ext: Mapping[str, str], names: tuple[str, ...]) -> list[Any]:
    """Return the values of all fields in the order of their declaration.

    Raises:
        HeaderError: As `Header.from_ext`.
    """
    values = []
    for (_, read, default), name in zip(_FIELDS[cls], names, strict=True):
        text = ext.get(name)
        if text is not None:
            try:
                values.append(read(text))
            except ValueError as error:
                raise HeaderError(
                    f"the custom field <{name}> of {cls.described} cannot be read: {error}"
                ) from error
        elif default is dataclasses.MISSING:
            raise HeaderError(f"the custom field <{name}> is null ({cls.described})")
        else:
            values.append(default)
    return values


def write_fields(header: Header, names: tuple[str, ...]) -> dict[str, str]:
    """Return the texts of all fields that are not None, under *names*."""
    ext: dict[str, str] = {}
    for (attribute, _, _), name in zip(_FIELDS[type(header)], names, strict=True):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True or value is False:
            ext[name] = "true" if value else "false"
        else:
            ext[name] = str(value)
    return ext


def _names(cls: type[Header]) -> tuple[str, ...]:
    return _NAMES[cls]


def _declare(
    kind: str, codes: tuple[int, ...], table: dict[int, type[Header]]
) -> Callable[[type[_HeaderT]], type[_HeaderT]]:
    def declare(cls: type[_HeaderT]) -> type[_HeaderT]:
        made = dataclasses.dataclass(frozen=True, slots=True)(cls)
        return register(made, kind, codes, table)

    return declare


def _reader(hint: Any) -> Read:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (argument for argument in get_args(hint) if argument is not type(None))
    if get_origin(hint) is Annotated:
        low, high = get_args(hint)[1]
        return lambda text: read_integer(text, low, high)
    if hint is bool:
        return boolean
    assert hint is str, f"there is no reader for {hint}"
    return str


def boolean(text: str) -> bool:
    """Parse a flag as Java's `Boolean.parseBoolean` does: only the word true is true."""
    return text.lower() == "true"
