"""
Values that readers get wrong: numbers beyond their type, ambiguous texts, JSON that Java never writes.

Everything is drawn from a `random.Random` that the caller seeds. `json.dumps` writes NaN, Infinity, 30 digits and
lone surrogates as a hostile client would; `spoiled` breaks the JSON text itself.
"""

import copy
import functools
import json
import random
import zlib
from typing import Any, Final

import lz4.frame
import zstandard

NUMBERS: Final = (
    *(0, 1, -1, 2, 127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536, -32_769),
    *(2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**53 + 1, 2**62, 2**62 + 1),
    *(2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, int("9" * 30), -int("9" * 30)),
)
# For a header field, or for a JSON text instead of a number.
NUMBER_TEXTS: Final = (
    *("", " ", "true", "null", "NaN", "Infinity", "-Infinity", "1e3", "1e999", "0x10", "1_000"),
    *(" 7 ", "+7", "-0", "007", "7.0", "٣", "9" * 30, "9" * 400, "9" * 5_000, "-" * 40, "1\x00"),
)
TEXTS: Final = (
    *("", " ", "\t", "\n", "\x00", "\x01", "\x02", "a\x01b\x02", "\x01\x02\x01", "a\x00b", "null"),
    *("true", "[]", "{}", "*", "||", "a || b", "%RETRY%", "%DLQ%", "%RETRY%%RETRY%billing"),
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "DefaultCluster", "SELF_TEST"),
    *(
        "../../etc/passwd",
        "a/b",
        "a|b",
        "a^b",
        "a b",
        "😀",
        "e\u0301",
        "\u202e",
        "\ufeff",
        "\uffff",
    ),
    *("x" * 127, "x" * 128, "x" * 255, "x" * 256, "ü" * 127, "-1", "1"),
    *("2147483648", "9223372036854775808", "%s%n%x", "a\r\nb: c", "127.0.0.1:0", ":::", "[::1]:x"),
)
# Used rarely, or they would be most of the sent bytes.
LARGE: Final = ("x" * 32_767, "x" * 32_768, "ü" * 20_000, "\x01" * 20_000, "a\x01b\x02" * 8_000)
# Only JSON can hold these; a binary header and UTF-8 cannot.
SURROGATES: Final = ("\ud800", "a\udfffb", "\udc00\ud800")
SQL: Final = (
    "a > 5",
    "a BETWEEN 1 AND 2 AND b IN ('x', 'y')",
    "1" * 8_000,
    "9" * 400 + " > 1",
    "." + "1" * 4_000,
    "1e" + "9" * 300 + " = a",
    "(" * 3_000,
    "(" * 500 + "a = 1" + ")" * 500,
    "NOT " * 3_000 + "a = 1",
    "a = 1 OR " * 2_000 + "b = 2",
    "a IN (" + ",".join(["'x'"] * 3_000) + ")",
    "'" * 4_001,
    " " * 8_000,
    "a" * 16_000 + " = 1",
    "a IS NOT NULL AND b = '" + "\\" * 3_000,
    "-" * 8_000 + "1 = 1",
    "a = 9223372036854775808",
    "a > 1e400",
)
# Properties of messages, which filters read later.
PROPERTIES: Final = (
    *("a\x01" + "1" * 8_000 + "x", "a\x01" + "1" * 30_000, "a\x01" + "." * 9_000, "a\x011e999"),
    *("a\x01" + "9" * 400, "a\x01\x02b\x01\x02", "\x01\x02" * 3_000, "a\x01b\x01c\x02", "a"),
    *(
        "DELAY\x01" + "9" * 30,
        "DELAY\x01-1",
        "TIMER_DELAY_MS\x01" + "9" * 19,
        "TIMER_DELAY_MS\x01x",
    ),
    *("TIMER_DELIVER_MS\x01" + "9" * 30, "TIMER_DELAY_SEC\x01-5", "TRAN_MSG\x01true\x02DELAY\x013"),
    *("KEYS\x01" + "k " * 8_000, "KEYS\x01" + "k" * 30_000, "UNIQ_KEY\x01" + "u" * 30_000),
    *(
        "INNER_NUM\x01x",
        "INNER_BATCH\x01true",
        "__SHARDINGKEY\x01" + "s" * 20_000,
        "KEYS\x01\ud800",
    ),
)
# JSON values of types that the reader of a member or a field does not expect.
SCALARS: Final[tuple[object, ...]] = (
    *(None, True, False, 0.5, -0.0, 1e308, float("nan"), float("inf"), float("-inf")),
    *([], {}, [[]], [None], {"": None}, {"a": {}}, [True], {"0": 0}, [0, "0", {}]),
)
DEEP: Final = ("[" * 100 + "]" * 100, '{"a":' * 100 + "1" + "}" * 100, "[" * 100_000)
_LONG: Final = 60_000
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode


