"""
Log lines of every process: one event, one line, on standard error, as text or JSON.

Rule: modules use the standard `logging` and pass facts as arguments or `extra`; only this module decides how a line
looks. In JSON an exception stays inside its line. In text its lines follow below, each behind
a space. So no text from a stranger begins a line, and no control character reaches a terminal.
"""

import json
import logging
import sys
import time
from typing import Final, Literal

import orjson

from orderlymq_protocol.body import fastjson

# The attributes of every record; any other attribute came through `extra` and is shown.
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ESCAPES: Final = {code: repr(chr(code))[1:-1] for code in (*range(0x20), *fastjson.ESCAPES)}


def configure(level: str, format: Literal["text", "json"], process: str) -> None:  # noqa: A002
    """Send the log lines of this process to standard error, in place of the former handlers.

    Args:
        level: the lowest level that is shown, by its name ("INFO").
        format: how a line looks; the interfaces use this name.
        process: the process that writes, such as "broker orders-0".

    Raises:
        ValueError: There is no such level.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter(process) if format == "json" else TextFormatter(process))
    root = logging.getLogger()
    root.setLevel(level.upper())
    root.handlers[:] = [handler]


class TextFormatter(logging.Formatter):
    """``2026-01-31T12:00:00.123Z INFO  name-server routes: message key=value``."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, and the traceback on the lines below it."""
        module = record.name.rpartition(".")[2]
        line = (
            f"{_timestamp(record.created)} {record.levelname:<7} {self._process} {module}: "
            + record.getMessage()
        )
        for key, value in _extra(record).items():
            line += f" {key}={value}"
        lines = [line]
        if record.exc_info:
            lines += [" " + each for each in self.formatException(record.exc_info).split("\n")]
        return "\n".join(each.translate(_ESCAPES) for each in lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time, level, process, logger, message, extras, exception."""

    def __init__(self, process: str) -> None:
        super().__init__()
        self._process = process

    def format(self, record: logging.LogRecord) -> str:
        """Return the object as text."""
        entry: dict[str, object] = {
            "time": _timestamp(record.created),
            "level": record.levelname,
            "process": self._process,
            "logger": record.name,
            "message": record.getMessage(),
            **_extra(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        # A value that JSON cannot hold is shown as its repr, because a log line must never fail.
        try:
            text = orjson.dumps(entry, default=repr, option=orjson.OPT_NON_STR_KEYS).decode()
        except orjson.JSONEncodeError:  # bytes from a stranger that are not UTF-8
            text = json.dumps(entry, default=repr, skipkeys=True)
        return text.translate(fastjson.ESCAPES)


def _extra(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key not in _STANDARD}


def _timestamp(seconds: float) -> str:
    """Return UTC with milliseconds, sortable as text."""
    whole, fraction = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{fraction:03d}Z"
