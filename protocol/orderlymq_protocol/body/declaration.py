"""
How a body of the protocol is declared: a frozen dataclass whose fields are the members of a JSON object.

`broker_name` is read from and written to `brokerName`; `field(metadata=wire_name("clientID"))` names the exceptions. Rules,
as on the Java side: unknown members are ignored. null counts as absent. An absent member takes the
field's default; without a default, the error names the member. Numbers and booleans may come as
text. A number is an int64, or within the range of its field (`Int`). A name of an enumeration may come as
its number if the field is declared with the names. Members are written in alphabetical order, those that are None not at all.
The bodies themselves are declared in the modules that `catalogue` gathers.
"""

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    NamedTuple,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.integers import INT64_MAX, INT64_MIN, in_range, read_integer

_WIRE_NAME: Final = "wire_name"

Convert = Callable[[Any], Any]


class ModelError(ValueError):
    """A body is valid JSON but not the object it should be; the text names the member."""


def wire_name(name: str) -> dict[str, str]:
    """Return the metadata of a field whose member has another name than the field's in camel case."""
    return {_WIRE_NAME: name}


def camel_case(name: str) -> str:
    """Return the Java spelling of a Python name: `broker_name` is `brokerName`."""
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def wire_name_of(field: "dataclasses.Field[Any]") -> str:
    """Return the name that a declared field has on the wire."""
    name: str = field.metadata.get(_WIRE_NAME) or camel_case(field.name)
    return name


class JsonModel:
    """Base of the declared bodies; subclasses are frozen dataclasses with slots.

    Attributes:
        is_sparse: members with their default value are not written; for bodies with many of them.
    """

    __slots__ = ()
    is_sparse: ClassVar[bool] = False

    @classmethod
    def from_json_value(cls, value: object) -> Self:
        """Read the object that `fastjson.loads` returned.

        Raises:
            ModelError: It is not an object, or a member is missing or has another type.
        """
        if not isinstance(value, Mapping):
            raise ModelError(f"{cls.__name__} is not a JSON object")
        given: dict[str, Any] = {}
        for name, wire, read, required in _schema(cls).readers:
            item = value.get(wire)
            if item is not None:
                try:
                    given[name] = read(item)
                except (ValueError, TypeError) as error:
                    raise ModelError(f"{cls.__name__}.{wire}: {error}") from error
            elif required:
                raise ModelError(f"{cls.__name__}.{wire} is missing")
        return cls(**given)

    @classmethod
    def from_json(cls, body: bytes) -> Self:
        """Read a body.

        Raises:
            ModelError: As `from_json_value`.
            JsonError: The body is not JSON.
        """
        load = fastjson.loads if _schema(cls).has_odd_keys else fastjson.loads_standard
        return cls.from_json_value(load(body))

    def to_json_value(self) -> dict[str, Any]:
        """Return the object for `fastjson.dumps`."""
        return {
            wire: item if write is None else write(item)
            for name, wire, write, left_out in _schema(type(self)).writers
            if (item := getattr(self, name)) is not left_out
        }

    def to_json(self) -> bytes:
        """Return the body."""
        return fastjson.dumps(self.to_json_value())


class _Schema(NamedTuple):
    """How a body is read and written.

    *has_odd_keys* marks a body with a map whose keys are not texts, which Java does not write as standard JSON. In other
    bodies a peer may add any member, and nobody reads it.
    """

    readers: tuple[tuple[str, str, Convert, bool], ...]
    writers: tuple[tuple[str, str, Convert | None, object], ...]
    has_odd_keys: bool


_SCHEMAS: Final[dict[type[JsonModel], _Schema]] = {}


def _schema(cls: type[JsonModel]) -> _Schema:
    schema = _SCHEMAS.get(cls)
    if schema is None:
        schema = _SCHEMAS[cls] = _read_declaration(cls)
    return schema


def _read_declaration(cls: type[JsonModel]) -> _Schema:
    hints = get_type_hints(cls, include_extras=True)
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]  # every subclass is a dataclass
    return _Schema(
        tuple(
            (
                field.name,
                wire_name_of(field),
                _reader(hints[field.name]),
                field.default is dataclasses.MISSING
                and field.default_factory is dataclasses.MISSING,
            )
            for field in fields
        ),
        tuple(
            sorted(
                (
                    (
                        field.name,
                        wire_name_of(field),
                        _writer(hints[field.name]),
                        _left_out(cls, field),
                    )
                    for field in fields
                ),
                key=lambda entry: entry[1],
            )
        ),
        any(_has_odd_keys(hints[field.name]) for field in fields),
    )


