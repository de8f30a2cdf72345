"""The `orderlymq` command without a cluster: plug-ins, usage, exit codes, the oracle."""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from orderlymq.cli import cli
from orderlymq.cli import table as command_line
from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.session import CommandFailed, exit_code, parse_moment, reporting
from orderlymq.errors import (
    BrokerError,
    BrokerUnreachable,
    NameServersUnreachable,
    SendRefused,
    SendUnknown,
    SettingError,
    TopicNotFound,
)
from orderlymq_protocol.body.catalogue import TopicConfigTable
from orderlymq_protocol.frame.codec import encode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.header.catalogue import OffsetResponseHeader
from orderlymq_protocol.message.record import decode_record
from tests.client.cli.test_pipes import BUFFERED

NOBODY = "127.0.0.1:1"
SENT: list[dict[str, object]] = [
    {"kind": "send", "message": "m1"},
    {"kind": "ack", "message": "m1", "offset": 0},
]
KEPT: list[dict[str, object]] = [
    *SENT,
    {"kind": "deliver", "message": "m1", "offset": 0, "group": "G", "client": "c"},
]
STORED: dict[str, object] = {"kind": "stored", "message": "m1", "offset": 0}
BROKEN: list[dict[str, object]] = [*SENT, {"kind": "scanned"}]


def test_the_help_lists_every_command() -> None:
    """Law: the help lists the own commands and those of other packages together."""
    result = CliRunner().invoke(cli, ["--help"])

    assert result.exit_code == 0
    for name in ("status", "topic", "send", "consume", "group", "message", "verify"):
        assert f"  {name} " in result.stdout


def test_an_interrupt_while_a_command_is_loaded_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Law: an interrupt while a command is being loaded ends with 130 and no output."""
    (tmp_path / "orderlymq_slow_module.py").write_text("raise KeyboardInterrupt")
    monkeypatch.syspath_prepend(str(tmp_path))
    slow = EntryPoint("slow", "orderlymq_slow_module:run", "orderlymq.commands")
    monkeypatch.setattr(command_line, "_plugins", lambda: {"slow": slow})

    result = CliRunner().invoke(cli, ["slow"])

    assert (result.exit_code, result.output) == (130, "")


def test_a_broken_plug_in_costs_a_warning_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a broken plug-in causes a warning with its module; other commands work."""
    broken = EntryPoint("broken", "orderlymq_no_such_module:run", "orderlymq.commands")
    wrong = EntryPoint("wrong", "json:dumps", "orderlymq.commands")
    monkeypatch.setattr(command_line, "_plugins", lambda: {"broken": broken, "wrong": wrong})

    result = CliRunner().invoke(cli, ["--help"])
    ran = [CliRunner().invoke(cli, [name]) for name in ("broken", "wrong")]

    assert result.exit_code == 0
    assert "  status " in result.stdout
    assert (
        "Warning: the command broken cannot be loaded from orderlymq_no_such_module"
        in ran[0].stderr
    )
    assert "Warning: json:dumps is not a command" in ran[1].stderr
    assert [each.exit_code for each in ran] == [2, 2]


