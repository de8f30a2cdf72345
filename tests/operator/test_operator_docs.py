"""
The reference of manifests, conditions and alerts agrees with the code.

`python -m tests.operator.test_operator_docs` writes the tables again; the text around them is written by hand.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from orderlymq_operator.kube.reconcile.writer import QUIET, ROOM
from orderlymq_operator.resources import crd
from orderlymq_operator.resources.conditions.table import REASONS
from orderlymq_operator.resources.kinds import KINDS

ROOT: Final = Path(__file__).parents[2]
_REFERENCE: Final = ROOT / "docs" / "reference"
MANIFESTS: Final = _REFERENCE / "manifests.md"
CONDITIONS: Final = _REFERENCE / "conditions.md"
ALERTS: Final = _REFERENCE / "alerts.md"
# The end of a description about a change of the field and everything below it.
_RESTARTS: Final = re.compile("(?:Live: a|A) change restarts [^A-Z]*$")
_ALERTS: Final = ROOT / "charts" / "orderlymq" / "files" / "alerts.yaml"


# What each alert means, and whether users of the Cluster notice.
_IN_WORDS: Final = {
    "OrderlyMQGroupWithoutLeader": (
        "a broker group has no leader",
        "yes: sends to its queues fail, and their consumers get nothing",
    ),
    "OrderlyMQReplicaLags": ("a replica is more than 10,000 log entries behind", "no"),
    "OrderlyMQReplicaMissing": (
        "a broker group has fewer healthy replicas than declared",
        "no; one further loss may stop the group",
    ),
    "OrderlyMQDiskFills": (
        "a broker's disk is more than 85 % full",
        "at `config.diskMaxUsedSpaceRatio` (90 %): sends are refused",
    ),
    "OrderlyMQClockDiffers": (
        "a clock differs by more than a minute from those of a majority of its group",
        "no",
    ),
    "OrderlyMQClockUnconfirmed": ("no majority of its group confirms a clock", "no"),
    "OrderlyMQSlowDisk": (
        "one of a hundred synced writes takes longer than 0.1 s",
        "if it is the disk of a leader or of a majority: sends are slow",
    ),
    "OrderlyMQFrequentLeaderElections": (
        "a broker group had more than five elections in ten minutes",
        "yes: each one interrupts the group, for about 0.3 s with a free CPU",
    ),
    "OrderlyMQStoreStalls": ("the store slows writes down or stops them", "yes: sends are slow"),
    "OrderlyMQTakeoverSlow": (
        "the queues of dead consumers became free only after more than 5 s",
        "yes: the messages of these queues wait",
    ),
    "OrderlyMQCertificateEndsSoon": (
        "replicas run with certificates that expire soon",
        "when they expire: the group loses its leader",
    ),
    "OrderlyMQOperatorResyncStale": (
        "the operator has not read all objects for too long",
        "not directly: changes, repairs and early take-overs may stop",
    ),
    "OrderlyMQNamespaceNotServed": (
        "the operator cannot read a namespace that it should serve",
        "not directly: nothing is changed or repaired there",
    ),
    "OrderlyMQOperatorFails": (
        "reconciles of the operator end with errors",
        "not directly: changes and repairs may wait",
    ),
    "OrderlyMQNoOperatorLeads": (
        "no operator leads",
        "not directly: nothing is changed or repaired, and queues of dead consumers wait for the lease",
    ),
    "OrderlyMQScheduledBackupFails": (
        "a schedule makes no backups: the last one failed, or no new one begins",
        "no",
    ),
    "OrderlyMQHalfMessagesGivenUp": (
        "a broker group gave up transactions because no producer answered",
        "yes: consumers do not get these messages",
    ),
    "OrderlyMQOrderBroken": (
        "the canary found a violation: wrong order, a lost message, or two holders of a queue",
        "probably: your own messages may be affected, too",
    ),
    "OrderlyMQOrderNotVerified": (
        "the canary cannot check the order",
        "if sends fail or nothing is delivered; not if the canary is silent",
    ),
    "OrderlyMQCanaryBudgetBurns": (
        "too many messages of the canary fail or are late",
        "yes: messages are late or fail",
    ),
    "OrderlyMQClusterNotReady": ("a Cluster is not Ready", "the reason of `Ready` says it"),
    "OrderlyMQClusterNotScraped": (
        "Prometheus gets no metrics of a Cluster",
        "no; but no other alert about its queues can fire",
    ),
    "OrderlyMQQueueBlocked": (
        "a consumer group makes no progress in a queue",
        "yes: the messages of the queue wait",
    ),
    "OrderlyMQKeyParkedLong": (
        "a held key has waited for a release for more than an hour",
        "yes: its later messages wait (by key) or become dead letters (by queue)",
    ),
    "OrderlyMQLaneStuck": (
        "a key lane has been in hand, ready or dead-lettering for more than ten minutes",
        "yes: the messages of its keys wait",
    ),
}


def _fields(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    # An object's default includes those of its fields; a field's own default counts if the object is given.
    given = schema.get("default", {})
    for name, own in schema.get("properties", {}).items():
        here = f"{path}.{name}"
        part = {**own, "default": given[name]} if given.get(name) else own
        if "properties" in part:
            about_all = _RESTARTS.search(part.get("description", ""))
            for path_below, below in _fields(part, here):
                text = below.get("description", "")
                if about_all is not None and not _RESTARTS.search(text):
                    text = f"{text} {about_all[0]}"
                yield path_below, {**below, "description": text}
        elif part.get("type") == "array" and "properties" in part["items"]:
            yield here, part
            yield from _fields(part["items"], f"{here}[]")
        else:
            yield here, part


def _default(part: dict[str, Any]) -> str:
    if "default" not in part or part["default"] in ([], {}, ""):
        return ""
    value = part["default"]
    if isinstance(value, dict):
        return f"`{json.dumps(value)}`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _form(part: dict[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(_code(str(value)) for value in part["enum"])
    if "type" not in part:
        return "number or text"
    if part["type"] == "integer":
        return f"{part.get('minimum', '')} to {part.get('maximum', '')}"
    kind = str(part["type"])
    return {"string": "text", "object": "map", "array": "list"}.get(kind, kind)


def _code(value: str) -> str:
    """Return a value as code; a bar in it would end the table's cell."""
    return f"<code>{value.replace('|', '&#124;')}</code>" if "|" in value else f"`{value}`"


