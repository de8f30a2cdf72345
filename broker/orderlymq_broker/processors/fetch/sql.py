"""
SQL92 subscriptions: an expression over the properties of a message, compiled once.

The rules: the language and its refusals are RocketMQ's (SelectorParser, ComparisonExpression). Values are the texts
of properties; a text is read as a number if the other side is one. If a property is missing, or is not a number where
one is needed, the comparison is unknown, and unknown is no match (three-valued logic). Evaluation reads only the
properties that it needs from the stored bytes. The grammar is in ``grammar.py``.
"""

import math
import re
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NoReturn, TypeAlias, TypeGuard

from lark import Lark, Transformer
from lark.exceptions import LarkError, UnexpectedInput, UnexpectedToken, VisitError

from orderlymq_broker.processors.fetch.grammar import GRAMMAR
from orderlymq_protocol.message.properties import decode_properties, find_property

# Far more than a person writes. Parsing takes about 10 microseconds per word, on the event loop that serves all clients.
EXPRESSION_SIZE_MAX: Final = 16_384
WORDS_MAX: Final = 2_000
# Up to this many properties are searched for in the stored bytes; for more, the bytes are decoded once into all properties.
_SEARCHES_MAX: Final = 4
_WORDS_PER_COMPARISON: Final = 4  # a = 1 AND
# Evaluation recurses once per level, and Python's own stack is limited.
NESTING_MAX: Final = 100

_LONG_MAX: Final = 2**63 - 1
# The largest number has 309 digits; a longer text is not a number.
_NUMBER_LENGTH_MAX: Final = 400
# The words of the lexer. Each alternative is possessive (no backtracking), so the search is linear.
_WORD: Final = re.compile(
    r"'(?:''|[^'])*+'?|--[^\r\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/)?|[A-Za-z0-9_$]++|[^ \t\r\n\f]"
)
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}", re.ASCII)
_FLOAT: Final = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?", re.ASCII)

Value: TypeAlias = str | int | float | bool | None
# Returns the text of a property, or None if the message has no property of that name.
Properties: TypeAlias = Callable[[str], str | None]
# Returns a value from the properties of a message.
Term: TypeAlias = Callable[[Properties], Value]
# Returns True, False or None (unknown) from the properties of a message.
Condition: TypeAlias = Callable[[Properties], bool | None]


class SqlError(ValueError):
    """The expression cannot be used; the text says where and why."""


