"""
White lists: address patterns in RocketMQ's notation (RemoteAddressStrategyFactory).

A pattern is one address, several addresses with commas, or `*` for every address. A part of an address may be `*`, a
range `3-7` or a set `{1,5}`, as in `10.0-1.*.*` and `10.0.0.{1,2}`. IPv6 patterns have the same forms; their parts are
hexadecimal and all eight are written. Pure.
"""

from collections.abc import Callable
from functools import lru_cache
from ipaddress import IPv6Address
from typing import Final

from orderlymq_protocol.hosts import ip_of

_EVERYTHING: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_CACHE_SIZE: Final = 1_024
# Room for about a hundred IPv6 addresses. The time to split a pattern grows with the square of its length.
PATTERN_LENGTH_MAX: Final = 4_096

# Tests whether one part of an address matches.
_Part = Callable[[int], bool]


class AddressPatternError(ValueError):
    """The text is not an address pattern; the message says what is wrong."""


@lru_cache(maxsize=_CACHE_SIZE)
def address_matcher(pattern: str) -> Callable[[str], bool]:
    """Return a function that tests whether an address matches; an empty pattern matches none.

    Raises:
        AddressPatternError: the pattern has none of the forms, or is too long.
    """
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise AddressPatternError(
            f"the address pattern has {len(pattern)} characters, at most {PATTERN_LENGTH_MAX} are allowed; "
            "write ranges or wildcards"
        )
    pattern = pattern.strip()
    if pattern in _EVERYTHING:
        return lambda _: True
    alternatives = [_whole(text.strip()) for text in _split(pattern) if text.strip()]

    def matches(host: str) -> bool:
        parts = _parts_of(host)
        return parts is not None and any(
            len(parts) == len(tests)
            and all(test(part) for test, part in zip(tests, parts, strict=True))
            for tests in alternatives
        )

    return matches


def _split(pattern: str) -> list[str]:
    """Split at the commas that are not inside braces."""
    found, depth = [""], 0
    for letter in pattern:
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            found.append("")
        else:
            found[-1] += letter

    return found


def _whole(text: str) -> list[_Part]:
    separator, count, radix, largest = (":", 8, 16, 0xFFFF) if ":" in text else (".", 4, 10, 0xFF)
    if "*" not in text and "{" not in text and "-" not in text:
        parts = _parts_of(text)
        if parts is not None:
            return [_equals(part) for part in parts]
    words = text.split(separator)
    if len(words) != count:
        raise AddressPatternError(
            f"the address pattern {text!r} has {len(words)} parts, but {count} are needed; write "
            "10.0.0.1, 10.0.0.*, 10.0.1-5.* or 10.0.0.{1,2}"
        )

    return [_part(word, text, radix, largest) for word in words]


def _part(word: str, text: str, radix: int, largest: int) -> _Part:
    def number(digits: str) -> int:
        try:
            value = int(digits, radix)
        except ValueError:
            value = -1
        if not 0 <= value <= largest or not digits.isalnum():
            raise AddressPatternError(f"{digits!r} in the address pattern {text!r} is not a number")
        return value

    if word == "*":
        return lambda _: True
    if word.startswith("{") and word.endswith("}"):
        return frozenset(number(each.strip()) for each in word[1:-1].split(",")).__contains__
    if "-" in word:
        low, _, high = word.partition("-")
        allowed = range(number(low), number(high) + 1)
        if not allowed:
            raise AddressPatternError(f"the range {word!r} in {text!r} is empty")
        return allowed.__contains__

    return _equals(number(word))


def _equals(expected: int) -> _Part:
    return lambda part: part == expected


def _parts_of(host: str) -> list[int] | None:
    """Return the numbers of an address, or None if the text is not an address."""
    address = ip_of(host)
    if isinstance(address, IPv6Address):
        return [int(part, 16) for part in address.exploded.split(":")]
    return None if address is None else list(address.packed)
