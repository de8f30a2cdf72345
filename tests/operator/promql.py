"""
The part of PromQL that the alarms about outages use, over one moment: selectors, `or`, `unless`, `and`,
comparisons, differences, sums.

A series is a name with labels; a vector is a dict of label sets with values. Whatever else a rule uses is refused.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Series = Mapping[str, Vector]

_TOKEN: Final = re.compile(r"\s*([A-Za-z_:][\w:]*|[\d.]+|[<>=!]=|[-<>(),{}]|\"[^\"]*\")")
_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FOLD: Final[dict[str, Callable[[Iterable[float]], float]]] = {"sum": sum, "max": max}


def evaluate(text: str, series: Series, now: float = 0.0) -> Vector:
    """Return what an expression yields at *now*, seconds since the epoch; an alarm fires for each entry."""
    parser = _Parser(_TOKEN.findall(text), series, now)
    found = parser.disjunction()
    assert not parser.tokens, f"what follows is not understood: {parser.tokens}"
    assert isinstance(found, dict)
    return found


class _Parser:
    def __init__(self, tokens: list[str], series: Series, now: float) -> None:
        self.tokens = tokens
        self._now = now
        self._series = series

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
        left = self._term()
        if not self._next_is("-"):
            return left
        right = self._term()
        assert isinstance(left, float)
        assert isinstance(right, dict)
        return {labels: left - value for labels, value in right.items()}

    def _term(self) -> Vector | float:
        token = self.tokens.pop(0)
        if token == "(":
            found = self.disjunction()
            self._expect(")")
            return found
        if token in _FOLD:
            return self._fold(_FOLD[token])
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
        """Return the rows that the matchers behind a name leave; only `!=` is understood."""
        if not self._next_is("{"):
            return dict(vector)
        unwanted: set[tuple[str, str]] = set()
        while not self._next_is("}"):
            name = self.tokens.pop(0)
            self._expect("!=")
            unwanted.add((name, self.tokens.pop(0).strip('"')))
            self._next_is(",")
        return {labels: value for labels, value in vector.items() if not labels & unwanted}

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
