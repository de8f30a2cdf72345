"""The operator reads reports of pods as hostile input."""

import json
from typing import Any

import pytest

from orderlymq_operator.plan.backups.report import BackupReport, FailureReport, read_report

GOOD: dict[str, Any] = {
    "id": "20260101T000000000Z-00000000",
    "cluster": "demo",
    "beganMs": 1,
    "endedMs": 2,
    "spreadMs": 0,
    "salvaged": False,
    "verified": True,
    "sizeBytes": 3,
    "newBytes": 3,
    "files": 1,
    "groups": [["0", 7, 1, 3]],
}


def test_a_report_is_read_and_an_error_is() -> None:
    found = read_report(json.dumps(GOOD))

    assert isinstance(found, BackupReport)
    assert found.groups == (("0", 7, 1, 3),)
    assert read_report('{"error": "no room"}') == FailureReport(error="no room")


@pytest.mark.parametrize(
    "group", ["broker_a", "Broker-A", "orders.eu", "broker-", "größe", "g" * 255]
)
def test_a_backup_of_groups_that_a_person_named_is_read(group: str) -> None:
    """Law: a report may have any printable group name, because a backup of another cluster can be restored here."""
    end = group.rpartition("-")[2]

    found = read_report(json.dumps({**GOOD, "groups": [[end, 7, 1, 3]]}))

    assert isinstance(found, BackupReport)
    assert found.groups == ((end, 7, 1, 3),)


@pytest.mark.parametrize(
    "change",
    [
        {"id": "../../etc"},
        {"id": "20260101T000000000Z-00000000\n"},
        {"sizeBytes": -1},
        {"sizeBytes": "3"},
        {"endedMs": 2**62},
        {"groups": [["0", 7, 1]]},
        {"groups": [["0\n", 7, 1, 3]]},
        {"groups": [["\x1b[2J", 7, 1, 3]]},
        {"groups": [["g" * 256, 7, 1, 3]]},
        {"groups": [["0", 7, 1, 3]] * 65},
        {"more": 1},
        {"cluster": ""},
    ],
    ids=str,
)
def test_anything_else_says_nothing(change: dict[str, Any]) -> None:
    """Law: one unknown field, value out of range or wrong type makes the whole report unreadable."""
    assert read_report(json.dumps({**GOOD, **change})) is None


@pytest.mark.parametrize(
    "text", ["", "x", "[]", "{}", '{"error": ""}', "9" * 5000, '{"error":' * 400]
)
def test_text_says_nothing(text: str) -> None:
    assert read_report(text) is None
