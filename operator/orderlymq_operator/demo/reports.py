"""
How the processes of the demo report their progress, and how they learn that it ends.

They write a JSON line of counts several times a second; the history file has every event.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from orderlymq_protocol.decodeerrors import UNREADABLE

_INTERVAL_S: Final = 0.1


class Report(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of one process since it started.

    Attributes:
        queues: the last consumed offset by queue (`broker:id`).
    """

    process: str
    role: str
    sent: int = 0
    acknowledged: int = 0
    retried: int = 0
    in_flight: int = 0
    delivered: int = 0
    completed: int = 0
    queues: Mapping[str, int] = {}
    ready: bool = False


def call_at_end_of_input(end: Callable[[], object]) -> None:
    """Call *end* when the parent process is gone: it holds the other end of the standard input, and writes nothing."""
    loop, pipe = asyncio.get_running_loop(), sys.stdin.fileno()

    def over() -> None:
        loop.remove_reader(pipe)
        end()

    loop.add_reader(pipe, over)


async def report_until_cancelled(counts: Callable[[], Report]) -> None:
    """Write what *counts* returns whenever it has changed, until cancelled."""
    last: Report | None = None
    while True:
        now = counts()
        if now != last:
            write(now)
            last = now
        await asyncio.sleep(_INTERVAL_S)


def write(report: Report) -> None:
    """Write one line; if the parent process is gone, no process reads it."""
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
        sys.stdout.buffer.flush()


def parse(line: bytes) -> Report | None:
    """Return the report in *line*; None for anything else, such as a warning of the interpreter."""
    try:
        return msgspec.json.decode(line, type=Report)
    except UNREADABLE:
        return None
