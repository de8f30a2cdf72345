"""
Histories on disk: one JSON object per line, written by many processes, read by the oracle.

Each process appends whole lines to a file of its own or to a shared one. The last line of a file may be cut short by a
crash and is then dropped; any other bad line is an error.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import TracebackType
from typing import Self

import orjson

from orderlymq.oracle.verdict import Event, Kind

_FIELDS = {field.name for field in fields(Event)}
_NUMBERS = {field.name for field in fields(Event) if field.type is int}


class HistoryError(ValueError):
    """A history cannot be read; the text names the file and the line."""


class Recorder:
    """Appends events to a file; several processes may append at the same time.

    Each line is one ``write`` with ``O_APPEND``, so the kernel keeps lines whole. Nothing is buffered in the process,
    so a SIGKILL loses no event that happened.
    """

    def __init__(self, path: Path, *, process: str) -> None:
        self._process = process
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def record(self, kind: Kind | str, /, **attributes: str | int) -> None:
        """Append one event that happens now; *attributes* are fields of ``Event``."""
        unknown = attributes.keys() - _FIELDS
        if unknown:
            raise HistoryError(f"an event has no field {sorted(unknown)[0]!r}")
        line = {
            "at": time.monotonic_ns(),
            "kind": str(Kind(kind)),
            "process": self._process,
            **attributes,
        }
        os.write(self._file, orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def close(self) -> None:
        """Close the file; recording afterwards is an error."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def read(path: Path) -> Iterator[Event]:
    """Yield the events of a history file in the order of its lines.

    Raises:
        HistoryError: A line is not an event.
    """
    data = path.read_bytes()
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = orjson.loads(line)
            yield _event(value)
        except (orjson.JSONDecodeError, TypeError, KeyError, ValueError) as error:
            if number == len(lines):
                return  # the process was killed during its last write
            raise HistoryError(f"{path}, line {number}: {error}") from error


def _event(value: object) -> Event:
    """Return the event of a line; refuse fields of wrong types, which would break the oracle or lead to a wrong verdict."""
    if not isinstance(value, dict):
        raise TypeError("it is not a JSON object with the fields of an event")
    for name, item in value.items():
        if name in _FIELDS and type(item) is not (int if name in _NUMBERS else str):
            raise TypeError(
                f"{name} is {item!r:.100}, not {'a number' if name in _NUMBERS else 'text'}"
            )
    return Event(**value | {"kind": Kind(value["kind"])})