def fields_table(kind: str) -> str:
    """Return the table of the fields of a kind's spec."""
    spec = crd.schema(kind)["properties"]["spec"]
    rows = ["| field | form | default | meaning |", "| --- | --- | --- | --- |"]
    for path, part in _fields(spec, "spec"):
        text = part.get("description", "").replace("|", "\\|")
        rows.append(f"| `{path}` | {_form(part)} | {_default(part)} | {text} |")
    return "\n".join(rows)


def reasons_table() -> str:
    """Return the table of the reasons of conditions."""
    rows = [
        "| reason | condition | status | of | meaning | what to do |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    rows += [
        f"| `{reason.name}` | {', '.join(reason.conditions)} | {reason.status} | "
        f"{', '.join(reason.kinds)} | {reason.meaning} | {reason.cure or '-'} |"
        for reason in REASONS
    ]
    return "\n".join(rows)


def events_table() -> str:
    """Return the table of the reasons of events, by their type."""
    rows = ["| type | reasons |", "| --- | --- |"]
    for kind, warns in (("Normal", False), ("Warning", True)):
        told = [
            f"`{reason.name}`"
            for reason in REASONS
            if {"Ready", *ROOM} & set(reason.conditions)
            and (reason.status != "True" and bool(reason.cure)) is warns
            and reason.name not in {*QUIET, "Pending"}
        ]
        rows.append(f"| {kind} | {', '.join(told)} |")
    return "\n".join(rows)


def alerts_table() -> str:
    """Return the table of the alerts, critical ones first: what each means, and whether users notice."""
    rows = [
        "| alert | severity | meaning | for | do users notice? |",
        "| --- | --- | --- | --- | --- |",
    ]
    for alert in sorted(_alerts(), key=lambda each: each["labels"]["severity"] != "critical"):
        name, severity = alert["alert"], alert["labels"]["severity"]
        meaning, noticed = _IN_WORDS[name]
        lasting = "" if alert["for"] == "0s" else alert["for"]
        rows.append(
            f"| [{name.removeprefix('OrderlyMQ')}](#{name.lower()}) | {severity} | {meaning} | {lasting} | {noticed} |"
        )
    return "\n".join(rows)


def thresholds_table() -> str:
    """Return the table of the exact expressions by which alerts fire."""
    rows = ["| alert | severity | fires when | for |", "| --- | --- | --- | --- |"]
    for alert in _alerts():
        when = _code(re.sub(r"\s+", " ", alert["expr"]).strip())
        name, severity = alert["alert"], alert["labels"]["severity"]
        rows.append(f"| [{name}](#{name.lower()}) | {severity} | {when} | {alert['for']} |")
    return "\n".join(rows)


def tables() -> dict[Path, dict[str, str]]:
    """Return each generated table, by page and marker's name."""
    return {
        MANIFESTS: {f"fields of {kind}": fields_table(kind) for kind in KINDS},
        CONDITIONS: {"reasons": reasons_table(), "events": events_table()},
        ALERTS: {"alerts": alerts_table(), "thresholds": thresholds_table()},
    }


def page(path: Path) -> str:
    """Return a page with the tables that the code gives."""
    text = path.read_text()
    for name, table in tables()[path].items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        text, count = re.subn(pattern, rf"\g<1>{_escaped(table)}\n\g<2>", text, flags=re.DOTALL)
        assert count == 1, f"{path.name} has no place for {name}"
    return text


def _escaped(table: str) -> str:
    return table.replace("\\", "\\\\")


def _alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load(_ALERTS.read_text())["groups"]
    return [alert for group in groups for alert in group["rules"]]


@pytest.mark.parametrize("path", list(tables()), ids=lambda path: path.name)
def test_the_tables_of_the_page_are_those_of_the_code(path: Path) -> None:
    """Law: the pages have the code's tables; run `python -m tests.operator.test_operator_docs` after a change."""
    assert path.read_text() == page(path)


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """Law: each alert has a runbook section under its anchor, and each section an alert."""
    sections = set(re.findall(r"^## (OrderlyMQ\w+)$", ALERTS.read_text(), re.MULTILINE))

    assert sections == {alert["alert"] for alert in _alerts()}
    for alert in _alerts():
        anchor = alert["annotations"]["runbook_url"].partition("#")[2]
        assert anchor == alert["alert"].lower()


def test_an_image_that_cannot_be_pulled_may_lack_the_secret_of_its_registry() -> None:
    """Law: the cure for an image that cannot be pulled names spec.imagePullSecrets, which each kind with that reason has."""
    (reason,) = (each for each in REASONS if each.name == "ImageUnavailable")

    assert "spec.imagePullSecrets" in reason.cure
    for kind in reason.kinds:
        fields = dict(_fields(crd.schema(kind)["properties"]["spec"], "spec"))
        assert "spec.imagePullSecrets" in fields


if __name__ == "__main__":
    for each in tables():
        each.write_text(page(each))
