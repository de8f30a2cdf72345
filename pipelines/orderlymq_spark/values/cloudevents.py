"""
CloudEvents 1.0: messages as events in a column, and such events as messages. Pure.

Rules: properties and content types are those of the RocketMQ binding in CloudEvents' Java SDK. In binary mode the
property `CE_` + name holds an attribute and the body is the data. In structured mode the body is the event as JSON,
and `CE_contenttype` says so. An event that breaks the specification is an error that names the attribute; nothing is
guessed. The library `cloudevents` is not used: it builds an object per event and leaves types, extensions and
RocketMQ's properties to its user.
"""

import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final

import msgspec
import orjson

from orderlymq_spark.options import ContentMode
from orderlymq_spark.values.conversion import ValueMisfit

PREFIX: Final = "CE_"
CONTENT_TYPE: Final = "CE_contenttype"
STRUCTURED: Final = "application/cloudevents"
JSON_FORMAT: Final = f"{STRUCTURED}+json"
VERSION: Final = "1.0"
REQUIRED: Final = ("specversion", "id", "source", "type")
OPTIONAL: Final = ("datacontenttype", "dataschema", "subject", "time")
# The body of an event without data, because a message needs at least one byte.
NO_DATA: Final = b"\x00"

_NAME: Final = re.compile("[a-z0-9]+")
_TIME: Final = re.compile(
    r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_MEDIA_TYPE: Final = re.compile(r"[^\s/;]+/[^\s/;]+(\s*;.*)?")
_JSON_TYPE: Final = re.compile(r"([^/;]+/)?([^/;]+\+)?json\s*(;.*)?", re.IGNORECASE)
_CONTROL: Final = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_INTEGER_MAX: Final = 1 << 31
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


def cloudevents_type(schema: str) -> str:
    """Return the type of an event as Spark DDL; with a *schema* the data is JSON with these columns, otherwise bytes."""
    data = f"struct<{schema}>" if schema else "binary"
    kinds = {name: "timestamp" if name == "time" else "string" for name in (*REQUIRED, *OPTIONAL)}
    columns = ", ".join(f"{name}: {kind}" for name, kind in kinds.items())
    return f"struct<{columns}, extensions: map<string,string>, data: {data}>"


def event_of(
    body: bytes, properties: Mapping[str, str], parse: Callable[[bytes], Any] | None
) -> dict[str, Any]:
    """Return the event in a message.

    Args:
        body: of the message, decompressed.
        properties: of the message.
        parse: reads data as JSON; None for data as bytes.

    Raises:
        ValueMisfit: The message is not an event of CloudEvents 1.0.
    """
    kind = properties.get(CONTENT_TYPE, "").strip().lower()
    binary = not kind.startswith(STRUCTURED) and f"{PREFIX}specversion" in properties
    if binary:
        return _from_properties(body, properties, parse)
    if kind.startswith(STRUCTURED) and kind.partition(";")[0].strip() != JSON_FORMAT:
        raise ValueMisfit(f"its content type is not {JSON_FORMAT}, the only one that is read")
    try:
        members = orjson.loads(body)
    except orjson.JSONDecodeError:
        members = None
    if not isinstance(members, dict) or (not kind and "specversion" not in members):
        raise ValueMisfit(
            f"it is not a CloudEvent: it has no property {PREFIX}specversion, and its body is not a JSON object with specversion"
        )
    return _from_json(members, parse, body)


def _from_properties(
    body: bytes, properties: Mapping[str, str], parse: Callable[[bytes], Any] | None
) -> dict[str, Any]:
    found = {
        name.removeprefix(PREFIX): value
        for name, value in properties.items()
        if name.startswith(PREFIX) and name != CONTENT_TYPE
    }
    if CONTENT_TYPE in properties:
        found["datacontenttype"] = properties[CONTENT_TYPE]
    event = _checked(found)
    event["data"] = None if body == NO_DATA else _data(body, event, parse)
    return event


def _from_json(
    members: dict[str, Any], parse: Callable[[bytes], Any] | None, body: bytes
) -> dict[str, Any]:
    data, encoded = members.pop("data", None), members.pop("data_base64", None)
    if data is not None and encoded is not None:
        raise ValueMisfit("it has both data and data_base64")
    event = _checked(
        {name: _text(name, each) for name, each in members.items() if each is not None}
    )
    event["data"] = None
    if encoded is not None:
        try:
            content = b64decode(encoded, validate=True)
        except (TypeError, ValueError):
            raise ValueMisfit("data_base64 is not base64") from None
        event["data"] = _data(content, event, parse)
    elif data is not None and not _is_json(event):
        if not isinstance(data, str):
            raise ValueMisfit("data is not text, and its datacontenttype is not JSON")
        event["data"] = _data(data.encode(), event, parse)
    elif data is not None:
        # Keeps the numbers as written, if the column needs that.
        event["data"] = _written_data(body) if parse is None else parse(body)["data"]
    return event


def _written_data(body: bytes) -> bytes:
    """Return the member `data` of a JSON object as written, because parsers may lose digits of numbers."""
    try:
        return bytes(_members(body)["data"])
    except RecursionError:
        raise ValueMisfit("data is nested too deeply") from None


def _data(content: bytes, event: Mapping[str, Any], parse: Callable[[bytes], Any] | None) -> Any:
    if parse is None:
        return content
    if not _is_json(event):
        raise ValueMisfit("its datacontenttype is not JSON, which valueSchema requires")
    return parse(content)


def _is_json(event: Mapping[str, Any]) -> bool:
    """Return whether data is JSON; true if the event has no datacontenttype."""
    kind = event.get("datacontenttype")
    return kind is None or _JSON_TYPE.fullmatch(kind) is not None


def _text(name: str, value: Any) -> str:
    """Return the canonical text of a JSON attribute."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and -_INTEGER_MAX <= value < _INTEGER_MAX:
        return str(value)
    if not isinstance(value, str):
        raise ValueMisfit(f"the attribute {_named(name)} is neither text, boolean nor integer")
    return value


def _checked(attributes: Mapping[str, str]) -> dict[str, Any]:
    """Return the attributes of an event by column, still without data.

    Raises:
        ValueMisfit: The attributes break the specification.
    """
    for name, value in attributes.items():
        if not _NAME.fullmatch(name):
            raise ValueMisfit(
                f"the attribute {_named(name)} has a name with characters other than a-z and digits"
            )
        if _CONTROL.search(value):
            raise ValueMisfit(f"the attribute {name} has a control character")
    for name in (*REQUIRED, "dataschema", "subject"):
        if not attributes.get(name, "" if name in REQUIRED else "-"):
            raise ValueMisfit(f"the attribute {name} is missing or empty")
    if attributes["specversion"] != VERSION:
        raise ValueMisfit(f"specversion is not {VERSION}")
    event: dict[str, Any] = {name: attributes.get(name) for name in (*REQUIRED, *OPTIONAL)}
    if event["datacontenttype"] is not None and not _MEDIA_TYPE.fullmatch(event["datacontenttype"]):
        raise ValueMisfit("the attribute datacontenttype is not a media type")
    if event["time"] is not None:
        event["time"] = _moment(event["time"])
    known = {*REQUIRED, *OPTIONAL}
    event["extensions"] = {name: value for name, value in attributes.items() if name not in known}
    return event


def _moment(text: str) -> datetime:
    try:
        if not _TIME.fullmatch(text):
            raise ValueError
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueMisfit("the attribute time is not an RFC 3339 timestamp") from None


def _named(name: str) -> str:
    """Return a name shortened for an error, because it may be long or contain a secret."""
    return repr(name[:40])


# -- writing


def message_of(event: Mapping[str, Any], mode: ContentMode) -> tuple[bytes, dict[str, str]]:
    """Return the body and properties of the message for an event.

    Args:
        event: as `event_of` returns it; absent attributes may be missing. Data other than bytes is written as JSON,
            except that a text stays unchanged.
        mode: where the attributes go.

    Raises:
        ValueMisfit: The value is not an event of CloudEvents 1.0.
    """
    attributes = {
        name: value for name in (*REQUIRED, *OPTIONAL) if (value := event.get(name)) is not None
    }
    attributes.setdefault("specversion", VERSION)
    data = event.get("data")
    if data is not None and not isinstance(data, bytes | str):
        attributes.setdefault("datacontenttype", "application/json")
    if isinstance(attributes.get("time"), datetime):
        attributes["time"] = _rfc3339(attributes["time"])
    extensions = dict(event.get("extensions") or {})
    clash = sorted(extensions.keys() & {*REQUIRED, *OPTIONAL, "data"})
    if clash:
        raise ValueMisfit(f"extensions has {clash[0]}, which is itself an attribute of the event")
    attributes |= {name: value for name, value in extensions.items() if value is not None}
    texts = {name: _text(name, value) for name, value in attributes.items()}
    _checked(texts)
    if mode == "structured":
        return _structured(texts, data), {CONTENT_TYPE: JSON_FORMAT}
    body = NO_DATA if data is None else _bytes(data)
    kind = texts.pop("datacontenttype", None)
    properties = {f"{PREFIX}{name}": value for name, value in texts.items()}
    return body or NO_DATA, properties if kind is None else {**properties, CONTENT_TYPE: kind}


def _structured(texts: dict[str, str], data: Any) -> bytes:
    members: dict[str, Any] = dict(texts)
    if isinstance(data, bytes):
        members["data_base64"] = b64encode(data).decode()
    elif isinstance(data, str) and _is_json(texts):
        # If the data type is JSON, a text already is JSON.
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError as error:
            raise ValueMisfit(
                f"data is not JSON, although its datacontenttype says so: {error.msg}"
            ) from None
        members["data"] = orjson.Fragment(data)
    elif data is not None:
        members["data"] = data
    return orjson.dumps(members, default=_json_value)


def _bytes(data: Any) -> bytes:
    if isinstance(data, bytes):
        return data
    return data.encode() if isinstance(data, str) else orjson.dumps(data, default=_json_value)


def _json_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} has no JSON")


def _rfc3339(moment: datetime) -> str:
    return (
        (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).isoformat().replace("+00:00", "Z")
    )
