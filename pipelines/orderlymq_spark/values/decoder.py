"""The column `value` of a topic: its Spark type, and bodies as values; a null has its reason in `value_error`."""

import json
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import orjson
import pyarrow as pa

from orderlymq_spark.locations.addresses import location
from orderlymq_spark.options import ValueFormat
from orderlymq_spark.values.avro import avro_decoder, avro_type
from orderlymq_spark.values.cloudevents import cloudevents_type, event_of
from orderlymq_spark.values.conversion import ValueMisfit, fitted
from orderlymq_spark.values.protobuf import protobuf_decoder, protobuf_type

_REASON_MAX: Final = 200


def value_type(form: ValueFormat) -> str:
    """Return the type of the column `value`, as Spark DDL.

    Raises:
        OptionError: The schema is invalid, or has a type that no column can hold.
    """
    match form.name:
        case "json":
            return f"struct<{form.schema}>"
        case "avro":
            return avro_type(form.schema)
        case "protobuf":
            return protobuf_type(location(form.schema).read_bytes(), form.message)
        case "cloudevents":
            return cloudevents_type(form.schema)


class ValueDecoder:
    """A decoder that converts bodies to values of a type.

    Attributes:
        needs_properties: whether it also needs the properties of the message.
    """

    def __init__(self, form: ValueFormat, kind: pa.DataType) -> None:
        self.needs_properties = form.name == "cloudevents"
        self._decode = _decoder(form, kind)
        self._kind = kind

    def decode(
        self,
        bodies: pa.Array,
        unread: Sequence[str | None] | None = None,
        properties: pa.Array | None = None,
    ) -> tuple[pa.Array, pa.Array]:
        """Return the values, and the reasons for nulls; both have the length of *bodies*.

        Args:
            bodies: as they were sent, except the *unread*.
            unread: why a body is still in its stored form.
            properties: of each message, as maps, for a decoder that needs them.
        """
        values, errors = [], []
        none = [None] * len(bodies)
        beside = none if properties is None else properties.to_pylist()
        for body, reason, said in zip(bodies, unread or none, beside, strict=True):
            value, error = (None, reason) if reason else self._value(body.as_py(), dict(said or ()))
            values.append(value)
            errors.append(error)
        return pa.array(values, self._kind), pa.array(errors, pa.string())

    def _value(self, body: bytes, said: Mapping[str, str]) -> tuple[Any, str | None]:
        try:
            decoded = self._decode(body, said)
            value = fitted(decoded, self._kind)
            try:
                pa.array([value], self._kind)  # a number may be too large for its type
            except (ValueError, OverflowError):
                fitted(decoded, self._kind, sized=True)  # its error names the place
                raise
        # Libraries raise ValueError for a bad body, such as a time after the year 9999.
        except (ValueError, OverflowError, RecursionError) as error:
            return None, str(error)[:_REASON_MAX]
        return value, None


def _decoder(form: ValueFormat, kind: pa.DataType) -> Callable[[bytes, Mapping[str, str]], Any]:
    """Return a function that decodes a body and the properties of its message."""
    parse = _exact_json if "decimal" in str(kind) else _json
    match form.name:
        case "json":
            decode: Callable[[bytes], Any] = parse
        case "avro":
            decode = avro_decoder(form.schema)
        case "protobuf":
            decode = protobuf_decoder(location(form.schema).read_bytes(), form.message)
        case "cloudevents":
            of_data = parse if form.schema else None
            return lambda body, said: event_of(body, said, of_data)
    return lambda body, _: decode(body)


def _json(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ValueMisfit(f"it is not JSON: {error.msg} at {error.pos}") from None


def _exact_json(body: bytes) -> Any:
    """Read JSON and keep numbers exactly as written, which is slower."""
    _json(body)  # stricter about valid JSON
    return json.loads(body, parse_float=_fraction)


def _fraction(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueMisfit("the exponent of a number is too large for any decimal") from None
