"""
Places at which a process stops in order to be killed, recognised without changes to the code under test.

The present order is the file `order` in the folder of ORDERLYMQ_DEADLY: a place, how often a process passes it
before it stops, and `stays` for a process that outlives its driver. A process that reaches the place writes its id
to `reached` and stops with all its threads, until `kills` ends or wakes it.

Rule: a place is recognised by Python's audit events about the files of a pipeline, so no code of ours is changed;
only a sink, which writes no file, must call `reach` itself.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "ORDERLYMQ_DEADLY"
ORDER: Final = "order"
REACHED: Final = "reached"
WAKE: Final = "wake"
_PASSAGES: Final = "passages"
_STAYS: Final = "stays"
_IGNORED: Final = 1  # SIG_IGN

# The event, the position of the path in its arguments, and a test of that path.
_PLACES: Final[dict[str, tuple[str, int, Callable[[str], bool]]]] = {
    # A task of the archive: before its files are written, and when the first one is on the disk.
    "writing": ("os.mkdir", 0, lambda path: "/_parts/" in path),
    "written": ("open", 0, lambda path: path.endswith(".part")),
    # The commit: before the manifest, before each rename, and after all of them.
    "manifest": ("os.link", 1, lambda path: "/_manifests/" in path),
    "publishing": ("os.rename", 1, lambda path: path.endswith(".parquet")),
    "published": ("os.rmdir", 0, lambda path: "/_parts/" in path),
    # The audit: the state of a queue, and the findings of a batch.
    "keeping": ("os.rename", 1, lambda path: "/order/" in path),
    "judged": ("os.rename", 1, lambda path: "/findings/" in path),
}
_EVENTS: Final = {event for event, _, _ in _PLACES.values()}


def watch() -> None:
    """Observe the places of this process."""
    if VARIABLE in os.environ:
        sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _EVENTS:
        return
    for place, (name, position, fits) in _PLACES.items():
        if name == event and fits(str(arguments[position])):
            reach(place)


def order_file(place: str, passages: int, *, stays: bool) -> str:
    """Return the text of an order."""
    return f"{place} {passages} {_STAYS if stays else ''}"


def reach(place: str) -> None:
    """Stop here if the order says so."""
    folder = Path(os.environ[VARIABLE])
    order = folder / ORDER
    try:
        wanted, passages, *words = order.read_text().split()
    except FileNotFoundError:
        return
    if wanted != place:
        return
    with (folder / _PASSAGES).open("a") as file:
        file.write("x")  # one file for all processes
    if (folder / _PASSAGES).stat().st_size <= int(passages):
        return
    try:
        order.unlink()
    except FileNotFoundError:
        return  # another process was faster
    (folder / _PASSAGES).unlink(missing_ok=True)
    # A C call that keeps the interpreter's lock while it waits, so that no other thread of this process goes on.
    library = ctypes.PyDLL(None)
    if _STAYS in words:
        library.signal(
            int(signal.SIGHUP), _IGNORED
        )  # the group with which Spark's daemon ends its workers
    draft = folder / f"{REACHED}.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / REACHED)
    library.open(os.fsencode(folder / WAKE), os.O_RDONLY)  # until `kills` writes to it
