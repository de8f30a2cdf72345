"""SQL92 expressions: which are accepted, which are refused, and what they mean."""

from contextlib import suppress
from time import thread_time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lark import Lark, UnexpectedInput

from orderlymq_broker.processors.fetch.grammar import GRAMMAR
from orderlymq_broker.processors.fetch.sql import NESTING_MAX, SqlError, compile_sql, count_words
from orderlymq_protocol.message.properties import encode_properties

ORDER = encode_properties(
    {
        "amount": "42",
        "price": "9.5",
        "color": "red",
        "paid": "true",
        "name": "O'Neil",
        "TAGS": "new",
        "size": "large",
        "debt": "-7",
    }
)


@pytest.mark.parametrize(
    "expression",
    [
        "amount = 42",
        "amount = 42L",
        "amount = 42.0",
        "42 = amount",
        "amount = '42'",
        "amount <> 41",
        "amount > 41.5 AND amount >= 42 AND amount < 43 AND amount <= 42",
        "price BETWEEN 9 AND 10",
        "amount NOT BETWEEN 1 AND 2",
        "debt BETWEEN -10 AND -5",
        "debt < +0",
        "amount > debt",
        "color = 'red'",
        "color IN ('blue', 'red')",
        "color NOT IN ('blue', 'green')",
        "name = 'O''Neil'",
        "nothing IS NULL",
        "color IS NOT NULL",
        "NULL IS NULL",
        "paid = TRUE",
        "paid <> FALSE",
        "paid",
        "NOT paid = FALSE",
        "TAGS = 'new'",
        "color = 'blue' OR amount = 42",
        "nothing > 1 OR amount = 42",
        "NOT (color = 'blue' AND amount = 42)",
        "color = 'blue' AND amount = 1 OR paid = TRUE",
        "(amount = 42) = TRUE",
        "not amount = 41 aNd color Is Not nuLL",
        "amount = 42 -- until the end of the line",
        "/* before ** it */ amount = 42",
        "color CONTAINS 'e' AND color STARTSWITH 're' AND color ENDSWITH 'ed'",
        "color NOT CONTAINS 'x' AND color NOT STARTSWITH 'e' AND color NOT ENDSWITH 'e'",
        "contains IS NULL",
        "$x IS NULL AND _x1 IS NULL AND android IS NULL AND nullable IS NULL",
        "amount > 1e1 AND amount > .5 AND amount < 1.e3",
    ],
)
def test_a_message_is_wanted(expression: str) -> None:
    """Law: a message matches only if the whole expression is true."""
    assert compile_sql(expression).matches(ORDER)


