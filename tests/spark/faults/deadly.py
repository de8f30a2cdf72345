"""
Places where a process stands still to be killed, found from outside of what it runs.

The order of the day is the file `order` of the folder that ORDERLYMQ_DEADLY names: a place, how often it is to be
passed before, and `stays` for a process that is to outlive its driver. Who reaches the place writes its process id
to `reached` and stands still, all of its threads, until `kills` ends it or wakes it.

Rule: places are what Python's audit events say of the files of a pipeline, so that nothing of ours is changed; only
a sink, which writes no file, has to call `reach` itself.
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

# The event, the position of its path, and a test of that path.
_PLACES: Final[dict[str, tuple[str, int, Callable[[str], bool]]]] = {
    # A task of the archive, before its files and with the first one on the disk.
    "writing": ("os.mkdir", 0, lambda path: "/_parts/" in path),
    "written": ("open", 0, lambda path: path.endswith(".part")),
    # The commit: before the manifest, before each file's new name, and with everything done.
    "manifest": ("os.link", 1, lambda path: "/_manifests/" in path),
    "publishing": ("os.rename", 1, lambda path: path.endswith(".parquet")),
    "published": ("os.rmdir", 0, lambda path: "/_parts/" in path),
    # The audit: a queue's state, the findings of a batch.
    "keeping": ("os.rename", 1, lambda path: "/order/" in path),
    "judged": ("os.rename", 1, lambda path: "/findings/" in path),
}
_EVENTS: Final = {event for event, _, _ in _PLACES.values()}


def watch() -> None:
    """Listen for the places of this process."""
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
    """Stand still here if that is the order."""
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
        return  # somebody else was faster
    (folder / _PASSAGES).unlink(missing_ok=True)
    # A library that keeps the interpreter's lock while it waits: no other thread of this process goes on either.
    library = ctypes.PyDLL(None)
    if _STAYS in words:
        library.signal(
            int(signal.SIGHUP), _IGNORED
        )  # by which Spark's daemon takes its workers along
    draft = folder / f"{REACHED}.{os.getpid()}"
    draft.write_text(str(os.getpid()))
    draft.rename(folder / REACHED)
    library.open(os.fsencode(folder / WAKE), os.O_RDONLY)  # until somebody writes there
