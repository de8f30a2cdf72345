"""Texts of messages and clients reach the terminal as text and never control it."""

import json
from pathlib import Path
from typing import Any

import pytest

from orderlymq.cli import session
from orderlymq.cli.findings import lines
from orderlymq.cli.printer import print_message
from orderlymq.cli.session import iso, print_table, say
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.message.properties import SHARDING_KEY
from tests.client.messages import message

EVIL = "a\x1b]0;x\x07\x9b2J\x7fb"
SHOWN = "a\\x1b]0;x\\x07\\x9b2J\\x7fb"


def evil() -> ReceivedMessage:
    """Return a message whose key and body contain terminal control sequences."""
    found = message(0)
    found.body = EVIL.encode()
    found.properties[SHARDING_KEY] = EVIL
    return found


def test_a_time_out_of_range_is_a_number() -> None:
    """Law: a time out of range is shown as a number, so that one wrong message does not hide others."""
    assert iso(2**63 - 1) == str(2**63 - 1)
    assert iso(0) is None
    assert (iso(1_767_225_600_000) or "").startswith("202")
    found: dict[str, Any] = {
        kind: [] for kind in ("failing", "expiring", "disagreeing", "duplicates")
    }
    blocked: dict[str, Any] = dict.fromkeys(
        ("group", "topic", "queue", "offset", "messageId", "key", "holder"), "x"
    )
    said = lines({**found, "blocked": [{**blocked, "since": 2**62, "listenerCalled": 2**62}]})
    assert str(2**62) in said[0]


def test_control_characters_are_shown_and_not_sent(capsys: pytest.CaptureFixture[str]) -> None:
    """Law: control characters are escaped in cells, lines and messages."""
    print_table("", ["NAME"], [[EVIL], ["two\nlines"]])
    say(f"{EVIL}\n\tnext")
    print_message(evil(), as_json=False)

    out = capsys.readouterr().out
    assert out.count(SHOWN) == 4
    assert "two\\x0alines" in out
    assert "\n\tnext" in out
    assert not {*EVIL} - {*"ab]0;x2J"} & {*out}


def test_json_stays_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Law: JSON contains the original text, escaped so that a terminal shows it."""
    print_message(evil(), as_json=True)

    out = capsys.readouterr().out
    found = json.loads(out)
    assert (found["key"], found["body"]) == (EVIL, EVIL)
    assert out.strip().isprintable()


def test_every_text_of_a_command_goes_through_one_place() -> None:
    """Law: all output of commands goes through `session`, except warnings about plug-ins and completion scripts."""
    folder = Path(session.__file__).parent
    past = [
        path.name
        for path in folder.rglob("*.py")
        if path.name not in ("session.py", "table.py", "completion.py")
        and "click.echo(" in path.read_text()
    ]
    assert past == []