def number(rng: random.Random) -> int:
    """Return a number at or near a limit."""
    chosen = rng.choice(NUMBERS)
    return chosen if rng.random() < 0.8 else chosen + rng.randrange(-3, 4)


def text(rng: random.Random, kind: type = str) -> str:
    """Return the text of a header field whose reader wants *kind*."""
    if kind is int:
        return str(number(rng)) if rng.random() < 0.7 else rng.choice(NUMBER_TEXTS)
    roll = rng.random()
    if roll < 0.7:
        return rng.choice(TEXTS)
    if roll < 0.72:
        return rng.choice(LARGE)
    if roll < 0.8:
        return rng.choice(SQL)
    if roll < 0.9:
        return str(number(rng))
    return "".join(chr(rng.randrange(1, 0x300)) for _ in range(rng.randrange(20)))


def value(rng: random.Random) -> Any:
    """Return a value for a JSON member of any type."""
    roll = rng.random()
    if roll < 0.3:
        return number(rng)
    if roll < 0.4:
        return rng.choice(NUMBER_TEXTS)
    if roll < 0.6:
        return text(rng)
    if roll < 0.65:
        return rng.choice(SURROGATES)
    if roll < 0.99:
        # A copy, because the caller spoils the value further.
        return copy.deepcopy(rng.choice(SCALARS))
    return ["x" * 10] * 2_000


def confused(rng: random.Random, original: object) -> Any:
    """Return *original* as another type that a careless reader accepts."""
    if isinstance(original, bool):
        return rng.choice((int(original), str(original).lower(), [original]))
    if isinstance(original, int):
        return rng.choice((True, False, str(original), original + 0.5, float(original), [original]))
    if isinstance(original, str):
        return rng.choice((True, 0, 7, 0.5, [original], {original: original}, original + "\x00"))
    if isinstance(original, list):
        return rng.choice(({}, {"0": original}, "[]", [*original, None], original * 2, True))
    return rng.choice(([], [original], "{}", 1, True))


def dumps(found: object) -> str:
    """Return the JSON text of *found*, without the white space that Java does not write."""
    return _encode(found)


def spoiled(rng: random.Random, body: str) -> bytes:
    """Return a JSON text that is broken, doubled, deep or not UTF-8."""
    match rng.randrange(9):
        case 0:
            return body[: rng.randrange(len(body) + 1)].encode()
        case 1 if len(body) > 2 and body[0] == "{":
            return ("{" + body[1:-1] + "," + body[1:]).encode()
        case 2:
            return rng.choice(DEEP).encode()
        case 3:
            return body.replace('"', "'").encode()
        case 4:
            at = rng.randrange(len(body) + 1)
            return body[:at].encode() + bytes([rng.randrange(256)]) + body[at:].encode()
        case 5:
            return body.replace(":", ":" + rng.choice(DEEP[:2]) + ",", 1).encode()
        case 6:
            return body.encode("utf-16")
        case 7:
            return b'{"a":"' + b"x" * _LONG + b'","b":' + body.encode() + b"}"
        case _:
            return b"" if rng.random() < 0.5 else rng.randbytes(rng.randrange(1, 200))


@functools.cache
def bomb(kind: int, size: int) -> bytes:
    """Return *size* zero bytes, compressed by the type with this number in a sysFlag."""
    plain = bytes(size)
    match kind:
        case 1:
            packed: bytes = lz4.frame.compress(plain)
            return packed
        case 2:
            return zstandard.ZstdCompressor(level=3).compress(plain)
        case _:
            return zlib.compress(plain)
