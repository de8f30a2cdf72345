"""Tags: Java's hash of a tag, and the expression of a subscription."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderlymq_protocol.body.clients import HeartbeatData
from orderlymq_protocol.message.tags import (
    TagExpressionError,
    TagFilter,
    java_string_hash,
    tags_code,
)
from tests.protocol import golden


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2_598_919),
        ("中文", 646_394),
        ("polygenelubricants", -2_147_483_648),
        ("\U0001f600", 0xD83D * 31 + 0xDE00),
        ("order-0000000000000000000000000000004711", -249_803_582),
    ],
)
def test_hashes_are_javas(text: str, expected: int) -> None:
    """Producers in all languages must choose the same queue for a key."""
    assert java_string_hash(text) == expected


def naive_hash(units: list[int]) -> int:
    total = 0
    for at, unit in enumerate(reversed(units)):
        total += unit * pow(31, at, 2**32)
    return (total + 2**31) % 2**32 - 2**31


@given(st.text(max_size=50) | st.text(st.characters(max_codepoint=127), max_size=50))
def test_the_hash_agrees_with_its_definition(text: str) -> None:
    """The hash is s[0]*31^(n-1)+…+s[n-1] in 32 bits, over UTF-16 units, including lone surrogates."""
    data = text.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]

    assert java_string_hash(text) == naive_hash(units)


def test_codes_of_real_subscriptions_are_the_hashes_of_their_tags() -> None:
    """The codes come from Java clients."""
    checked = 0
    for body in golden.bodies(34, "request"):
        for consumer in HeartbeatData.from_json(body).consumer_data_set:
            for subscription in consumer.subscription_data_set:
                if subscription.expression_type == "TAG":
                    expected = TagFilter.parse(subscription.sub_string)
                    assert frozenset(subscription.tags_set) == expected.tags
                    assert frozenset(subscription.code_set) == expected.codes
                    checked += bool(expected.tags)
    assert checked >= 2


def test_no_tag_has_code_0() -> None:
    """An absent tag and an empty tag both have code 0."""
    assert [tags_code(None), tags_code(""), tags_code("TagA")] == [0, 0, 2_598_919]


def test_long_tags_are_not_kept() -> None:
    """Law: a sender cannot fill a leader's memory with tags.

    A tag may have 32 KiB, and one wide letter makes all its letters take four bytes.
    """
    tracemalloc.start()
    try:
        for number in range(100):
            tags_code(f"{number}\U0001f600".ljust(4_000))
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert kept < 100_000


@pytest.mark.parametrize("expression", ["*", "", None])
def test_everything_matches_without_tags(expression: str | None) -> None:
    """A star, an empty text and no expression all match every message."""
    parsed = TagFilter.parse(expression)

    assert parsed == TagFilter("*", frozenset(), frozenset())
    assert parsed.matches_all
    assert parsed.matches_tag(None)


@pytest.mark.parametrize("expression", ["A || B", "A||B", " A ||\tB|| ", "B||A||A"])
def test_tags_are_separated_by_two_bars(expression: str) -> None:
    """Blanks around a tag are ignored; equal tags count once."""
    parsed = TagFilter.parse(expression)

    assert parsed == TagFilter(expression, frozenset({"A", "B"}), frozenset({65, 66}))
    assert [parsed.matches_tag(tag) for tag in ("A", "B", "C", None)] == [True, True, False, False]


def test_colliding_tags_pass_by_code_and_not_by_text() -> None:
    """ "Aa" and "BB" have the same hash: the broker passes both, and the client compares the text."""
    parsed = TagFilter.parse("Aa")

    assert tags_code("BB") in parsed.codes
    assert not parsed.matches_tag("BB")


@pytest.mark.parametrize("expression", ["||", " || ", "||||"])
def test_separators_without_tags_are_an_error(expression: str) -> None:
    """A subscription that matches no message is an error."""
    with pytest.raises(TagExpressionError):
        TagFilter.parse(expression)