class SqlFilter:
    """A compiled expression.

    Attributes:
        cost: the approximate number of comparisons for one message.
    """

    __slots__ = ("_condition", "_searches", "cost", "expression")

    def __init__(self, expression: str, condition: Condition, words: int) -> None:
        self.expression = expression
        self.cost = 1 + words // _WORDS_PER_COMPARISON
        self._condition = condition
        self._searches = self.cost <= _SEARCHES_MAX

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these stored properties is wanted."""
        if self._searches:
            return self._condition(lambda name: find_property(properties, name)) is True

        return self._condition(decode_properties(properties).get) is True


def compile_sql(expression: str) -> SqlFilter:
    """Return a new filter for an expression; ``filter.py`` caches the filters in use.

    Raises:
        SqlError: it does not parse, is too long or too deep, or has a comparison that is not allowed.
    """
    if len(expression) > EXPRESSION_SIZE_MAX:
        raise SqlError(
            f"the SQL92 expression has {len(expression)} characters; {EXPRESSION_SIZE_MAX} are allowed"
        )
    words = count_words(expression)
    if words > WORDS_MAX:
        raise SqlError(
            f"the SQL92 expression has more than {WORDS_MAX} words and signs; divide it over "
            "several consumer groups, or let the producer set one property that holds the result"
        )
    if not expression.strip():
        raise SqlError("the SQL92 expression is empty; subscribe with the tag * for everything")
    try:
        condition: Condition = _parser().parse(expression)  # type: ignore[assignment]  # the transformer's result
    except UnexpectedInput as error:
        raise SqlError(_describe(expression, error)) from error
    except VisitError as error:
        if isinstance(error.orig_exc, SqlError):
            raise error.orig_exc from error
        raise
    except LarkError as error:
        raise SqlError(f"the SQL92 expression {expression!r} cannot be read: {error}") from error

    return SqlFilter(expression, condition, words)


def count_words(expression: str) -> int:
    """Return the number of words, texts, signs and comments; counting stops at one more than allowed."""
    return sum(1 for _ in islice(_WORD.finditer(expression), WORDS_MAX + 1))


# -- parsing ---------------------------------------------------------------------------------------


class _Node:
    """A part of an expression during parsing.

    Attributes:
        constant: it is a literal, whose value is *value*.
        boolean: it is a condition: True, False or unknown.
        name: the property, if the part is only the name of one.
    """

    __slots__ = ("boolean", "constant", "depth", "name", "symbol", "term", "value")

    def __init__(
        self,
        term: Term,
        symbol: str,
        *parts: "_Node",
        boolean: bool = False,
        constant: bool = False,
        value: Value = None,
        name: str | None = None,
    ) -> None:
        self.term = term
        self.symbol = symbol
        self.boolean = boolean
        self.constant = constant
        self.value = value
        self.name = name
        self.depth: int = 1 + max((part.depth for part in parts), default=0)
        if self.depth > NESTING_MAX:
            raise SqlError(f"the SQL92 expression is nested deeper than {NESTING_MAX} levels")


class _Builder(Transformer[Any, Any]):
    """Builds the closures from the leaves up; lark calls one method per rule."""

    def start(self, parts: list[_Node]) -> Condition:
        return _condition(parts[0])

    def disjunction(self, parts: list[_Node]) -> _Node:
        return _boolean(_any([_condition(part) for part in parts]), "OR", *parts)

    def conjunction(self, parts: list[_Node]) -> _Node:
        return _boolean(_all([_condition(part) for part in parts]), "AND", *parts)

    def not_(self, parts: list[_Node]) -> _Node:
        return _negated(_boolean(_condition(parts[0]), "NOT", *parts))

    def nested(self, parts: list[_Node]) -> _Node:
        return parts[0]

    # Comparisons.

    def equal(self, parts: list[_Node]) -> _Node:
        left, right = parts
        for part in parts:
            if part.constant and part.value is None:
                _refuse(f"{part.symbol} cannot be compared; use IS NULL or IS NOT NULL")
        if left.constant and right.constant and left.boolean and not right.boolean:
            _refuse(f"{left.symbol} cannot be compared with {right.symbol}")
        return _boolean(_equal(left.term, right.term), "=", *parts)

    def not_equal(self, parts: list[_Node]) -> _Node:
        return _negated(self.equal(parts))

    def is_null(self, parts: list[_Node]) -> _Node:
        term = parts[0].term
        return _boolean(lambda of: term(of) is None, "IS NULL", *parts)

    def is_not_null(self, parts: list[_Node]) -> _Node:
        term = parts[0].term
        return _boolean(lambda of: term(of) is not None, "IS NOT NULL", *parts)

    def greater(self, parts: list[_Node]) -> _Node:
        return _ordering(parts, ">", lambda left, right: left > right)

    def greater_equal(self, parts: list[_Node]) -> _Node:
        return _ordering(parts, ">=", lambda left, right: left >= right)

    def less(self, parts: list[_Node]) -> _Node:
        return _ordering(parts, "<", lambda left, right: left < right)

    def less_equal(self, parts: list[_Node]) -> _Node:
        return _ordering(parts, "<=", lambda left, right: left <= right)

    def between(self, parts: list[_Node]) -> _Node:
        value, low, high = parts
        for bound in (low, high):
            if bound.constant and bound.value is None:
                _refuse("the bounds of BETWEEN must not be NULL")
        both = [self.greater_equal([value, low]), self.less_equal([value, high])]
        if _is_number(low.value) and _is_number(high.value) and high.value < low.value:
            _refuse(
                f"the bounds of BETWEEN are {low.symbol} and {high.symbol}; write the lower one "
                "first"
            )
        return _boolean(_all([_condition(part) for part in both]), "BETWEEN", *parts)

    def not_between(self, parts: list[_Node]) -> _Node:
        return _negated(self.between(parts))

    def in_(self, parts: list[Any]) -> _Node:
        return _membership(parts, "IN", lambda texts: frozenset(texts).__contains__)

    def not_in(self, parts: list[Any]) -> _Node:
        return _negated(self.in_(parts))

    def contains(self, parts: list[Any]) -> _Node:
        return _membership(parts, "CONTAINS", lambda texts: lambda text: texts[0] in text)

    def not_contains(self, parts: list[Any]) -> _Node:
        return _negated(self.contains(parts))

    def starts_with(self, parts: list[Any]) -> _Node:
        return _membership(
            parts, "STARTSWITH", lambda texts: lambda text: text.startswith(texts[0])
        )

    def not_starts_with(self, parts: list[Any]) -> _Node:
        return _negated(self.starts_with(parts))

    def ends_with(self, parts: list[Any]) -> _Node:
        return _membership(parts, "ENDSWITH", lambda texts: lambda text: text.endswith(texts[0]))

    def not_ends_with(self, parts: list[Any]) -> _Node:
        return _negated(self.ends_with(parts))

    # Operands.

    def plus(self, parts: list[_Node]) -> _Node:
        return _Node(parts[0].term, f"+{parts[0].symbol}", *parts)

    def minus(self, parts: list[_Node]) -> _Node:
        term = parts[0].term

        def negate(of: Properties) -> Value:
            value = term(of)
            return -value if _is_number(value) else None

        return _Node(negate, f"-{parts[0].symbol}", *parts)

    def text(self, parts: list[str]) -> _Node:
        return _literal(str(parts[0]), _unquote(parts[0]))

    def integer(self, parts: list[str]) -> _Node:
        number = int(parts[0].rstrip("lL")) if len(parts[0]) <= 20 else _LONG_MAX + 1
        if number > _LONG_MAX:
            _refuse(f"{parts[0]} is greater than {_LONG_MAX}")
        return _literal(str(parts[0]), number)

    def float_(self, parts: list[str]) -> _Node:
        number = float(parts[0])
        if not math.isfinite(number):
            _refuse(f"{parts[0]} is too large for a number")
        return _literal(str(parts[0]), number)

    def true(self, parts: list[str]) -> _Node:
        return _literal("TRUE", value=True)

    def false(self, parts: list[str]) -> _Node:
        return _literal("FALSE", value=False)

    def null(self, parts: list[str]) -> _Node:
        return _literal("NULL", None)

    def property(self, parts: list[str]) -> _Node:
        name = str(parts[0])
        return _Node(lambda of: of(name), name, name=name)


@lru_cache(maxsize=1)
def _parser() -> Lark:
    # The transformer runs during parsing, so that no deep tree is walked by recursion.
    return Lark(GRAMMAR, parser="lalr", transformer=_Builder())


def _describe(expression: str, error: UnexpectedInput) -> str:
    # Read with getattr, because lark declares it as always None.
    at: int | None = getattr(error, "pos_in_stream", None)
    if at is None or (isinstance(error, UnexpectedToken) and error.token.type == "$END"):
        return f"the SQL92 expression {expression!r} is incomplete"
    return (
        f"the SQL92 expression {expression!r} is wrong at column {at + 1}: {expression[at:][:20]!r}"
    )


def _refuse(reason: str) -> NoReturn:
    raise SqlError(f"SQL92: {reason}")


def _literal(symbol: str, value: Value) -> _Node:
    boolean = value is None or isinstance(value, bool)
    return _Node(lambda _: value, symbol, boolean=boolean, constant=True, value=value)


def _unquote(token: str) -> str:
    return token[1:-1].replace("''", "'")


# -- conditions ------------------------------------------------------------------------------------


def _boolean(condition: Condition, symbol: str, *parts: _Node) -> _Node:
    return _Node(condition, symbol, *parts, boolean=True)


def _condition(node: _Node) -> Condition:
    """Return the node as a condition; a property as a condition is true if its text is `true`."""
    term = node.term
    if node.boolean:
        return term  # type: ignore[return-value]  # boolean nodes give True, False or None
    if node.name is None:
        _refuse(f"{node.symbol} is not a condition; compare it with something")

    def is_true(of: Properties) -> bool | None:
        value = term(of)
        return None if value is None else _as_bool(str(value))

    return is_true


def _negated(node: _Node) -> _Node:
    condition = _condition(node)

    def negate(of: Properties) -> bool | None:
        result = condition(of)
        return None if result is None else not result

    return _boolean(negate, "NOT", node)


def _any(conditions: list[Condition]) -> Condition:
    def any_of(of: Properties) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            one = condition(of)
            if one:
                return True
            if one is None:
                result = None
        return result

    return any_of


def _all(conditions: list[Condition]) -> Condition:
    def all_of(of: Properties) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            one = condition(of)
            if one is False:
                return False
            if one is None:
                result = None
        return result

    return all_of


def _membership(
    parts: list[Any], symbol: str, make: Callable[[list[str]], Callable[[str], bool]]
) -> _Node:
    """Return the test of a property's text against string literals."""
    node: _Node = parts[0]
    if node.name is None:
        _refuse(f"{symbol} needs a property on its left, not {node.symbol}")
    test = make([_unquote(token) for token in parts[1:]])
    term = node.term

    def check(of: Properties) -> bool | None:
        value = term(of)
        return test(value) if isinstance(value, str) else None

    return _boolean(check, symbol, node)


