"""
JSON as the Java side writes and reads it, which is not always JSON.

Java's fastjson writes a map whose keys are objects as `{{"brokerName":"b",…}:value}` and maps with number
keys as `{0:value}`; 4.3 clients accept nothing else for the former. `loads` reads standard JSON with
orjson; a text that orjson refuses is read again after its keys have been made texts. `dumps` writes raw object keys for
`MessageQueue`, and standard JSON for all else. It writes no white space, because the Go client cuts route text by hand
and stumbles over blanks. `declaration` makes typed bodies of the values.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final

import orjson

from orderlymq_protocol.body.messagequeue import MessageQueue

# The deepest body of the protocol has seven levels; the limit protects the stack from hostile input.
DEPTH_MAX: Final = 64

_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
# The whole text is cut into these tokens and the text between them. Possessive quantifiers, and a string that
# may lack its end, keep the search linear: each character is looked at twice at most.
_TOKEN: Final = re.compile(
    rb"""
    "(?:[^"\\]++|\\.)*+"?
    | (?P<start>[{,][ \t\r\n]*+) (?P<object>\{(?:[^{}\[\]"]++|"(?:[^"\\]++|\\.)*+")*+\}) (?=[ \t\r\n]*+:)
    | (?P<before>[{,][ \t\r\n]*+) (?P<number>-?[0-9]++) (?=[ \t\r\n]*+:)
    """,
    re.DOTALL | re.VERBOSE,
)
_MARK: Final = "\x00"
# Characters that JSON may hold unescaped, although they move a terminal or look like the end of a line: DEL, C1 and two separators.
ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(0x7F, 0xA0), 0x2028, 0x2029)}
_NESTED: Final = (list, dict)


class JsonError(ValueError):
    """The text is neither JSON nor in fastjson's form, or the value cannot be written."""


def loads(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of a JSON text.

    Raw object keys become `MessageQueue` if they are queues, otherwise the JSON text of the key. Number keys
    become text, so `{0:1}` and `{"0":1}` read alike.

    Raises:
        JsonError: The text is not JSON in either form, or nested deeper than DEPTH_MAX.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        # The reason for the refusal does not matter: a broken body is refused again below.
        pass
    try:
        text, marked = _quote_keys(bytes(data))
        return _unmark(orjson.loads(text), marked, 0)
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise JsonError(f"the text is not JSON: {error}") from error


def loads_standard(data: bytes | bytearray | memoryview) -> Any:
    """Return the value of a standard JSON text; any other text, which takes ten times as long to read, is refused.

    Raises:
        JsonError: It is not standard JSON.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise JsonError(f"the text is not JSON: {error}") from error


def dumps(value: object) -> bytes:
    """Return the JSON text of *value* without white space.

    Mappings keyed by `MessageQueue` get raw object keys. Sets are written as arrays in sorted order.
    An object with a `to_json_value` method is written as what that method returns.

    Raises:
        JsonError: A part of the value has no JSON form.
    """
    try:
        return orjson.dumps(value, _plain, _OPTIONS)
    except TypeError:
        return b"".join(_write(value, 0))


def _plain(value: object) -> object:
    """Return a value that orjson knows, for one that it does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, AbstractSet):
        return sorted(value)
    convert = getattr(value, "to_json_value", None)
    if convert is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return convert()


def _write(value: object, depth: int) -> list[bytes]:
    """Write a value that somewhere has a queue as a key; the parts without such keys go to orjson."""
    if depth > DEPTH_MAX:
        raise JsonError(f"the value is nested deeper than {DEPTH_MAX} levels")
    try:
        return [orjson.dumps(value, _plain, _OPTIONS)]
    except TypeError as error:
        if isinstance(value, str | int | float) or value is None:
            raise JsonError(f"the value has no JSON form: {error}") from error
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
            raise JsonError(f"a key of type {type(key).__name__} has no JSON form")
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
    """Return the text with every key made a text, and the keys that were objects, marked."""
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
    """Return the value with the keys that were objects turned back."""
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
    # The JSON text stands for a key that is not a queue.
    return orjson.dumps(members).decode()
