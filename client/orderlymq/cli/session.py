"""
The shared parts of all commands: the options, the connection, the exit codes, the two ways of showing a result.

Rule: a command computes plain data first; text and JSON are two views of the same data.
"""

import asyncio
import contextlib
import functools
import math
import os
import re
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Final, ParamSpec, TypeAlias

import click
import orjson
from rich.console import Console
from rich.table import Table

from orderlymq.cli.exitcodes import ExitCode
from orderlymq.cli.table import nearest
from orderlymq.errors import (
    TROUBLESHOOTING,
    BrokerError,
    BrokerUnreachable,
    NameServersUnreachable,
    OrderlyMQError,
    PullError,
    SendUnknown,
    SettingError,
    TopicNotFound,
)
from orderlymq.settings import DEFAULT_NAME_SERVER
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.declaration import ModelError
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.frame.codec import FrameError
from orderlymq_protocol.header.declaration import HeaderError
from orderlymq_protocol.message.record import RecordError
from orderlymq_protocol.names import is_system_topic
from orderlymq_runtime.remoting.client import RemotingError

P = ParamSpec("P")
# The error to print, its exit code, and the address of the docs about it.
Told: TypeAlias = tuple[Exception, int, str]


class CommandFailed(Exception):  # noqa: N818 - says what happened
    """Ends a command with this exit code and this sentence."""

    docs: Final = f"{TROUBLESHOOTING}#exit-codes"

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


_NOT_FOUND: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.QUERY_NOT_FOUND,
        ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
    }
)
# A time outside this range is a mistake, or has another form; messages that it skips would be lost to the group.
_EARLIEST_MS: Final = 946_684_800_000  # the year 2000
_DAY_S: Final = 86_400
# Names, keys and bodies come from others and may bring control characters (C0, DEL, C1) to the terminal.
_CONTROLS: Final = {each: f"\\x{each:02x}" for each in (*range(0x20), *range(0x7F, 0xA0))}
_IN_TEXT: Final = {each: shown for each, shown in _CONTROLS.items() if chr(each) not in "\n\t"}
_UNREADABLE: Final = (fastjson.JsonError, ModelError, HeaderError, RecordError, UnicodeError)
_REPORTED: Final = (OrderlyMQError, CommandFailed, OSError, FrameError, *_UNREADABLE)
# Wide enough for every table if the output is a file or a pipe.
_PIPE_WIDTH: Final = 160


class Span(click.ParamType):  # type: ignore[type-arg]  # generic only in new releases
    """A time span: `5s`, `250ms`, `2m`, `1h`, or a number of seconds; a command gets it in seconds."""

    name = "TIME"

    def __init__(self, low_s: float = 0, high_s: float = math.inf) -> None:
        self._low_s = low_s
        self._high_s = high_s

    _UNITS: ClassVar = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}

    def convert(
        self, value: str | float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read a span; a default that is a number means seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|)", str(value))
        if found is None:
            self.fail(f"{value!r} is not a time; write 5s, 250ms, 2m, 1h or seconds", param, ctx)
        span_s = float(found[1]) * self._UNITS[found[2]]
        if not self._low_s <= span_s <= self._high_s:
            most = "" if self._high_s == math.inf else f" and at most {self._high_s:g} s"
            self.fail(f"{value!r} must be at least {self._low_s:g} s{most}", param, ctx)
        return span_s


SPAN: Final = Span()
name_server_option: Final = click.option(
    "--name-server",
    "name_server",
    envvar="ORDERLYMQ_NAME_SERVER",
    show_envvar=True,
    default=DEFAULT_NAME_SERVER,
    show_default=True,
    help="Addresses of the name servers, host:port;host:port.",
)