def _left_out(cls: type[JsonModel], field: "dataclasses.Field[Any]") -> object:
    """Return the value for which a member is not written."""
    has_default = cls.is_sparse and field.default is not dataclasses.MISSING

    return field.default if has_default else None


def _has_odd_keys(hint: Any) -> bool:
    """Return whether a member declared as *hint* may hold a map whose keys are not texts."""
    if isinstance(hint, type) and issubclass(hint, JsonModel):
        return _schema(hint).has_odd_keys
    arguments = get_args(hint)
    if get_origin(hint) is Mapping and arguments[0] is not str:
        return True
    return hint is Any or any(map(_has_odd_keys, arguments))


def _reader(hint: Any) -> Convert:
    """Return the function that reads a member declared as *hint*."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _reader(inner)
    if origin is tuple:
        item = _reader(arguments[0])
        return lambda value: tuple(map(item, _array(value)))
    if origin is frozenset:
        item = _reader(arguments[0])
        return lambda value: frozenset(map(item, _array(value)))
    if origin is Mapping:
        key, item = _KEY_READERS[arguments[0]], _reader(arguments[1])
        return lambda value: {key(k): item(v) for k, v in _object(value).items()}
    if origin is Annotated:
        return _named(arguments[1]) if arguments[0] is str else _ranged(*arguments[1])
    if hint in _READERS:
        return _READERS[hint]
    read: Convert = hint.from_json_value
    return read


def _ranged(low: int, high: int) -> Convert:
    def read(value: object) -> int:
        # Checked first, because a registration has 200 000 of them.
        if type(value) is int and low <= value <= high:
            return value
        return in_range(_integer(value), low, high)

    return read


def _named(names: Sequence[str]) -> Convert:
    def read(value: object) -> str:
        if type(value) is not int:
            return _text(value)
        if not 0 <= value < len(names):
            raise ModelError(
                f"{str(value)[:24]} is not one of 0 to {len(names) - 1}: {', '.join(names)}"
            )
        return names[value]

    return read


def _writer(hint: Any) -> Convert | None:
    """Return the function that writes a member declared as *hint*; None if it is written unchanged."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return _writer(inner)
    if origin in (tuple, frozenset):
        return _array_writer(_writer(arguments[0]), sorted if origin is frozenset else list)
    if origin is Mapping:
        return _map_writer(_writer(arguments[1]))
    return None if hint in _READERS or origin is Annotated else lambda value: value.to_json_value()


def _array_writer(item: Convert | None, order: Convert) -> Convert:
    if item is None:
        return order
    return lambda value: [item(each) for each in order(value)]


def _map_writer(item: Convert | None) -> Convert:
    if item is None:
        return dict
    return lambda value: {key: item(each) for key, each in value.items()}


def _array(value: object) -> Sequence[Any] | AbstractSet[Any]:
    if isinstance(value, list | tuple):
        return value
    raise ModelError("not an array")


def _object(value: object) -> Mapping[Any, Any]:
    if isinstance(value, Mapping):
        return value
    raise ModelError("not an object")


def _integer(value: object) -> int:
    if type(value) is int:
        return in_range(value, INT64_MIN, INT64_MAX)
    if isinstance(value, str):
        return read_integer(value)
    raise ModelError(f"not a whole number: {str(value)[:100]}")


def _number(value: object) -> float:
    if isinstance(value, float | int | str) and not isinstance(value, bool):
        return float(value)
    raise ModelError(f"not a number: {str(value)[:100]}")


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.lower() == "true"
    raise ModelError(f"not true or false: {str(value)[:100]}")


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int):
        return str(value).lower()
    raise ModelError(f"not a text: {str(value)[:100]}")


def _queue(value: object) -> MessageQueue:
    # Newer Java versions write a queue that is a key as the text of its object.
    return MessageQueue.from_json_value(
        fastjson.loads(value.encode()) if isinstance(value, str) else value
    )


_READERS: Final[dict[Any, Convert]] = {
    int: _integer,
    float: _number,
    bool: _boolean,
    str: _text,
    Any: lambda value: value,
}
_KEY_READERS: Final[dict[Any, Convert]] = {str: _text, int: _integer, MessageQueue: _queue}
