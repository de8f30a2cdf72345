"""
Protobuf: the Spark types of a message, and a decoder of bodies.

The schema is a file of descriptors: `protoc --include_imports --descriptor_set_out=orders.desc orders.proto`.
"""

from collections.abc import Callable
from datetime import UTC
from typing import Any, Final

from orderlymq_spark.errors import OptionError
from orderlymq_spark.values.conversion import ValueMisfit

_TIMESTAMP: Final = "google.protobuf.Timestamp"
# Keys are the numbers of FieldDescriptor.cpp_type.
_TYPES: Final = {
    1: "int",
    2: "bigint",
    3: "bigint",
    4: "decimal(20,0)",
    5: "double",
    6: "float",
    7: "boolean",
    8: "string",  # an enum is shown by its name
    9: "string",
}
_ENUM: Final = 8
_BYTES: Final = 12  # a number of FieldDescriptor.type
_MESSAGE: Final = 10


def protobuf_type(descriptors: bytes, name: str) -> str:
    """Return the column type for a message, as Spark DDL.

    Raises:
        OptionError: There is no such message, or it has a type that no column can hold.
    """
    return _struct(_message(descriptors, name), ())


def protobuf_decoder(descriptors: bytes, name: str) -> Callable[[bytes], Any]:
    """Return a function that decodes bodies.

    Raises:
        OptionError: There is no such message.
    """
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - only who has protobuf pays
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415

    kind = GetMessageClass(_message(descriptors, name))

    def decode(body: bytes) -> Any:
        try:
            return _record(kind.FromString(body))
        except DecodeError:
            raise ValueMisfit(f"it is not a valid {name}") from None

    return decode


def _message(descriptors: bytes, name: str) -> Any:
    try:
        from google.protobuf.descriptor_pb2 import FileDescriptorSet  # noqa: PLC0415
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415
        from google.protobuf.message import DecodeError  # noqa: PLC0415
    except ImportError as error:
        raise OptionError("valueFormat=protobuf needs: pip install 'protobuf>=6.31'") from error
    try:
        files = FileDescriptorSet.FromString(descriptors)
        pool = DescriptorPool()
        for file in files.file:
            pool.Add(file)
        return pool.FindMessageTypeByName(name)
    except (DecodeError, KeyError, TypeError) as error:
        raise OptionError(
            f"valueSchema has no message {name!r}; make it with `protoc --include_imports "
            "--descriptor_set_out=FILE` and give valueMessage=<package.Message>"
        ) from error


def _struct(message: Any, inside: tuple[str, ...]) -> str:
    if message.full_name == _TIMESTAMP:
        return "timestamp"
    if message.full_name in inside:
        raise OptionError(
            f"valueSchema: {message.full_name} contains itself, which a column cannot"
        )
    within = (*inside, message.full_name)
    return f"struct<{','.join(f'`{each.name}`:{_type(each, within)}' for each in message.fields)}>"


def _type(field: Any, inside: tuple[str, ...]) -> str:
    if _is_map(field):
        key, value = field.message_type.fields
        return f"map<{_single(key, inside)},{_single(value, inside)}>"
    single = _single(field, inside)
    return f"array<{single}>" if field.is_repeated else single


def _single(field: Any, inside: tuple[str, ...]) -> str:
    if field.cpp_type == _MESSAGE:
        return _struct(field.message_type, inside)
    return "binary" if field.type == _BYTES else _TYPES[field.cpp_type]


def _is_map(field: Any) -> bool:
    message = field.message_type
    return message is not None and message.GetOptions().map_entry


def _record(message: Any) -> Any:
    if message.DESCRIPTOR.full_name == _TIMESTAMP:
        return message.ToDatetime(tzinfo=UTC)
    return {field.name: _field(message, field) for field in message.DESCRIPTOR.fields}


def _field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        of = field.message_type.fields[1]
        return {key: _plain(value[key], of) for key in value}
    if field.is_repeated:
        return [_plain(each, field) for each in value]
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, field)


def _plain(value: Any, field: Any) -> Any:
    if field.cpp_type == _MESSAGE:
        return _record(value)
    if field.cpp_type == _ENUM:
        known = field.enum_type.values_by_number.get(value)
        return known.name if known is not None else str(value)
    return value