@pytest.mark.parametrize(
    "expression",
    [
        "nothing = 1",
        "nothing <> 1",
        "NOT (nothing = 1)",
        "nothing IN ('a')",
        "nothing NOT IN ('a')",
        "nothing BETWEEN 1 AND 2",
        "nothing NOT BETWEEN 1 AND 2",
        "nothing > 1 AND amount = 42",
        "NOT (nothing > 1 OR color = 'blue')",
        "color > 1",
        "NOT (color > 1)",
        "color = 1",
        "-color < 1",
        "color > size",
        "paid = 1",
        "amount = TRUE",
        "color IS NULL",
        "color",
        "nothing",
        "FALSE",
        "NULL",
        "color = 'RED'",
        "Color = 'red'",
    ],
)
def test_what_is_false_or_unknown_is_not_wanted(expression: str) -> None:
    """Law: a missing property, or a text that is no number, makes a comparison unknown, also when negated,
    and does not match.
    """
    assert not compile_sql(expression).matches(ORDER)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "is empty"),
        ("amount >", "is incomplete"),
        ("amount = 1 color", "column 12"),
        ("amount == 1", "column 9"),
        ("color LIKE 'r%'", "column 7"),
        ("amount + 1 = 2", "column 8"),
        ("lower(color) = 'red'", "column 6"),
        ("and = 1", "column 1"),
        ("amount = 042", "column 10"),
        ("color = 'red", "column 9"),
        ('color = "red"', "column 9"),
        ("color IN (1, 2)", "column 11"),
        ("color IN ()", "column 11"),
        ("amount", None),
        ("1", "not a condition"),
        ("'red' OR paid", "not a condition"),
        ("amount > 'x'", "'x' cannot be compared"),
        ("amount > TRUE", "TRUE cannot be compared"),
        ("(amount > 1) > 2", "cannot be compared"),
        ("amount BETWEEN 'a' AND 'b'", "'a' cannot be compared"),
        ("amount = NULL", "IS NULL"),
        ("TRUE = 1", "TRUE cannot be compared with 1"),
        ("amount BETWEEN 2 AND 1", "lower one first"),
        ("amount BETWEEN NULL AND 1", "must not be NULL"),
        ("'a' IN ('a')", "needs a property"),
        ("amount = 9223372036854775808", "greater than"),
        ("amount = 1e999", "too large"),
        ("NOT " * (NESTING_MAX + 1) + "paid", "nested deeper"),
        ("x" * 20_000, "characters"),
        ("(" * 2_001, "more than 2000 words"),
        ("paid AND " * 1_000 + "paid", "more than 2000 words"),
        ("paid IN (" + "'x'," * 1_000 + "'x')", "more than 2000 words"),
        ("/**/" * 2_001 + "paid", "more than 2000 words"),
        ("--\n" * 2_001 + "paid", "more than 2000 words"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_place(expression: str, reason: str | None) -> None:
    """Law: the refusal of an expression says where the mistake is, or what cannot be compared."""
    if reason is None:
        compile_sql(expression)
        return
    with pytest.raises(SqlError, match=reason):
        compile_sql(expression)


def test_depth_is_no_matter_of_length() -> None:
    """Law: long chains and nested brackets cost no recursion."""
    chain = " OR ".join(f"amount = {number}" for number in range(450))
    brackets = "(" * 900 + "amount = 42" + ")" * 900

    assert compile_sql(chain).matches(ORDER)
    assert compile_sql(brackets).matches(ORDER)


def test_a_number_is_what_java_and_people_agree_on() -> None:
    """Law: only plain decimal numbers count as numbers; Python's extras (1_000, inf, nan, other digits) are texts."""
    for text in ("1_000", "inf", "nan", "٤٢", " 42", "0x2A", ""):
        assert not compile_sql("amount > 0").matches(encode_properties({"amount": text})), text
    huge = encode_properties({"amount": "9" * 5_000})
    assert not compile_sql("amount > 0").matches(huge)


@pytest.mark.parametrize(
    "text",
    [
        "1" * 30_000 + "x",
        "1" * 15_000 + "." + "1" * 15_000 + "x",
        "." * 30_000,
        "1e" + "1" * 30_000,
    ],
)
def test_a_long_value_is_no_number(text: str) -> None:
    """Law: a very long value is no number, and finding that out takes linear time."""
    properties = encode_properties({"amount": text})

    assert not compile_sql("amount > 0").matches(properties)
    assert not compile_sql("amount <= 0").matches(properties)


@pytest.mark.parametrize(
    "part",
    ["/*", "/**", "*", "'", "''", "--", "1", ".", "1.", "1e", "a", "NOT", "$", " ", "\n", "-"],
)
def test_text_that_is_nearly_right_is_refused_in_linear_time(part: str) -> None:
    """Law: nearly correct text is refused in linear time: four times the text takes about four times as long."""
    compile_sql("a = 1")
    for before, after in (("", ""), ("a > ", "x")):
        short_s, long_s = (
            min(_time_to_compile(before + part * (size // len(part)) + after) for _ in range(3))
            for size in (1_000, 4_000)
        )
        # Shorter times say nothing; a quadratic pattern takes a tenth of a second at least.
        assert long_s < 0.05 or long_s < 8 * short_s, (before, short_s, long_s)


def _time_to_compile(text: str) -> float:
    began = thread_time()
    with suppress(SqlError):
        compile_sql(text)

    return thread_time() - began


LEXER = Lark(GRAMMAR, parser="lalr", lexer="basic")


@given(st.text("ab='/*-. 1(),\n", max_size=40))
def test_words_are_never_counted_too_low(text: str) -> None:
    """Law: the word count that bounds the parser is not below half of the real count."""
    try:
        found = sum(1 for _ in LEXER.lex(text))
    except UnexpectedInput:
        return

    assert count_words(text) >= found / 2


def test_a_cheap_and_a_costly_expression_mean_the_same() -> None:
    """Law: properties give the same results whether they are searched one by one or all read together."""
    raw = encode_properties({"a": "1", "b": "2"}) + b"c\x01\x02a\x013\x02"
    for name in "abcd":
        cheap = compile_sql(f"{name} IS NULL")
        costly = compile_sql(" AND ".join([f"{name} IS NULL"] * 20))
        assert cheap.cost < costly.cost
        assert cheap.matches(raw) == costly.matches(raw)
