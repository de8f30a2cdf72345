"""
Typed bodies: conversion between a program's values and the bytes of a message.

    ORDERS = Json(Order)
    await producer.send("orders", ORDERS.encode(order), key=order.id)
    order = ORDERS.decode(message)

Rules: a body of another type raises `BodyInvalid`, which names the message and the fields but shows no content.
In a listener or a loop it has the effect of any other error there. `encode` refuses a value whose body could
not be read again.
"""

import json
import re
from collections.abc import Callable, Iterator
from datetime import date, datetime, time
from decimal import Decimal
from io import BytesIO
from typing import Any, Final, Generic, TypeAlias, TypeVar
from uuid import UUID

from orderlymq.errors import BodyInvalid, SettingError
from orderlymq.message import ReceivedMessage

T = TypeVar("T")

AvroSchema: TypeAlias = str | dict[str, Any] | list[Any]
_AVRO_MARKER: Final = b"\xc3\x01"
_AVRO_HEAD_BYTES: Final = len(_AVRO_MARKER) + 8
# The logical type that decimals in bodies are read as; fastavro's own decimal has no limit.
_BOUNDED: Final = "orderlymq-decimal"
# A byte holds two digits, and some writers add leading bytes. Conversion time grows with the square of the length.
_DECIMAL_SPARE_BYTES: Final = 16
# The Python types of Avro's logical types.
_AVRO_TYPES: Final = (bytes, datetime, date, time, Decimal, UUID)


class Json(Generic[T]):
    """JSON of a type that pydantic knows: a model, a dataclass, a TypedDict, `list[int]`."""

    def __init__(self, kind: type[T]) -> None:
        try:
            from pydantic import TypeAdapter  # noqa: PLC0415 - only programs with typed bodies pay
        except ImportError as error:
            raise ImportError(f"{error}; install it with: pip install 'orderlymq[json]'") from error
        self._kind = kind
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def encode(self, value: T) -> bytes:
        """Return the body of a value; fields are written under their aliases.

        Raises:
            BodyInvalid: The value is not of the type, or `decode` would refuse its body.
        """
        from pydantic_core import PydanticSerializationError  # noqa: PLC0415 - loaded already

        try:
            body = self._adapter.dump_json(value, by_alias=True, warnings="error")
        except PydanticSerializationError:  # its text shows the value
            why = f"it is a {type(value).__name__}, or holds values of other types"
            raise _invalid(None, self._kind, why) from None
        self._read(body, None)
        return body

    def decode(self, message: ReceivedMessage) -> T:
        """Return the value of a body.

        Raises:
            BodyInvalid: The body is not JSON of the type.
        """
        return self._read(message.body, message)

    def _read(self, body: bytes, message: ReceivedMessage | None) -> T:
        from pydantic import ValidationError  # noqa: PLC0415 - loaded already

        try:
            return self._adapter.validate_json(body)
        except ValidationError as error:
            errors = error.errors(include_input=False, include_url=False, include_context=False)
            # Error texts may quote the body, and a location may be a key of a dict: only names of the type are shown.
            known = repr(self._adapter.core_schema)
            faults = list[str]()
            for each in errors:
                parts = (
                    str(part) if isinstance(part, int) or repr(part) in known else "*"
                    for part in each["loc"]
                )
                faults.append(f"{'.'.join(parts) or 'body'}: {each['type']}")
            raise _invalid(message, self._kind, "; ".join(faults)) from None