def exit_code(error: Exception) -> ExitCode:
    """Return the exit code for an error of the SDK."""
    match error:
        case CommandFailed():
            return error.code
        case TopicNotFound():
            return ExitCode.NOT_FOUND
        case NameServersUnreachable() | BrokerUnreachable():
            return ExitCode.UNREACHABLE
        case PullError(__cause__=OrderlyMQError() as cause):
            return exit_code(cause)
        case PullError(__cause__=RemotingError()):
            return ExitCode.UNREACHABLE
        case SettingError():
            return ExitCode.USAGE
        case SendUnknown():
            return ExitCode.UNKNOWN
        case BrokerError() if error.code in _NOT_FOUND:
            return ExitCode.NOT_FOUND
        case _:
            return ExitCode.FAILED


def connected(command: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Give a command its options and run it; turn its errors into a sentence and an exit code."""

    @name_server_option
    @reporting
    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            _run(command(*args, **kwargs))
        except TopicNotFound as error:
            if not error.topic:
                raise
            near = asyncio.run(nearest_topic(str(kwargs["name_server"]), error.topic))
            raise TopicNotFound(
                f"topic {error.topic} does not exist{near or '; `orderlymq topic list` shows what exists'}",
                topic=error.topic,
            ) from error

    return run


def _run(work: Coroutine[Any, Any, None]) -> None:
    """Run *work*; raise the first error of its tasks."""
    try:
        asyncio.run(work)
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from error.__cause__


async def nearest_topic(name_server: str, topic: str) -> str:
    """Return a question that suggests the topic with the nearest name; empty if none is near."""
    from orderlymq.admin.client import AdminClient  # noqa: PLC0415 - only after a failure

    try:
        async with AdminClient(name_server) as admin:
            names = [
                name for name in await admin.topics() if name != topic and not is_system_topic(name)
            ]
    except OrderlyMQError:
        return ""
    return nearest(topic, names)


def reporting(command: Callable[P, None]) -> Callable[P, None]:
    """Give a command `--output`, and turn its errors into a sentence and an exit code."""
    return reporting_as(command, _REPORTED, _told)


def reporting_as(
    command: Callable[P, None],
    reported: tuple[type[Exception], ...],
    told: Callable[[Exception], Told],
) -> Callable[P, None]:
    """Give a command `--output` and `--json`, and end it with the result of *told* for errors in *reported*.

    *reported* must include `CommandFailed`.
    """

    @click.option(
        "--output",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="Format of the result.",
    )
    @click.option("--json", "as_json", is_flag=True, help="The same as --output json.")
    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        if kwargs.pop("as_json", False):
            kwargs["output"] = "json"
        try:
            _check_text(kwargs)
            command(*args, **kwargs)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
        except BrokenPipeError:
            raise  # click exits with code 1, and silences the interpreter's last flush
        except reported as raised:
            error, code, docs = told(raised)
            tell_error(error, code, kwargs.get("output"), docs)
            raise click.exceptions.Exit(code) from raised

    return run


def _told(raised: Exception) -> Told:
    error = _translated(raised)
    return error, exit_code(error), error.docs


def _translated(raised: Exception) -> OrderlyMQError | CommandFailed:
    """Return the error that ends a command; its arguments were checked, so unreadable data comes from the other side."""
    match raised:
        case OrderlyMQError() | CommandFailed():
            return raised
        case FrameError():
            return CommandFailed(ExitCode.FAILED, f"the request cannot be sent: {raised}")
        case _ if isinstance(raised, _UNREADABLE):
            return CommandFailed(ExitCode.FAILED, f"the answer cannot be read: {raised}")
        case _:
            return CommandFailed(ExitCode.FAILED, str(raised))


def _check_text(arguments: Mapping[str, object]) -> None:
    """Refuse an argument that is not UTF-8: no request could carry it.

    Raises:
        CommandFailed: An argument is not; the text names it.
    """
    for name, value in arguments.items():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, str) and any("\ud800" <= letter <= "\udfff" for letter in each):
                text = f"{name.replace('_', '-')}: {each!a} is not UTF-8"
                raise CommandFailed(ExitCode.USAGE, text)


def tell_error(error: Exception, code: int, output: object, docs: str = "") -> None:
    """Print why a command ends, and where the docs explain it: as one JSON value if *output* is json."""
    text = str(error).encode(errors="backslashreplace").decode()  # a path need not be UTF-8
    if output == "json":
        # A full disk does not take JSON either.
        with contextlib.suppress(OSError):
            print_json({"error": text, "exitCode": int(code)} | ({"docs": docs} if docs else {}))
            return
    say(f"Error: {text}" + (f"\nSee: {docs}" if docs else ""), err=True)
    _drop_unwritten()


def _drop_unwritten() -> None:
    """Drop output that could not be written: the interpreter would try again at its end, and exit with code 120."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: object = "", *, err: bool = False) -> None:
    """Print text; characters that would control the terminal are shown as escapes."""
    click.echo(str(text).translate(_IN_TEXT), err=err)


def one_line(text: str) -> str:
    """Return foreign text as part of a line: line breaks, too, are shown as escapes."""
    return text.translate(_CONTROLS)


def print_json(data: object) -> None:
    """Print one JSON value."""
    text = orjson.dumps(data, option=orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS).decode()
    click.echo(text.translate(fastjson.ESCAPES))


def print_json_line(data: object) -> None:
    """Print one JSON value on one line, for output with many values."""
    click.echo(orjson.dumps(data).decode().translate(fastjson.ESCAPES))


def print_outcome(output: str, data: object, sentence: str) -> None:
    """Print the result of a change: as JSON, or as a sentence."""
    if output == "json":
        print_json(data)
    else:
        say(sentence)


def print_rows(
    output: str, data: object, columns: list[str], rows: Iterable[Sequence[object]]
) -> None:
    """Print the result of a query: as JSON, or as a table."""
    if output == "json":
        print_json(data)
    else:
        print_table("", columns, [list(row) for row in rows])


def print_part(columns: list[str], rows: list[list[object]]) -> None:
    """Print a table below the earlier output, unless it has no rows."""
    if rows:
        say()
        print_table("", columns, rows)


def print_table(title: str, columns: list[str], rows: list[list[object]]) -> None:
    """Print a table; None is shown as a dash, and numbers are aligned right."""
    table = Table(title=title or None, title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = bool(rows) and all(isinstance(row[index], int | float | None) for row in rows)
        table.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        table.add_row(*(_cell(value) for value in row))
    console().print(table)


def console() -> Console:
    """Return the console on which results are printed."""
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    return Console(width=width, highlight=False, markup=False)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if isinstance(value, float) else one_line(str(value))


def parse_moment(text: str) -> int | str:
    """Read `earliest`, `latest`, an ISO time, RocketMQ's yyyyMMddHHmmss, or milliseconds since the epoch.

    Raises:
        CommandFailed: The text is none of them, or no time of a message: before 2000 or more than a day ahead.
    """
    if text in ("earliest", "latest"):
        return text
    try:
        if re.fullmatch(r"[0-9]{14}", text):
            text = f"{text[:8]}T{text[8:]}"
        is_number = text.isdecimal() and len(text) >= 12
        moment_ms = int(text) if is_number else _milliseconds(text)
        if not _EARLIEST_MS <= moment_ms <= (time.time() + _DAY_S) * 1000:
            raise ValueError(text)
        return moment_ms
    except (ValueError, OverflowError, OSError):
        raise CommandFailed(
            ExitCode.USAGE,
            f"{text!r} is not a time from 2000 to tomorrow; write earliest, latest, 2026-01-31T12:00:00 or milliseconds",
        ) from None


def _milliseconds(text: str) -> int:
    return int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)


def iso(timestamp_ms: int) -> str | None:
    """Return a time as ISO text, None if there is no time; a time out of range as its number."""
    if timestamp_ms <= 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds")
