"""
JSON as the Java side writes and reads it, which is not always JSON.

Java's fastjson writes a map whose keys are objects as `{{"brokerName":"b",…}:value}` and maps with number
keys as `{0:value}`; 4.3 clients accept nothing else for the former. `loads` reads standard JSON through
orjson and only what orjson refuses through the parser below; `dumps` writes raw object keys for
`MessageQueue` and standard JSON, without white space, for all else (the Go client cuts route text by hand
and stumbles over blanks). Typed bodies on top of this: see `model`.
"""

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Final, NoReturn

import orjson

from orderlymq_protocol.messagequeue import MessageQueue

# The deepest body of the protocol has seven levels; the bound keeps hostile input off the stack.
DEPTH_MAX: Final = 64

# Longer digit strings are no int64 and cost quadratic time to convert.
_INTEGER_LENGTH_MAX: Final = 20
# Beyond these orjson reads a float, so this parser does too.
_INTEGER_MIN: Final = -(2**63)
_INTEGER_MAX: Final = 2**64 - 1

_OPTIONS: Final = orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATACLASS
_BLANKS: Final = re.compile(r"[ \t\r\n]+")
_STRING: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_NUMBER: Final = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER_KEY: Final = re.compile(r"-?[0-9]+")
_LITERALS: Final = (("true", True), ("false", False), ("null", None))


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
        # Not worth telling the reasons for refusal apart: the other parser refuses again what is broken.
        return _Parser(data).document()


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


class _Parser:
    """A recursive-descent parser over one text; linear in its length, bounded in depth."""

    __slots__ = ("_at", "_text")

    def __init__(self, data: bytes | bytearray | memoryview) -> None:
        try:
            self._text = bytes(data).decode()
        except UnicodeDecodeError as error:
            raise JsonError(f"the text is not UTF-8: {error}") from error
        self._at = 0

    def document(self) -> Any:
        value = self._value(0)
        self._skip_blanks()
        if self._at != len(self._text):
            self._fail("nothing more")
        return value

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise JsonError(f"the text is nested deeper than {DEPTH_MAX} levels")
        self._skip_blanks()
        match self._text[self._at : self._at + 1]:
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"':
                return self._string()
            case "t" | "f" | "n":
                return self._literal()
            case _:
                return self._number()

    def _object(self, depth: int, *, is_key: bool = False) -> dict[Any, Any]:
        members: dict[Any, Any] = {}
        self._at += 1
        if self._accept("}"):
            return members
        while True:
            key = self._key(depth, may_be_object=not is_key)
            self._expect(":")
            members[key] = self._value(depth + 1)
            if self._accept("}"):
                return members
            self._expect(",")

    def _key(self, depth: int, *, may_be_object: bool) -> str | MessageQueue:
        self._skip_blanks()
        match self._text[self._at : self._at + 1]:
            case '"':
                return self._string()
            # Were keys allowed inside keys, each level would double the escapes of the one below.
            case "{" if may_be_object:
                return _object_key(self._object(depth + 1, is_key=True))
            case _:
                return self._take(_INTEGER_KEY, "a key")

    def _array(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self._at += 1
        if self._accept("]"):
            return items
        while True:
            items.append(self._value(depth + 1))
            if self._accept("]"):
                return items
            self._expect(",")

    def _string(self) -> str:
        token = self._take(_STRING, "the end of a string")
        try:
            text: str = orjson.loads(token)
        except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
            raise JsonError(f"a string before position {self._at} is malformed: {error}") from error
        return text

    def _number(self) -> int | float:
        start = self._at
        token = self._take(_NUMBER, "a value")
        if token.lstrip("-").isdigit() and len(token) <= _INTEGER_LENGTH_MAX:
            whole = int(token)
            if _INTEGER_MIN <= whole <= _INTEGER_MAX:
                return whole
        number = float(token)
        if number in (float("inf"), float("-inf")):
            raise JsonError(f"the number at position {start} is out of range")
        return number

    def _literal(self) -> bool | None:
        for word, value in _LITERALS:
            if self._text.startswith(word, self._at):
                self._at += len(word)
                return value
        return self._fail("a value")

    def _take(self, pattern: re.Pattern[str], expected: str) -> str:
        match = pattern.match(self._text, self._at)
        if match is None:
            self._fail(expected)
        self._at = match.end()
        return match.group()

    def _accept(self, character: str) -> bool:
        self._skip_blanks()
        if self._text.startswith(character, self._at):
            self._at += 1
            return True
        return False

    def _expect(self, character: str) -> None:
        if not self._accept(character):
            self._fail(repr(character))

    def _skip_blanks(self) -> None:
        if match := _BLANKS.match(self._text, self._at):
            self._at = match.end()

    def _fail(self, expected: str) -> NoReturn:
        raise JsonError(f"expected {expected} at position {self._at}")


def _object_key(members: dict[Any, Any]) -> str | MessageQueue:
    try:
        return MessageQueue.from_json_value(members)
    except ValueError:
        pass
    # Its text stands for a key that is no queue.
    if not all(value is None or isinstance(value, str | int | float) for value in members.values()):
        raise JsonError("an object that is a key holds more than plain values")
    return orjson.dumps(members).decode()