def test_a_plug_in_cannot_take_an_own_command_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Law: a plug-in cannot replace an own command."""
    foreign = EntryPoint("send", "orderlymq_no_such_module:run", "orderlymq.commands")
    monkeypatch.setattr(command_line, "_plugins", lambda: {"send": foreign})

    found = command_line.CommandTable().get_command(click.Context(cli), "send")

    assert found is not None
    assert found.name == "send"


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["topic", "list"],
        ["topic", "show", "T"],
        ["topic", "create", "T"],
        ["topic", "delete", "T", "--yes"],
        ["send", "T", "x"],
        ["consume", "T", "--for", "1"],
        ["group", "list"],
        ["group", "show", "G"],
        ["group", "reset", "G", "--topic", "T", "--to", "latest"],
        ["group", "parked", "G"],
        ["group", "delete", "G", "--yes"],
        ["group", "release", "G", "--topic", "T", "--key", "K"],
        ["message", "find", "--topic", "T", "--key", "K"],
    ],
)
def test_without_a_cluster_every_command_says_what_to_do(arguments: list[str]) -> None:
    """Law: without a cluster each command ends with code 4, one sentence and a link, no traceback;
    JSON says the same (OTH-07).
    """
    text = CliRunner().invoke(cli, [*arguments, "--name-server", NOBODY])
    as_json = CliRunner().invoke(cli, [*arguments, "--name-server", NOBODY, "--output", "json"])

    assert (text.exit_code, as_json.exit_code) == (ExitCode.UNREACHABLE, ExitCode.UNREACHABLE)
    assert text.stderr.startswith("Error: ")
    assert text.stderr.count("\n") == 2
    assert text.stderr.endswith("\nSee: docs/reference/errors.md#nameserversunreachable\n")
    assert "orderlymq up" in text.stderr
    found = json.loads(as_json.stdout)
    assert (found["exitCode"], found["docs"]) == (4, text.stderr.split()[-1])


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["send", "T", "x", "--property", "novalue"], "is not NAME=VALUE"),
        (["send", "a/b", "x"], "characters outside"),
        (["consume", "T", "--from", "yesterday"], "is not a time from 2000"),
        (["consume", "T", "--from", "99999999999999999999"], "is not a time from 2000"),
        (["send", "T", "x", "--name-server", ""], "ORDERLYMQ_NAME_SERVER"),
        (["topic", "create", "a b"], "characters outside"),
    ],
)
def test_wrong_usage_ends_with_code_2_and_the_reason(arguments: list[str], text: str) -> None:
    """Law: wrong usage ends with code 2 and the reason, before anything is asked."""
    if "--name-server" not in arguments:
        arguments = [*arguments, "--name-server", NOBODY]

    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == ExitCode.USAGE
    assert text in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TopicNotFound("t"), ExitCode.NOT_FOUND),
        (NameServersUnreachable("n"), ExitCode.UNREACHABLE),
        (BrokerUnreachable("b"), ExitCode.UNREACHABLE),
        (SettingError("s"), ExitCode.USAGE),
        (SendUnknown("u"), ExitCode.UNKNOWN),
        (SendRefused("r"), ExitCode.FAILED),
        (BrokerError(26, "group"), ExitCode.NOT_FOUND),
        (BrokerError(1, "broken"), ExitCode.FAILED),
        (CommandFailed(ExitCode.NOT_FOUND, "x"), ExitCode.NOT_FOUND),
    ],
)
def test_errors_have_documented_exit_codes(error: Exception, code: ExitCode) -> None:
    """Law: exit codes are those of the table in the package's docstring."""
    assert exit_code(error) is code


def test_moments_are_words_times_or_milliseconds() -> None:
    """Law: `--from` and `--to` take a word, a time or milliseconds."""
    assert parse_moment("earliest") == "earliest"
    assert parse_moment("1767225600000") == 1_767_225_600_000
    assert parse_moment("2026-01-01T00:00:00+00:00") == 1_767_225_600_000
    assert parse_moment("20260131120000") == parse_moment("2026-01-31T12:00:00")


@pytest.mark.parametrize(
    "text",
    [
        *("20261327030000", "202611270300", "946684799999", f"{time.time() + 90_000:.0f}000"),
        *("1969-12-31T23:59:59.999+00:00", "9999-12-31T23:59:59", "99991231235959"),
    ],
    ids=[  # The same in every process.
        *("month 13", "no seconds", "before 2000", "beyond tomorrow"),
        *("-1, which is latest", "year 9999", "year 9999 as RocketMQ's"),
    ],
)
def test_what_is_no_time_of_a_message_moves_no_group(text: str) -> None:
    """Law: another form of a time is refused; read as milliseconds it would skip the backlog."""
    with pytest.raises(CommandFailed, match="is not a time from 2000"):
        parse_moment(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["send", "orders", "\udcff"],
        ["group", "show", "\udcff"],
        ["explain", "orders", "\udcff"],
        ["trace", "\udcff", "--topic", "orders"],
        ["topic", "show", "\udcff"],
        ["group", "set", "\udcff", "--concurrency", "key"],
        ["status", "--name-server", "a..b:9876"],
    ],
)
def test_what_no_request_can_carry_is_wrong_usage(arguments: list[str]) -> None:
    """Law: arguments that no request can carry are wrong usage: one sentence, no traceback, also in JSON."""
    answer = CliRunner().invoke(cli, arguments)
    as_json = CliRunner().invoke(cli, [*arguments, "--json"])

    assert (answer.exit_code, answer.exception.__class__) == (2, SystemExit)
    assert answer.output.startswith("Error: ")
    assert json.loads(as_json.output)["exitCode"] == as_json.exit_code == 2


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (lambda: TopicConfigTable.from_json(b"{not json"), "the answer cannot be read: "),
        (lambda: TopicConfigTable.from_json(b"[]"), "the answer cannot be read: "),
        (lambda: OffsetResponseHeader.from_ext({}), "the answer cannot be read: "),
        (lambda: decode_record(b"x"), "the answer cannot be read: "),
        (b"\xff".decode, "the answer cannot be read: "),
        (lambda: encode(RemotingCommand(1, ext={"a": 1 << 70})), "the request cannot be sent: "),  # type: ignore[dict-item]
        (lambda: Path("/dev/null/x").read_text(), "Not a directory"),
    ],
)
def test_what_fails_behind_the_arguments_is_no_wrong_usage(
    work: Callable[[], object], words: str
) -> None:
    """Law: an error after the arguments were accepted ends with 1, not 2, because another command line would not help."""

    @click.command()
    @reporting
    def asking(output: str) -> None:
        work()

    answer = CliRunner().invoke(asking, [])
    as_json = json.loads(CliRunner().invoke(asking, ["--json"]).output)

    assert (answer.exit_code, answer.exception.__class__) == (1, SystemExit)
    assert words in answer.output
    assert (as_json["exitCode"], words in as_json["error"]) == (1, True)


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_full_disk_is_one_sentence(more: tuple[str, ...]) -> None:
    """Law: a full disk gives one sentence on stderr and the right exit code."""
    arguments = ["status", "--name-server", NOBODY, *more]
    command = [sys.executable, "-c", "from orderlymq.cli import main; main()", *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=BUFFERED
        )

    assert done.returncode == 4
    assert done.stderr.startswith("Error: no name server answers")
    assert "Traceback" not in done.stderr


