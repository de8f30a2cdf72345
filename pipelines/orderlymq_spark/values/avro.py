"""Avro: the Spark types of a schema, and a decoder of bodies, plain or in Avro's single-object encoding."""

import json
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any, Final

from orderlymq.bodies import Avro, bounded_schema
from orderlymq.errors import SettingError
from orderlymq_spark.errors import OptionError
from orderlymq_spark.values.conversion import ValueMisfit

_MARKER: Final = b"\xc3\x01"
_HEAD_BYTES: Final = 10
_PRIMITIVES: Final = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "string": "string",
    "bytes": "binary",
    "enum": "string",
    "fixed": "binary",
}
_LOGICAL: Final = {
    "timestamp-millis": "timestamp",
    "timestamp-micros": "timestamp",
    "date": "date",
}


def avro_type(schema: str) -> str:
    """Return the column type for a schema, as Spark DDL.

    Raises:
        OptionError: The text is not a record schema, or has a type that no column can hold.
    """
    from fastavro import parse_schema  # noqa: PLC0415 - only who has Avro pays

    return _type(parse_schema(_checked(schema)), {}, ())  # with full names, including namespaces


def avro_decoder(schema: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies.

    Raises:
        OptionError: As in `avro_type`.
    """
    from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415 - only who has Avro pays
    from fastavro.schema import fingerprint, to_parsing_canonical_form  # noqa: PLC0415

    parsed = parse_schema(bounded_schema(_checked(schema)))
    number = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")

    def decode(body: bytes) -> Any:
        found = BytesIO(body)
        if body.startswith(_MARKER):
            written = found.read(_HEAD_BYTES)[len(_MARKER) :].hex()
            if written != number:
                raise ValueMisfit(f"it was written with the schema {written}, not by this one")
        try:
            value = schemaless_reader(found, parsed, None)
        except Exception as error:  # any error of the library's reader; its text may show the body
            raise ValueMisfit(f"it cannot be read by the schema ({type(error).__name__})") from None
        if found.read(1):
            raise ValueMisfit("extra bytes follow its record")
        return value

    return decode


def _checked(schema: str) -> Any:
    try:
        Avro(dict, schema)  # refuses schemas by which a short body could use unlimited memory
    except (SettingError, ImportError) as error:
        raise OptionError(f"valueSchema: {error}") from error
    return json.loads(schema)


def _type(schema: Any, named: dict[str, Any], inside: tuple[str, ...]) -> str:
    if isinstance(schema, list):
        kinds = [each for each in schema if each != "null"]
        if len(kinds) != 1:
            raise OptionError("valueSchema: a union may have only null and one other type")
        return _type(kinds[0], named, inside)
    if isinstance(schema, str):
        if schema in named:
            return _type(named[schema], named, inside)
        return _known(schema)
    kind = schema["type"]
    if isinstance(kind, (dict, list)):
        return _type(kind, named, inside)
    if "name" in schema:
        named[schema["name"]] = schema
    match kind:
        case "record" | "error":
            return _record(schema, named, inside)
        case "array":
            return f"array<{_type(schema['items'], named, inside)}>"
        case "map":
            return f"map<string,{_type(schema['values'], named, inside)}>"
    return _scalar(kind, schema)


def _record(schema: Mapping[str, Any], named: dict[str, Any], inside: tuple[str, ...]) -> str:
    name = schema["name"]
    if name in inside:
        raise OptionError(f"valueSchema: {name} contains itself, which a column cannot")
    fields = (
        f"`{each['name']}`:{_type(each['type'], named, (*inside, name))}"
        for each in schema["fields"]
    )
    return f"struct<{','.join(fields)}>"


def _scalar(kind: str, schema: Mapping[str, Any]) -> str:
    logical = schema.get("logicalType")
    if logical == "decimal":
        return f"decimal({schema['precision']},{schema.get('scale', 0)})"
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical is not None and logical != "uuid":
        raise OptionError(f"valueSchema: the logical type {logical} has no column")
    return "string" if logical == "uuid" else _known(kind)


def _known(kind: str) -> str:
    if kind not in _PRIMITIVES:
        raise OptionError(f"valueSchema: the type {kind} has no column")
    return _PRIMITIVES[kind]
