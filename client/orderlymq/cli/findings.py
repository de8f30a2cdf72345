"""
Findings of the brokers about a group, for `orderlymq group show`. Pure.

Rule: producers and consumers choose ids and keys, so none of these begins a line or is read as part of a command.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from orderlymq.cli.session import one_line
from orderlymq_protocol.findings import words

#: Kinds of findings in a broker's status that name one group.
_OF_GROUP: Final = ("blocked", "failing", "expiring", "disagreeing")
# More lines than this would push the table of queues off the screen.
_SHOWN_MAX: Final = 10
# Causes come before what follows from them.
_LABELS: Final = {
    "disagreeing": "Members disagree",
    "duplicates": "Two clients with one id",
    "blocked": "Blocked",
    "failing": "Failing",
    "expiring": "Expiring",
}


def findings(statuses: Iterable[Mapping[str, Any]], group: str) -> dict[str, Any]:
    """Return the findings of the brokers about *group*; ``lagSeconds`` is None if no broker reports it."""
    found: dict[str, Any] = {"lagSeconds": None, **{kind: [] for kind in _OF_GROUP}}
    found["duplicates"] = []
    for status in statuses:
        watch = status.get("watch")
        if not isinstance(watch, Mapping):
            continue  # a RocketMQ broker, or one of an earlier release
        ages = [row["seconds"] for row in watch.get("lag", []) if row["group"] == group]
        found["lagSeconds"] = max([found["lagSeconds"] or 0.0, *ages])
        for kind in _OF_GROUP:
            found[kind] += [row for row in watch.get(kind, []) if row["group"] == group]
        found["duplicates"] += [
            row for row in watch.get("duplicates", []) if group in row["groups"]
        ]

    return found


def lines(found: Mapping[str, Any]) -> list[str]:
    """Return the findings as lines of text, each with what to do."""
    said = [
        f"{label}: {' '.join(words(kind, row))}"
        for kind, label in _LABELS.items()
        for row in found[kind]
    ]
    left = len(said) - _SHOWN_MAX

    return [one_line(each) for each in said[:_SHOWN_MAX]] + (
        [f"And {left} more; --output json shows all."] if left > 0 else []
    )
