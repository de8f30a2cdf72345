"""
JSON as the Java side writes and reads it, which is not always JSON.

Java's fastjson writes a map whose keys are objects as `{{"brokerName":"b",…}:value}` and maps with number
keys as `{0:value}`; 4.3 clients accept nothing else for the former. `loads` reads standard JSON through
orjson, and what orjson refuses once more after its keys have been made texts; `dumps` writes raw object keys for
`MessageQueue` and standard JSON, without white space, for all else (the Go client cuts route text by hand
and stumbles over blanks). Typed bodies on top of this: see `model`.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import orjson

from orderlymq_protocol.body.messagequeue import MessageQueue

# The deepest body of the protocol has seven levels; the bound keeps hostile input off the stack.
DEPTH_MAX: Final = 64

_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
# The whole text is cut into these tokens and what stands between them. Possessive quantifiers, and a string that
# may lack its end, keep the search linear: no character is looked at more than twice.
_TOKEN: Final = re.compile(
    rb"""
    "(?:[^"\\]++|\\.)*+"?
    | (?P<start>[{,][ \t\r\n]*+) (?P<object>\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\}) (?=[ \t\r\n]*+:)
    | (?P<before>[{,][ \t\r\n]*+) (?P<number>-?[0-9]++) (?=[ \t\r\n]*+:)
    """,
    re.DOTALL | re.VERBOSE,
)
_MARK: Final = "\x00"
# What JSON may hold as it is, though it moves a terminal or looks like the end of a line: DEL, C1 and two separators.
ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
_NESTED: Final = (list, dict)


class JsonError(ValueError):
    """The text is neither JSON nor what fastjson writes, or the value cannot be written."""


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of a JSON text.

    Raw object keys become `MessageQueue` if they are queues, else the JSON text of the key; number keys
    become text, so `{0:1}` and `{"0":1}` read alike.

    Raises:
        JsonError: The text is no JSON in either form, or nested deeper than DEPTH_MAX.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # The reasons for refusal need no distinction: a broken body is refused again.
        pass
    try:
        text, marked = _quote_keys(bytes(data))
        return _unmark(orjson.loads(text), marked, 0)
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise JsonError(f"the text is no JSON: {error}") from error


def loads_standard(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of a text that is standard JSON, ten times as fast as what is not.

    Raises:
        JsonError: It is none.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise JsonError(f"the text is no JSON: {error}") from error


def dumps(value: object) -> bytes:
    """Return the JSON text of *value* without white space.

    Mappings keyed by `MessageQueue` get raw object keys; sets are written as arrays in sorted order;
    objects with a `to_json_value` method are written as what that returns.

    Raises:
        JsonError: A part of the value has no JSON form.
    """
    try:
        return orjson.dumps(value, _plain, _OPTIONS)
    except TypeError:
        return b"".join(_write(value, 0))


def _plain(value: object) -> object:
    """Give orjson something it knows for a value it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    convert = getattr(value, "to_json_value", None)
    if convert is None:
        raise TypeError(f"no JSON form for {type(value).__name__}")
    return convert()


def _write(value: object, depth: int) -> list[bytes]:
    """Write a value in which somewhere a queue is a key; the parts without such keys go to orjson."""
    if depth > DEPTH_MAX:
        raise JsonError(f"the value is nested deeper than {DEPTH_MAX} levels")
    try:
        return [orjson.dumps(value, _plain, _OPTIONS)]
    except TypeError as error:
        if isinstance(value, str | int | float) or value is None:
            raise JsonError(f"no JSON form: {error}") from error
    if isinstance(value, Mapping):
        return _write_members(value, depth)
    if isinstance(value, list) or type(value) is tuple:
        return _write_items(value, depth)
    try:
        return _write(_plain(value), depth + 1)
    except TypeError as error:
        raise JsonError(str(error)) from error


def _write_members(value: Mapping[object, object], depth: int) -> list[bytes]:
    parts: list[bytes] = []
    for key, item in value.items():
        parts.append(b"," if parts else b"{")
        if isinstance(key, MessageQueue):
            parts += _write(key.to_json_value(), depth + 1)
        elif isinstance(key, str | int) and not isinstance(key, bool):
            parts += _write(str(key), depth + 1)
        else:
            raise JsonError(f"no JSON form for a key of type {type(key).__name__}")
        parts.append(b":")
        parts += _write(item, depth + 1)
    parts.append(b"}" if parts else b"{}")
    return parts


def _write_items(value: list[object] | tuple[object, ...], depth: int) -> list[bytes]:
    parts: list[bytes] = []
    for item in value:
        parts.append(b"," if parts else b"[")
        parts += _write(item, depth + 1)
    parts.append(b"]" if parts else b"[]")
    return parts


def _quote_keys(data: bytes) -> tuple[bytes, set[str]]:
    """Return the text with each key that is no text made one, and the keys that were objects, marked."""
    marked: set[str] = set()

    def quote(token: re.Match[bytes]) -> bytes:
        if token.lastgroup is None:
            return token.group()
        key = token.group(token.lastgroup)
        if token.lastgroup == "number":
            return token.group("before") + b'"' + key + b'"'
        text = _MARK + key.decode()
        marked.add(text)
        return token.group("start") + orjson.dumps(text)

    return _TOKEN.sub(quote, data), marked


def _unmark(value: Any, marked: set[str], depth: int) -> Any:
    """Return the value with keys that were objects read as what they are."""
    if depth > DEPTH_MAX:
        raise JsonError(f"the text is nested deeper than {DEPTH_MAX} levels")
    if type(value) is list:
        return [
            _unmark(item, marked, depth + 1) if type(item) in _NESTED else item for item in value
        ]
    if type(value) is not dict:
        return value
    return {
        (_object_key(key[len(_MARK) :]) if key in marked else key): (
            _unmark(item, marked, depth + 1) if type(item) in _NESTED else item
        )
        for key, item in value.items()
    }


def _object_key(text: str) -> str | MessageQueue:
    members = orjson.loads(text)
    try:
        return MessageQueue.from_json_value(members)
    except ValueError:
        pass
    # Its text stands for a key that is no queue.
    return orjson.dumps(members).decode()
