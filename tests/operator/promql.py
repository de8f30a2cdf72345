"""
The part of PromQL that the chart's alerts use: selectors, `or`, `unless`, `and`, comparisons, differences, products, sums,
and functions of a range.

A series is a name with labels; a vector is a dict of label sets with values. Anything else in a rule is refused.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = Mapping[str, Vector]
# The series at a time, in seconds since the epoch.
History = Callable[[float], Series]

_TOKEN: Final = re.compile(
    r"\s*([A-Za-z_:][\w:]*|[\d.]+|\[\d+[smh](?::\d+[smh])?\]|[<>=!]=|[=!]~|[-*/<>=(),{}]|\"[^\"]*\")"
)
_RANGE: Final = re.compile(r"\[(\d+)([smh])(?::(\d+)([smh]))?\]")
# The chart's default scrape interval.
_SCRAPES_S: Final = 30
_SECONDS: Final = {"s": 1, "m": 60, "h": 3_600}
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FOLD: Final[dict[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max}
# Functions of a range: of its values and its length in seconds.
_OVER: Final[dict[str, Callable[[list[float], int], float]]] = {
    "delta": lambda values, _: values[-1] - values[0],
    "rate": lambda values, range_s: (values[-1] - values[0]) / range_s,
    "max_over_time": lambda values, _: max(values),
    "min_over_time": lambda values, _: min(values),
}
_PRODUCTS: Final[dict[str, Callable[[float, float], float]]] = {
    "*": operator.mul,
    "/": operator.truediv,
}
_MATCH: Final[dict[str, Callable[[str, str], bool]]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "=~": lambda value, pattern: re.fullmatch(pattern, value) is not None,
}


def evaluate(text: str, series: Series, now: float = 0.0) -> Vector:
    """Return the value of an expression at *now*, in seconds since the epoch; an alert fires for each entry."""
    return evaluate_history(text, lambda _: series, now)


def evaluate_history(text: str, history: History, now: float = 0.0) -> Vector:
    """Return the value of an expression at *now* from changing series, as `evaluate`."""
    parser = _Parser(_TOKEN.findall(text), history, now)
    found = parser.disjunction()
    assert not parser.tokens, f"what follows is not understood: {parser.tokens}"
    assert isinstance(found, dict)
    return found


class _Parser:
    def __init__(self, tokens: list[str], history: History, now: float) -> None:
        self.tokens = tokens
        self._now = now
        self._history = history
        self._series = history(now)

    def disjunction(self) -> Vector | float:
        left = self._difference()
        while self._next_is("or"):
            right = self._difference()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {**right, **left}
        return left

    def _difference(self) -> Vector | float:
        left = self._comparison()
        while self.tokens and self.tokens[0] in {"and", "unless"}:
            wanted = self.tokens.pop(0) == "and"
            right = self._comparison()
            assert isinstance(left, dict)
            assert isinstance(right, dict)
            left = {labels: value for labels, value in left.items() if (labels in right) is wanted}
        return left

    def _comparison(self) -> Vector | float:
        left = self._subtraction()
        if not self.tokens or self.tokens[0] not in _COMPARE:
            return left
        holds = _COMPARE[self.tokens.pop(0)]
        right = self._subtraction()
        assert isinstance(left, dict)
        return {
            labels: value
            for labels, value in left.items()
            if (other := right.get(labels) if isinstance(right, dict) else right) is not None
            and holds(value, other)
        }

    def _subtraction(self) -> Vector | float:
        left = self._product()
        if not self._next_is("-"):
            return left
        right = self._product()
        assert isinstance(right, dict)
        if isinstance(left, float):
            return {labels: left - value for labels, value in right.items()}
        return {labels: value - right[labels] for labels, value in left.items() if labels in right}

    def _product(self) -> Vector | float:
        left = self._term()
        if not self.tokens or self.tokens[0] not in _PRODUCTS:
            return left
        joined = _PRODUCTS[self.tokens.pop(0)]
        right = self._term()
        assert isinstance(right, dict)
        if isinstance(left, float):
            return {labels: joined(left, value) for labels, value in right.items()}
        return {
            labels: joined(value, right[labels])
            for labels, value in left.items()
            if labels in right
        }

    def _term(self) -> Vector | float:
        token = self.tokens.pop(0)
        if token == "(":
            found = self.disjunction()
            self._expect(")")
            return found
        if token in _FOLD:
            return self._fold(_FOLD[token])
        if token in _OVER:
            return self._over(_OVER[token])
        if token == "clamp_max":
            self._expect("(")
            found = self.disjunction()
            self._expect(",")
            most = self._term()
            self._expect(")")
            assert isinstance(found, dict)
            assert isinstance(most, float)
            return {labels: min(value, most) for labels, value in found.items()}
        if token == "time":
            self._expect("(")
            self._expect(")")
            return self._now
        if token == "absent":
            self._expect("(")
            found = self.disjunction()
            self._expect(")")
            return {} if found else {frozenset(): 1.0}
        if token[0].isdigit():
            return float(token)
        assert token.startswith("orderlymq_"), f"{token} is not understood"
        return self._matching(self._series.get(token, {}))

    def _matching(self, vector: Vector) -> Vector:
        """Return the rows that match the labels after a name."""
        left = dict(vector)
        if not self._next_is("{"):
            return left
        while not self._next_is("}"):
            name, matches = self.tokens.pop(0), _MATCH[self.tokens.pop(0)]
            wanted = self.tokens.pop(0).strip('"')
            for labels in vector:
                if not matches(dict(labels).get(name, ""), wanted):
                    left.pop(labels, None)
            self._next_is(",")
        return left

    def _over(self, over: Callable[[list[float], int], float]) -> Vector:
        """Apply a function to an expression's values at each step of its range."""
        self._expect("(")
        begin = list(self.tokens)
        self.disjunction()
        found = _RANGE.fullmatch(self.tokens.pop(0))
        assert found, f"a range is missing before {self.tokens}"
        self._expect(")")
        range_s = int(found[1]) * _SECONDS[found[2]]
        step_s = int(found[3]) * _SECONDS[found[4]] if found[3] else _SCRAPES_S
        values: dict[Labels, list[float]] = {}
        for ago_s in range(range_s, -1, -step_s):
            then = _Parser(list(begin), self._history, self._now - ago_s).disjunction()
            assert isinstance(then, dict)
            for labels, value in then.items():
                values.setdefault(labels, []).append(value)
        return {labels: over(each, range_s) for labels, each in values.items()}

    def _fold(self, fold: Callable[[Iterable[float]], float]) -> Vector:
        self._expect("by")
        self._expect("(")
        names: list[str] = []
        while not self._next_is(")"):
            names += [name for name in [self.tokens.pop(0)] if name != ","]
        self._expect("(")
        found = self.disjunction()
        self._expect(")")
        assert isinstance(found, dict)
        grouped: dict[Labels, list[float]] = {}
        for labels, value in found.items():
            kept = frozenset(label for label in labels if label[0] in names)
            grouped.setdefault(kept, []).append(value)
        return {labels: fold(values) for labels, values in grouped.items()}

    def _next_is(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False

    def _expect(self, token: str) -> None:
        assert self._next_is(token), f"{token} is missing before {self.tokens}"