def test_the_oracle_judges_a_recorded_history(tmp_path: Path) -> None:
    """Law: the oracle ends with 0 if the order was kept, 1 if not, 3 without the file."""
    base: dict[str, object] = {"process": "p", "topic": "T", "key": "k", "queue": "a:0"}
    kept = tmp_path / "kept.jsonl"
    kept.write_text(
        "\n".join(json.dumps(base | {"at": at} | event) for at, event in enumerate(KEPT)) + "\n"
    )
    broken = tmp_path / "broken.jsonl"
    broken.write_text(
        "\n".join(json.dumps(base | {"at": at} | event) for at, event in enumerate(BROKEN)) + "\n"
    )

    good = CliRunner().invoke(cli, ["verify", str(kept), "--output", "json"])
    bad = CliRunner().invoke(cli, ["verify", str(broken)])
    missing = CliRunner().invoke(cli, ["verify", str(tmp_path / "none")])

    assert (good.exit_code, json.loads(good.stdout)["kept"]) == (0, True)
    assert bad.exit_code == 1
    assert "lost" in bad.stdout
    assert missing.exit_code == ExitCode.NOT_FOUND


@pytest.mark.parametrize(
    ("events", "left", "said"),
    [
        (SENT, 2, "No violation was found in what could be checked."),
        (KEPT, 1, "No violation was found in what could be checked."),
        ([*KEPT, STORED, {"kind": "scanned"}], 0, "The order was kept."),
    ],
)
def test_a_history_that_leaves_something_open_is_not_called_kept_order(
    tmp_path: Path, events: list[dict[str, object]], left: int, said: str
) -> None:
    """Law: a history that leaves something open ends with a line that says so, because people read the last line."""
    base: dict[str, object] = {"process": "p", "topic": "T", "key": "k", "queue": "a:0"}
    lines = (json.dumps(base | {"at": at} | event) for at, event in enumerate(events))
    (tmp_path / "history").write_text("\n".join(lines) + "\n")

    result = CliRunner().invoke(cli, ["verify", str(tmp_path / "history")])

    assert result.exit_code == 0, result.stdout
    assert result.stdout.count("not judged: ") == left
    assert result.stdout.endswith(f"{said}\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds no event, so nothing can be checked"),
        ('{"at": 1, "ki', "holds no event"),
        ("[1]\n{}\n", "line 1: it is not a JSON object with the fields of an event"),
    ],
)
def test_a_history_without_events_is_no_kept_order(tmp_path: Path, text: str, why: str) -> None:
    """Law: a history without events is refused, so that a failed recording does not pass."""
    (tmp_path / "history").write_text(text)

    result = CliRunner().invoke(cli, ["verify", str(tmp_path / "history")])

    assert result.exit_code == ExitCode.USAGE
    assert why in result.output