def _ordering(parts: list[_Node], symbol: str, order: Callable[[float, float], bool]) -> _Node:
    for part in parts:
        if part.boolean or (part.constant and not _is_number(part.value)):
            _refuse(
                f"{part.symbol} cannot be compared by {symbol}; only numbers and properties can"
            )
    left, right = (part.term for part in parts)

    def compare(of: Properties) -> bool | None:
        one = _as_number(left(of))
        if one is None:
            return None
        other = _as_number(right(of))
        return None if other is None else order(one, other)

    return _boolean(compare, symbol, *parts)


def _equal(left: Term, right: Term) -> Condition:
    def compare(of: Properties) -> bool | None:
        one, other = left(of), right(of)
        if one is None or other is None:
            return None
        if isinstance(one, str) and isinstance(other, str):
            return one == other
        if isinstance(one, bool):
            return _equals_bool(other, one)
        if isinstance(other, bool):
            return _equals_bool(one, other)
        first, second = _as_number(one), _as_number(other)
        return None if first is None or second is None else first == second

    return compare


# -- values ----------------------------------------------------------------------------------------


def _is_number(value: Value) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _as_bool(text: str) -> bool:
    return text.lower() == "true"


def _equals_bool(value: str | float | bool, expected: bool) -> bool:
    """Compare with a boolean: a text is converted as in Java; a number equals neither."""
    if isinstance(value, str):
        value = _as_bool(value)

    return value is expected


def _as_number(value: Value) -> int | float | None:
    """Return a number, including one that is written as text; None for any other value."""
    if isinstance(value, str):
        if len(value) > _NUMBER_LENGTH_MAX:
            return None
        if _INTEGER.fullmatch(value):
            return int(value)
        if _FLOAT.fullmatch(value):
            number = float(value)
            return number if math.isfinite(number) else None
        return None

    return value if _is_number(value) else None
