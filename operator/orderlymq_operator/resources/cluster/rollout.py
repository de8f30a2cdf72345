"""
What a changed field of a Cluster restarts; the CRD says it after each description.

Rule: a field that is not listed restarts brokers. A test changes every field and compares this table with the
revisions that decide which pods are replaced.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal, TypeAlias

from orderlymq_protocol.brokerkeys import BROKER_KEYS, Use

Restarts: TypeAlias = Literal["nothing", "brokers", "name servers", "brokers and name servers"]

# Settings that brokers of every image since 0.1.0 reload from their file while they run.
LIVE_SETTINGS: Final = (
    "retention.time",
    *(f"config.{name}" for name, key in BROKER_KEYS.items() if key.use is Use.LIVE),
)
# By dotted path below spec; a path includes everything below it.
_RESTARTS: Final[dict[str, Restarts]] = {
    **dict.fromkeys(LIVE_SETTINGS, "nothing"),
    "groups": "nothing",
    "replicasPerGroup": "nothing",
    "storage.deleteClaim": "nothing",
    "lock.takeover": "nothing",
    "security.profile": "nothing",
    "network": "nothing",
    "allowedNamespaces": "nothing",
    "imagePullPolicy": "nothing",
    "imagePullSecrets": "nothing",
    "console": "nothing",
    "canary": "nothing",
    "update": "nothing",
    "scaleDown": "nothing",
    "nameServers.resources": "name servers",
    "tls": "brokers and name servers",
    "security.pagesToken": "brokers and name servers",
    "config.logLevel": "brokers and name servers",
    "config.logFormat": "brokers and name servers",
    "image": "brokers and name servers",
    "placement": "brokers and name servers",
    "podTemplate": "brokers and name servers",
}
# Fields that restart brokers only together with another field, or not by the revision; the description says how.
SPECIAL: Final[dict[str, str]] = {
    "storage.size": "A change restarts brokers unless retention.size is set.",
    "storage.autoGrow": "A change of limit restarts brokers unless retention.size is set.",
    "security.internalTls": "",
    "listeners": "A change of name, port, tls or ipFamilyPolicy restarts brokers and name servers; other changes restart "
    "nothing.",
    "security.internalIssuer": "A change restarts brokers.",
}
LIVE: Final = "Live: a change restarts nothing."
# The field's own description says so.
_TWICE: Final = "A change restarts each replica twice."
# These fields cannot be changed.
FIXED: Final = frozenset({"local", "storage.className", "bootstrap"})


def restarts(path: str) -> Restarts:
    """Return what a change of the field at *path* restarts."""
    return _RESTARTS.get(_known(path, _RESTARTS), "brokers")


def describe_rollout(spec: dict[str, Any]) -> None:
    """Append to the description of each field of a Cluster's *spec* (a schema) what its change restarts."""
    for names, part in _fields(spec, ()):
        if "description" in part:
            part["description"] = f"{part['description']} {_sentence('.'.join(names))}".rstrip()


def restart_sentences(spec: dict[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield each field of a Cluster's *spec* (a schema) as a path of names, with the sentence about its change."""
    for names, _ in _fields(spec, ()):
        yield names, _sentence(".".join(names)) or _TWICE


def _fields(
    node: dict[str, Any], above: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    for name, part in node.get("properties", {}).items():
        names = (*above, name)
        where = ".".join(names)
        if _known(where, FIXED):
            continue
        if part.get("properties") and where not in _RESTARTS and where not in SPECIAL:
            yield from _fields(part, names)
        else:
            yield names, part


def _sentence(path: str) -> str:
    special = _known(path, SPECIAL)
    if special:
        return SPECIAL[special]
    found = restarts(path)
    return LIVE if found == "nothing" else f"A change restarts {found}."


def _known(path: str, table: Any) -> str:
    """Return the listed path that is *path* or above it; empty if there is none."""
    parts = path.split(".")
    heads = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((head for head in heads if head in table), "")
