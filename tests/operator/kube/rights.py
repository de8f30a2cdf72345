"""The chart's rights, and the right that a request to the API server needs."""

from functools import cache
from pathlib import Path
from typing import Final

import yaml

FOLDER: Final = Path(__file__).parents[3] / "charts" / "orderlymq" / "files" / "rights"
# A verb on a resource of an API group, as in RBAC.
Right = tuple[str, str, str]
OPERATOR: Final = ("namespace", "cluster", "lease", "sparkapplications")
_VERBS: Final = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_SUBRESOURCES: Final = {"status", "eviction"}


def of_rules(rules: list[dict[str, list[str]]]) -> set[Right]:
    """Return the rights that rules of a Role grant."""
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def of_file(name: str) -> set[Right]:
    """Return the rights of one file of the chart."""
    return of_rules(_rules(name))


@cache
def _rules(name: str) -> list[dict[str, list[str]]]:
    found: list[dict[str, list[str]]] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def granted() -> set[Right]:
    """Return the operator's own rights, with every option of the chart switched on."""
    return set().union(*(of_file(name) for name in OPERATOR))


def needed(method: str, path: str) -> Right:
    """Return the right that a request needs."""
    pieces = path.strip("/").split("/")
    group = "" if pieces[0] == "api" else pieces[1]
    rest = pieces[2:] if pieces[0] == "api" else pieces[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    resource = rest[0]
    if rest[-1] in _SUBRESOURCES and len(rest) > 2:
        resource = f"{resource}/{rest[-1]}"
    if method == "GET":
        return group, resource, "get" if len(rest) > 1 else "list"
    return group, resource, _VERBS[method]
