"""
The problems of manifests: where each is, and what a person reads about it.

Rule: a problem names file, line, field path, the value found and the nearest valid name.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orderlymq_operator.resources.manifests.patterns import SIZE, TIME, described
from orderlymq_operator.resources.quantities import Duration, Quantity
from orderlymq_protocol.plurals import counted

# The types of pydantic's errors, and their words in YAML.
_MAPPINGS: Final = ("model_type", "model_attributes_type", "dict_type")
_TYPES: Final = {
    "list_type": "a list",
    "bool_type": "true or false",
    "int_type": "a whole number",
    "float_type": "a number",
}
_LENGTHS: Final = {
    "string_too_short": ("at least", "min_length", "character"),
    "string_too_long": ("at most", "max_length", "character"),
    "too_short": ("at least", "min_length", "item"),
    "too_long": ("at most", "max_length", "item"),
}
_FOUND_MAX: Final = 60  # number of characters of a wrong value that an error repeats


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a manifest."""

    file: str
    line: int  # 0 for the whole file
    field: str
    message: str

    def __str__(self) -> str:
        line = f":{self.line}" if self.line else ""
        place = f"{self.file}{line}: " if self.file else ""
        return place + (f"{self.field}: {self.message}" if self.field else self.message)


class ManifestError(ValueError):
    """Manifests that cannot be used, with all their problems."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def explain(details: ErrorDetails, model: type[BaseModel]) -> str:
    """Return what is wrong with a value of *model*, and what to write instead."""
    context: Mapping[str, Any] = details.get("ctx", {})
    found = found_text(details["input"])
    match details["type"]:
        case "extra_forbidden":
            *parents, name = details["loc"]
            names = _fields_at(model, parents)
            return f"unknown field{_nearest(str(name), names)}"
        case "missing":
            return "this field is required"
        case "literal_error":
            allowed = re.findall(r"'([^']*)'|(\d+)", str(context["expected"]))
            return not_one_of(details["input"], [text or int(number) for text, number in allowed])
        case "value_error":
            return str(context["error"])
        case "string_pattern_mismatch":
            return f"found {found}, expected {described(str(context['pattern']))}"
        case _:
            return f"found {found}, expected {_expected(details, model)}"


def _expected(details: ErrorDetails, model: type[BaseModel]) -> str:
    """Return what a wrong value should be, in the words of YAML rather than of Python."""
    context: Mapping[str, Any] = details.get("ctx", {})
    kind = details["type"]
    if kind == "string_type":
        return _text_at(model, details["loc"], details["input"])
    if kind in _MAPPINGS:
        names = _required_at(model, details["loc"])
        return f"a mapping with {alternatives(names, 'and')}" if names else "a mapping"
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _LENGTHS:
        words, limit, counted_as = _LENGTHS[kind]
        return f"{words} {counted(context[limit], counted_as)}"
    text = details["msg"].removeprefix("Input should be ").removeprefix("Input should ")
    return f"{text[0].lower()}{text[1:]}"


def _text_at(model: type[BaseModel], path: Sequence[str | int], value: object) -> str:
    """Return what stands for the *value* that is no text; YAML reads bare numbers and words as other types."""
    field = _field_at(model, path)
    kinds = _parts_of(field.annotation) if field is not None else []
    if Duration in kinds:
        return TIME
    if Quantity in kinds:
        return SIZE
    if isinstance(value, bool | int | float):
        return f'a text; write it in quotes: "{found_text(value)}"'
    return "a text"


def _required_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the names of the fields that the part of *model* at *path* must have."""
    field = _field_at(model, path)
    inner = _models_in(field.annotation) if field is not None else []
    if len(inner) != 1:
        return []
    fields = inner[0].model_fields.items()
    return [f"`{field.alias or name}`" for name, field in fields if field.is_required()]


def _field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field of *model* that *path* leads to; an item of a list counts as its list."""
    found = None
    for step in path:
        if isinstance(step, int):
            continue
        fields = model.model_fields.items()
        found = next((field for name, field in fields if step in (field.alias, name)), None)
        if found is None:
            return None
        inner = _models_in(found.annotation)
        model = inner[0] if inner else model
    return found


def _fields_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the field names of the part of *model* that *path* leads to."""
    for step in path:
        if isinstance(step, int):
            continue
        for name, field in model.model_fields.items():
            if step in (field.alias, name):
                inner = _models_in(field.annotation)
                model = inner[0] if inner else model
                break
    return [field.alias or name for name, field in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _parts_of(annotation: Any) -> list[Any]:
    """Return an annotation and the types that it is made of."""
    inner = getattr(annotation, "__args__", ())
    return [annotation, *(each for part in inner for each in _parts_of(part))]


def not_one_of(value: object, allowed: Sequence[object]) -> str:
    """Return what was found in place of the *allowed* values, and the nearest of them."""
    near = _nearest(str(value), [str(item) for item in allowed])
    return f"found {found_text(value)}, expected {alternatives(allowed)}{near}"


def _nearest(name: str, names: Sequence[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""


def alternatives(allowed: Sequence[object], word: str = "or") -> str:
    """Return *allowed* as a list in words."""
    words = [str(item) for item in allowed]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {word} {words[-1]}"


def found_text(value: object) -> str:
    """Return a wrong value in words, or its beginning."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return f"the text {value[:_FOUND_MAX]!r}"
        case _:
            return str(value)


def dotted(path: Sequence[str | int]) -> str:
    """Return a field path as a manifest's reader writes it: `spec.topics[1].name`."""
    steps = (f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)
    return "".join(steps).removeprefix(".")
