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
from pydantic_core import ErrorDetails

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
            return f"found {found}, expected {_described(str(context['pattern']))}"
        case _:
            expected = details["msg"].removeprefix("Input should be ").removeprefix("Input should ")
            return f"found {found}, expected {expected[0].lower()}{expected[1:]}"


def _described(pattern: str) -> str:
    """Return a pattern of ours in words, because the bare pattern helps few people."""
    return {
        r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$": "lower-case letters, digits and `-`",
        r"^[%a-zA-Z0-9_-]+$": "letters, digits, `_`, `-` and `%`",
    }.get(pattern) or (
        "a size such as 20Gi"
        if "Ki|" in pattern
        else "a time such as 72h or 500ms"
        if "(ms|s|" in pattern
        else f"text that matches {pattern}"
    )


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


def not_one_of(value: object, allowed: Sequence[object]) -> str:
    """Return what was found in place of the *allowed* values, and the nearest of them."""
    near = _nearest(str(value), [str(item) for item in allowed])
    return f"found {found_text(value)}, expected {alternatives(allowed)}{near}"


def _nearest(name: str, names: Sequence[str]) -> str:
    by_lower = {candidate.lower(): candidate for candidate in names}
    close = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean `{by_lower[close[0]]}`?" if close else ""


def alternatives(allowed: Sequence[object]) -> str:
    """Return *allowed* as a list in words."""
    words = [str(item) for item in allowed]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


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
