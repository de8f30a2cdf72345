"""The form of a log line."""

import json
import logging
import sys

import pytest

from orderlymq_runtime.process import logs
from orderlymq_runtime.process.logs import JsonFormatter, TextFormatter


def record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    entry = logging.LogRecord(
        "orderlymq.connection.routes", logging.WARNING, "f.py", 1, message, args, None
    )
    entry.created = 1_700_000_000.5
    entry.__dict__.update(extra)
    return entry


def test_a_text_line_holds_time_level_process_module_message_and_facts() -> None:
    """Law: one event is one text line with time, level, process, module, message and facts;
    a message cannot forge a second line.
    """
    line = TextFormatter("broker a-0").format(record("lost %s", "x\ny", group="a", term=3))

    assert line == ("2023-11-14T22:13:20.500Z WARNING broker a-0 routes: lost x\\ny group=a term=3")


def test_nothing_that_a_stranger_sends_begins_a_line_or_controls_a_terminal() -> None:
    """Law: a stranger's text in a message, fact or exception can neither begin a line nor control a terminal."""
    forged = "x\n{1\r{2\x1b[2J\u2028{3\x85{4\v{5"
    entry = record("lost %s", forged, key=forged)
    try:
        raise ValueError(forged)
    except ValueError:
        entry.exc_info = sys.exc_info()

    line = TextFormatter("broker a-0").format(entry)

    assert not [each for each in line.splitlines()[1:] if not each.startswith(" ")]
    assert line.replace("\n", "").isprintable()
    assert line.count("{1\\r{2\\x1b[2J\\u2028{3\\x85{4\\x0b{5") == 3

    line = JsonFormatter("broker a-0").format(entry)

    assert line.isprintable()
    assert json.loads(line)["key"] == forged


def test_a_json_line_holds_bytes_that_are_no_text() -> None:
    """Law: a JSON line can hold bytes that are not text (lone surrogates, as in a request's path)."""
    line = JsonFormatter("broker a-0").format(record("lost %s", "\udcff"))

    assert json.loads(line)["message"] == "lost \udcff"


def test_a_json_line_is_one_object_whatever_it_is_given() -> None:
    """Law: a JSON line is one object, even with exceptions and with values that have no JSON form."""
    try:
        raise ValueError("broken")
    except ValueError:
        exc_info = sys.exc_info()
    entry = record(
        "lost %s",
        "x",
        replicas={
            1,
        },
        peers={2: "b"},
    )
    entry.exc_info = exc_info

    line = JsonFormatter("broker a-0").format(entry)
    fields = json.loads(line)

    assert "\n" not in line
    assert fields.pop("exception").endswith("ValueError: broken")
    assert fields == {
        "time": "2023-11-14T22:13:20.500Z",
        "level": "WARNING",
        "process": "broker a-0",
        "logger": "orderlymq.connection.routes",
        "message": "lost x",
        "replicas": "{1}",
        "peers": {"2": "b"},
    }


def test_configuring_twice_writes_each_line_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Law: configuring the log twice writes each line once, at the last level."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        logs.configure("debug", "json", "one")
        logs.configure("info", "text", "two")
        logging.getLogger("a.b").info("seen")
        logging.getLogger("a.b").debug("not seen")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("INFO    two b: seen")
    with pytest.raises(ValueError, match="Unknown level"):
        logs.configure("loud", "text", "x")
