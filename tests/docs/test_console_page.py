"""
docs/reference/console.md lists the addresses below the console's `/api`, with their parameters and answers.

`python -m tests.docs.test_console_page` writes the page again.
"""

import inspect
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

from pydantic import BaseModel
from pydantic.alias_generators import to_camel

from orderlymq_console.models import AuditPage
from orderlymq_console.web.views import VIEWS

PAGE: Final = Path(__file__).parents[2] / "docs" / "reference" / "console.md"
HEAD: Final = """\
# JSON of the console

Each page of [the console](../howto/console.md) has its JSON under `/api`, made from the same model. This page is generated: `python -m tests.docs.test_console_page`.

```sh
curl -s -H "Authorization: Bearer $TOKEN" http://127.0.0.1:9870/api/blocked
```

A console on a loopback address needs no token for this, but for the audit log. Times that end with `Ms` are of UTC, in milliseconds since the epoch; what ends with `Seconds` is an age or a
span. A number that may be unknown is a [Figure](#figure). A refused request has the status 400, an unknown address 404, and the text says why.

The figures come from [`AdminClient`](python.md#administration), which the commands use, too: `/api/groups/GROUP` has what `orderlymq group show` prints, and
`/api/key` what `orderlymq explain` prints. `tests/console/pages/test_equal.py` compares them.

## Addresses

| address | parameters | answer |
|---|---|---|
"""
#: The parameters that may follow the question mark.
PARAMETERS: Final = {
    "/topics": "`q`: a part of the name; `system=1`: the system's, too; `page`",
    "/groups": "`q`, `system=1`, `page`",
    "/dead-letters": "`q`, `page`",
    "/topics/{topic}/messages": "`queue=BROKER:N`; `offset` or `time`; `key`; `count`; `form`: auto, text, json, hex",
    "/groups/{group}/member": "`client`: its client id",
    "/key": "`topic`, `key`",
    "/message": "`topic`; `queue=BROKER:N` and `offset`, or `id`; `form`",
}
_PLAIN: Final = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    type(None): "null",
}


def page() -> str:
    """Return the whole page."""
    rows = [
        (view.path, f"/api{view.name}", typing.get_type_hints(view.build)["return"])
        for view in VIEWS
    ]
    rows.append(("/audit", "/api/audit", AuditPage))
    lines = [HEAD]
    for path, address, model in rows:
        shown = re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), address)
        lines.append(f"| `{shown}` | {PARAMETERS.get(path, '')} | {_linked(model)} |\n")
    found: dict[str, type[BaseModel]] = {}
    for _, _, model in rows:
        _collect(model, found)
    for name in sorted(found):
        lines += _section(found[name])

    return "".join(lines)


def _section(model: type[BaseModel]) -> Iterator[str]:
    about, meanings = _docstring(model)
    yield f"\n## {model.__name__}\n\n{about}\n\n| member | type | meaning |\n|---|---|---|\n"
    for name, field in model.model_fields.items():
        meaning = meanings.get(name, "")
        yield f"| `{to_camel(name)}` | {_type(field.annotation)} | {meaning} |\n"


def _docstring(model: type[BaseModel]) -> tuple[str, dict[str, str]]:
    """Return the docstring of a model and of its members, including those of its bases."""
    meanings: dict[str, str] = {}
    about = ""
    for each in reversed(model.__mro__):
        if not issubclass(each, BaseModel) or each is BaseModel:
            continue
        about, _, members = inspect.cleandoc(each.__doc__ or "").partition("\nAttributes:\n")
        for names, text in re.findall(
            r"^    ([a-z_, ]+): (.*(?:\n {8,}.*)*)", members, re.MULTILINE
        ):
            for name in names.split(", "):
                meanings[name] = _named(" ".join(text.split()), model)
    return _named(" ".join(about.split()), model), meanings


def _named(text: str, model: type[BaseModel]) -> str:
    """Return the names of members, and None, as JSON writes them."""
    text = re.sub(
        r"\*(\w+)\*",
        lambda found: f"`{to_camel(found[1])}`" if found[1] in model.model_fields else found[0],
        text,
    )
    return re.sub(r"\bNone\b", "null", text).replace("|", "\\|")


def _type(kind: object) -> str:
    """Return the name of a type for readers of JSON."""
    origin, parts = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return ", ".join(f"`{part}`" for part in parts)
    if origin in (types.UnionType, typing.Union):
        return " or ".join(_type(part) for part in parts)
    if origin is tuple:
        return f"list of {_type(parts[0])}"
    if origin is dict:
        return f"object of {_type(parts[1])}"
    return _PLAIN[kind] if kind in _PLAIN else _linked(kind)


def _linked(model: object) -> str:
    assert isinstance(model, type)
    return f"[{model.__name__}](#{model.__name__.lower()})"


def _collect(kind: object, found: dict[str, type[BaseModel]]) -> None:
    """Add every model that is reached from one."""
    for part in typing.get_args(kind):
        _collect(part, found)
    if isinstance(kind, type) and issubclass(kind, BaseModel) and kind.__name__ not in found:
        found[kind.__name__] = kind
        for field in kind.model_fields.values():
            _collect(field.annotation, found)


def test_the_page_is_what_the_code_writes() -> None:
    """Run `python -m tests.docs.test_console_page` when this fails."""
    assert PAGE.read_text() == page()


def test_parameters_get_addresses_that_exist() -> None:
    """The row of a removed address must be removed, too."""
    assert set(PARAMETERS) <= {view.path for view in VIEWS}


if __name__ == "__main__":
    PAGE.write_text(page())