class Msgpack(Generic[T]):
    """MessagePack of a type that msgspec knows: a Struct, a dataclass, `dict[str, int]`."""

    def __init__(self, kind: type[T]) -> None:
        from msgspec import msgpack  # noqa: PLC0415 - only programs with typed bodies pay for it

        self._kind = kind
        self._encode: Callable[[Any], bytes] = msgpack.Encoder().encode
        self._decode: Callable[[bytes], T] = msgpack.Decoder(kind).decode

    def encode(self, value: T) -> bytes:
        """Return the body of a value.

        Raises:
            BodyInvalid: The value is not of the type: `decode` would refuse its body.
        """
        try:
            body = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError):
            why = f"it is a {type(value).__name__}, or holds values that MessagePack cannot encode"
            raise _invalid(None, self._kind, why) from None
        self._read(body, None)
        return body

    def decode(self, message: ReceivedMessage) -> T:
        """Return the value of a body.

        Raises:
            BodyInvalid: The body is not MessagePack of the type.
        """
        return self._read(message.body, message)

    def _read(self, body: bytes, message: ReceivedMessage | None) -> T:
        from msgspec import MsgspecError  # noqa: PLC0415 - loaded already

        try:
            return self._decode(body)
        except (MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise _invalid(message, self._kind, _fault(error)) from None


class Avro(Generic[T]):
    """Avro's single-object encoding of a type that msgspec knows: a Struct, a dataclass, `dict[str, Any]`.

    Each body names the schema that it was written with. So readers and writers can change their schemas at different
    times, by Avro's rules.

    Args:
        kind: the type of the values; its fields are those of the schema.
        schema: the schema that bodies are written with and read as; JSON text or its parsed value.
        older: further schemas that bodies may have been written with.

    Raises:
        SettingError: A schema is invalid, or its bodies have no bound: the items of an array take no bytes, so that a
            short body could hold any number of them, or a type contains itself, so that values could nest too deep.
    """

    def __init__(self, kind: type[T], schema: AvroSchema, *older: AvroSchema) -> None:
        try:
            from fastavro import read, schemaless_reader, schemaless_writer  # noqa: PLC0415 - as above
        except ImportError as error:
            raise ImportError(f"{error}; install it with: pip install 'orderlymq[avro]'") from error
        self._kind = kind
        self._read, self._write = schemaless_reader, schemaless_writer
        read.LOGICAL_READERS[f"bytes-{_BOUNDED}"] = _bounded_decimal
        known = [_parsed(each) for each in (schema, *older)]
        self._head, self._schema, self._wanted = known[0]
        self._schemas = {head: bounded for head, _, bounded in reversed(known)}

    def encode(self, value: T) -> bytes:
        """Return the body of a value.

        Raises:
            ValueError: The value does not fit the schema.
        """
        from msgspec import to_builtins  # noqa: PLC0415 - only programs with typed bodies pay

        into = BytesIO()
        into.write(self._head)
        record = to_builtins(value, builtin_types=_AVRO_TYPES)
        self._write(into, self._schema, record, strict_allow_default=True)
        return into.getvalue()

    def decode(self, message: ReceivedMessage) -> T:
        """Return the value of a body, converted to the form of the schema.

        Raises:
            BodyInvalid: The body is not Avro, its schema is unknown, or its value is not of the type.
        """
        from msgspec import ValidationError, convert  # noqa: PLC0415 - loaded already

        head, body = message.body[:_AVRO_HEAD_BYTES], BytesIO(message.body[_AVRO_HEAD_BYTES:])
        if not head.startswith(_AVRO_MARKER) or len(head) < _AVRO_HEAD_BYTES:
            raise _invalid(message, self._kind, "it has no header of Avro's single-object encoding")
        written = self._schemas.get(head)
        if written is None:
            number = head[len(_AVRO_MARKER) :].hex()
            raise _invalid(
                message, self._kind, f"its schema {number} is unknown; pass it as an older schema"
            )
        try:
            record = self._read(body, written, self._wanted)
        except Exception as error:  # fastavro may raise anything; its text may show the body
            why = f"it cannot be read by its schema ({type(error).__name__})"
            raise _invalid(message, self._kind, why) from None
        if body.read(1):
            raise _invalid(message, self._kind, "extra bytes follow its record")
        try:
            return convert(record, self._kind, builtin_types=_AVRO_TYPES)
        except ValidationError as error:
            raise _invalid(message, self._kind, _fault(error)) from None


def _parsed(schema: AvroSchema) -> tuple[bytes, Any, Any]:
    """Return the head of bodies written with a schema, and fastavro's forms of the schema to write and to read with."""
    from fastavro.schema import fingerprint, parse_schema, to_parsing_canonical_form  # noqa: PLC0415

    try:
        given = json.loads(schema) if isinstance(schema, str) else schema
        found, bounded = parse_schema(given), parse_schema(bounded_schema(given))
        number = fingerprint(to_parsing_canonical_form(found), "CRC-64-AVRO")
    except Exception as error:  # fastavro may raise anything for an invalid schema
        raise SettingError(
            f"this is not an Avro schema: {type(error).__name__}: {error}"
        ) from error
    for kind, around in _avro_types(found):
        if isinstance(kind, dict) and kind["type"] == "array" and not _takes_bytes(kind["items"]):
            raise SettingError(
                f"items of the array {kind} take no bytes; give them a type that does"
            )
        if isinstance(kind, str) and kind in around:
            raise SettingError(
                f"{kind} is recursive, so a body could be nested too deeply to be read; use Json or Msgpack for it"
            )
    return _AVRO_MARKER + bytes.fromhex(number), found, bounded


def _avro_types(
    schema: Any, around: frozenset[str] = frozenset()
) -> Iterator[tuple[Any, frozenset[str]]]:
    """Yield a schema that fastavro has parsed, and every type in it, each with the names of the types *around* it.

    A type that is referred to by name is yielded as that name.
    """
    yield schema, around
    inner: list[Any] = []
    if isinstance(schema, list):
        inner = schema
    elif isinstance(schema, dict):
        inner = [each["type"] for each in schema.get("fields", ())]
        inner += [schema[key] for key in ("type", "items", "values") if key in schema]
        around |= {schema["name"]} if "name" in schema else set()
    for each in inner:
        yield from _avro_types(each, around)


def bounded_schema(schema: Any) -> Any:
    """Return an unparsed schema whose decimals may have no more digits than their precision.

    It works once an `Avro` has been made.
    """
    if isinstance(schema, list):
        return [bounded_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: bounded_schema(value) for key, value in schema.items()}
    if (found.get("type"), found.get("logicalType")) == ("bytes", "decimal"):
        found["logicalType"] = _BOUNDED
    return found


def _bounded_decimal(data: bytes, writer: Any = None, reader: Any = None) -> Any:
    from fastavro.read import LOGICAL_READERS  # noqa: PLC0415 - loaded already

    if len(data) > writer["precision"] + _DECIMAL_SPARE_BYTES:
        raise ValueError("the decimal has more digits than its precision")
    return LOGICAL_READERS["bytes-decimal"](data, writer, reader)


def _takes_bytes(schema: Any) -> bool:
    """Return whether each value of a type takes at least one byte; a type given by its name is assumed to."""
    if not isinstance(schema, dict):
        return bool(schema != "null")
    match schema["type"]:
        case "record" | "error":
            return any(_takes_bytes(each["type"]) for each in schema["fields"])
        case "fixed":
            return bool(schema["size"] > 0)
        case inner:
            return _takes_bytes(inner)


def _fault(error: Exception) -> str:
    """Return msgspec's error about a body, without quotations of it and without texts of the type's own checks."""
    text = str(error)
    if error.__cause__ is not None or not text.startswith(
        ("Expected ", "Object missing ", "Invalid ")
    ):
        return "it does not fit the type"
    return re.sub(r" '.*'", "", text, flags=re.DOTALL)


def _invalid(message: ReceivedMessage | None, kind: Any, why: str) -> BodyInvalid:
    """Return the error for a received body, or, without a message, for a value to be sent."""
    what = "the value" if message is None else f"the body of {message!r}"
    return BodyInvalid(f"{what} is not a valid {getattr(kind, '__name__', kind)}: {why}")
