"""
`docs/evidence/java-api.md`: every public method of RocketMQ's Java clients next to ours.

`python -m tests.client.parity.table` writes the tables again, from ``methods.json`` and the rules of
``ours.py``; the text above the mark in the document is written by hand.
"""

import dataclasses
import json
from pathlib import Path
from typing import Final, NamedTuple

import orderlymq
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.settings import ClientSettings, ProducerSettings
from tests.client.parity.java import HERE, VERSIONS
from tests.client.parity.ours import OURS

PAGE: Final = HERE.parents[2] / "docs" / "evidence" / "java-api.md"
MARK: Final = "<!-- tables: python -m tests.client.parity.table -->"
_PREFIXES: Final = ("get", "set", "is")
_SETTINGS: Final[dict[str, tuple[type, ...]]] = {
    "DefaultMQProducer": (ProducerSettings, ClientSettings),
    "DefaultMQPushConsumer": (ConsumerSettings, ClientSettings),
    "DefaultLitePullConsumer": (ClientSettings,),
    "DefaultMQPullConsumer": (ClientSettings,),
    "ClientConfig": (ClientSettings,),
}


class Row(NamedTuple):
    """A method of Java: its versions, its name here, and why it differs."""

    method: str
    versions: tuple[str, ...]
    ours: tuple[str, ...]
    why: str

    @property
    def state(self) -> str:
        """Whether it is the same, named differently or left out."""
        if not self.ours:
            return "left out"
        last = self.ours[0].rpartition(".")[2].replace("_", "").lower()
        return "same" if last == self.method.lower() else "named differently"


def java_methods() -> dict[str, dict[str, list[str]]]:
    """Return by class and method the versions of Java's client that have it."""
    found: dict[str, dict[str, list[str]]] = json.loads((HERE / "methods.json").read_text())
    return found


def rows(name: str) -> list[Row]:
    """Return the rows of one class, sorted by method.

    Raises:
        KeyError: a method has no rule.
    """
    rules = {method: (ours, why) for methods, ours, why in OURS[name] for method in methods.split()}
    found = []
    for method, versions in sorted(java_methods()[name].items()):
        ours, why = rules.get(method) or _setting(name, method)
        found.append(Row(method, tuple(versions), tuple(ours.split()), why))
    return found


def resolve(name: str) -> object:
    """Return what a name below ``orderlymq`` means, such as ``Producer.send``.

    Raises:
        AttributeError: there is no such thing.
    """
    first, _, rest = name.partition(".")
    found: object = getattr(orderlymq, first)
    if rest and rest not in getattr(found, "__dataclass_fields__", {}):
        found = getattr(found, rest)
    return found


def rocketmq_names(settings_type: type) -> dict[str, str]:
    """Return RocketMQ's name of every key of a settings class that has one."""
    return {
        declared.name: declared.metadata["rocketmq"]
        for declared in dataclasses.fields(settings_type)
        if declared.metadata.get("rocketmq")
    }


def _setting(name: str, method: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        bare = method.removeprefix(prefix)
        if bare != method and bare[:1].isupper():
            wanted = bare if bare.startswith("TLS") else bare[0].lower() + bare[1:]
            for settings in _SETTINGS.get(name, ()):
                for field, theirs in rocketmq_names(settings).items():
                    if theirs.lower() == wanted.lower():
                        return (
                            f"{settings.__name__}.{field}",
                            "a setting, fixed when a client is created",
                        )
    raise KeyError(f"{name}.{method} has no rule in tests/client/parity/ours.py")


def text() -> str:
    """Return the tables."""
    lines = [MARK, ""]
    for name in OURS:
        lines += [
            f"## {name}",
            "",
            "| Java | versions | ours | note |",
            "| --- | --- | --- | --- |",
        ]
        for row in rows(name):
            since = "" if row.versions == VERSIONS else f"{row.versions[0]} only"
            ours = ", ".join(f"`{each}`" for each in row.ours) or "left out"
            why = row.why or ("" if row.state == "same" else "the name that Python uses")
            lines.append(f"| `{row.method}` | {since} | {ours} | {why} |")
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the page."""
    head, _, _ = PAGE.read_text().partition(MARK)
    Path(PAGE).write_text(head + text())


if __name__ == "__main__":
    main()
