"""
Every field and every member with every hostile value, once each; random cases would need millions to reach them.

The list follows from the catalogue alone; `Generator` shuffles it by its seed, so that any part of it is a sample.
"""

import functools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import orjson

from tests.hostile import values
from tests.hostile.catalogue import Question, questions
from tests.hostile.shapes import FirstChoice, models, places, sample

#: A member that is removed instead of replaced.
MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Sweep:
    """One place of one request and the value written there; *member* counts the places of the body."""

    question: int
    value: Any
    field: str = ""
    member: int = -1


@functools.cache
def sweeps() -> tuple[Sweep, ...]:
    """Return all sweeps, in the order of the catalogue."""
    return tuple(
        each
        for index, question in enumerate(questions())
        for each in (*_fields(index, question), *_members(index, question))
    )


def canonical_body(question: Question) -> Any:
    """Return the JSON value of a body whose places are swept, to be changed; None if there is none."""
    return orjson.loads(_canonical_text(question.code, question.model, question.bodies))


@functools.cache
def _canonical_text(code: int, model: str | None, bodies: tuple[bytes, ...]) -> bytes:
    if model is not None:
        return orjson.dumps(sample(FirstChoice(), models()[model]))
    for text in bodies:
        try:
            return orjson.dumps(orjson.loads(text))
        except orjson.JSONDecodeError:
            continue
    return b"null"


def _fields(index: int, question: Question) -> Iterator[Sweep]:
    for wire in question.fields:
        yield Sweep(index, MISSING, field=wire)
        for value in (
            *map(str, values.NUMBERS),
            *values.NUMBER_TEXTS,
            *values.TEXTS,
            *values.LARGE,
        ):
            yield Sweep(index, value, field=wire)
        if question.fields[wire][0] == "properties":
            for value in values.PROPERTIES:
                yield Sweep(index, value, field=wire)
        # Only these fields may hold an expression; so many digits are read nowhere else.
        for value in values.SQL:
            yield Sweep(index, value, field=wire)


def _members(index: int, question: Question) -> Iterator[Sweep]:
    body = canonical_body(question)
    if not isinstance(body, dict | list):
        return
    confusions = random.Random(index)
    for member, (container, key) in enumerate(places(body)):
        yield Sweep(index, MISSING, member=member)
        confused = [values.confused(confusions, container[key]) for _ in range(8)]
        for value in (
            *(True, *values.NUMBERS, *values.NUMBER_TEXTS, *values.SCALARS, *values.SURROGATES),
            *(*values.TEXTS, *values.SQL, *values.LARGE[:1], *confused),
        ):
            yield Sweep(index, value, member=member)
