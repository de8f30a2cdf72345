"""
Tags: Java's string hash and the tag expression of a subscription.

The consume queue keeps only the hash of a tag (`tags_code`), so a broker's filter lets collisions
through and the client compares the text. Rule: the hash is exactly Java's `String.hashCode`, because
SDKs in other languages choose a message's queue by it and stored indexes hold it.
"""

from dataclasses import dataclass
from functools import lru_cache
from struct import unpack
from typing import Final

ALL_TAGS: Final = "*"

_UINT32: Final = 0xFFFFFFFF
_SIGN: Final = 0x80000000
# `String.trim` removes every character up to the blank, not what counts as white space in Unicode.
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
# A topic has tens of tags, not thousands; a miss costs a microsecond.
_CACHE_SIZE: Final = 8192
# Programs write words. A tag may take all of a message's properties; such a tag is not cached, because a full cache of them is a gigabyte.
_CACHED_LENGTH_MAX: Final = 64


class TagExpressionError(ValueError):
    """The expression names no tag."""


def java_string_hash(text: str) -> int:
    """Return Java's `String.hashCode`: signed 32 bit over UTF-16 units."""
    if text.isascii():
        units: bytes | tuple[int, ...] = text.encode("ascii")
    else:
        # Lone surrogates are units like any other to Java.
        wide = text.encode("utf-16-be", "surrogatepass")
        units = unpack(f">{len(wide) // 2}H", wide)
    value = 0
    for unit in units:
        value = (value * 31 + unit) & _UINT32
    return value - (_UINT32 + 1) if value & _SIGN else value


def tags_code(tag: str | None) -> int:
    """Return the number that stands for *tag* in a consume queue; 0 for no tag."""
    if not tag:
        return 0

    return _known_hash(tag) if len(tag) <= _CACHED_LENGTH_MAX else java_string_hash(tag)


@lru_cache(maxsize=_CACHE_SIZE)
def _known_hash(tag: str) -> int:
    return java_string_hash(tag)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """The tags that a subscription wants; an empty set means every message."""

    expression: str
    tags: frozenset[str]
    codes: frozenset[int]

    @classmethod
    def parse(cls, expression: str | None) -> "TagFilter":
        """Parse `A || B`; `*`, the empty text and None mean everything.

        Raises:
            TagExpressionError: There are separators but no tag between them.
        """
        if expression is None or expression in ("", ALL_TAGS):
            return cls(ALL_TAGS, frozenset(), frozenset())
        tags = frozenset(
            tag for part in expression.split("||") if (tag := part.strip(_JAVA_BLANKS))
        )
        if not tags:
            raise TagExpressionError(f"the subscription {expression!r} names no tag")
        return cls(expression, tags, frozenset(map(java_string_hash, tags)))

    @property
    def matches_all(self) -> bool:
        """Whether every message passes."""
        return not self.tags

    def matches_tag(self, tag: str | None) -> bool:
        """Return whether a message with this tag passes."""
        return not self.tags or tag in self.tags
