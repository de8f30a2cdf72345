"""Findings in words: the log, the command and the console use the same words for a finding."""

from typing import Any

import pytest

from orderlymq_protocol.findings import FINDINGS, words

FAILING = {
    "group": "billing",
    "topic": "orders",
    "messageId": "ID;ls",
    "key": None,
    "tries": 3,
    "dead": True,
}
BLOCKED = {
    "group": "billing",
    "topic": "orders",
    "queue": 3,
    "offset": 17,
    "since": 1_700_000_000_000,
    "holder": None,
    "messageId": "ID1",
    "key": "order-7",
}


def test_a_finding_is_a_sentence_and_a_cure() -> None:
    """A message without a key shows "none", and the command quotes a producer's id so that a shell reads one word."""
    assert words("failing", FAILING) == (
        "In group billing message ID;ls of orders, key none, failed 3 times, a dead letter, which `orderlymq message "
        "resend` sends again.",
        "`orderlymq message show 'ID;ls' --topic orders`",
    )


@pytest.mark.parametrize(
    ("more", "cure"),
    [
        ({"connected": False, "leaseMillis": 60_000}, "lease of 60 s ends"),
        ({"byKey": True}, "drops all messages that still wait in lanes"),
        ({"listenerRunning": True}, "its stack in the console"),
        ({}, "`orderlymq group reset`"),
    ],
)
def test_the_cure_of_a_queue_that_stands_still_depends_on_its_holder(
    more: dict[str, Any], cure: str
) -> None:
    """Advice names a log only if the holder is connected, and a stack only if its listener runs."""
    sentence, advice = words("blocked", {**BLOCKED, **more})

    assert "at offset 17 since 2023-11-14T22:13:20+00:00" in sentence
    assert "held by nobody; its consumer reports nothing about its listener." in sentence
    assert cure in advice


def test_what_clients_write_is_never_read_as_a_format() -> None:
    """Braces in a key are not treated as placeholders."""
    sentence, _ = words("failing", {**FAILING, "key": "{dead}"})

    assert "key {dead}, failed" in sentence


@pytest.mark.parametrize("kind", FINDINGS)
def test_the_subject_of_a_finding_stands_in_its_words(kind: str) -> None:
    """Findings with different subjects have different sentences."""
    found = FINDINGS[kind]

    assert all(f"{{{name}" in found.sentence for name in found.subject if name != "dead")
