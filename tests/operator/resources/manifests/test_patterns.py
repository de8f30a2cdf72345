from collections.abc import Iterator
from typing import Any

from orderlymq_operator.resources.kinds import KINDS
from orderlymq_operator.resources.manifests.patterns import described


def _patterns(schema: Any) -> Iterator[str]:
    """Yield the patterns of the values that a JSON schema describes."""
    if isinstance(schema, dict):
        if isinstance(found := schema.get("pattern"), str):
            yield found
        for each in schema.values():
            yield from _patterns(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)


def test_every_pattern_has_words() -> None:
    """Law: no problem of a manifest shows a regular expression."""
    found = {each for kind in KINDS.values() for each in _patterns(kind.model_json_schema())}

    assert len(found) > 20
    assert [each for each in sorted(found) if each in described(each)] == []
