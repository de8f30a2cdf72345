"""Runs work in a child of this process."""

import os
import select
import signal
from collections.abc import Callable


def in_child(work: Callable[[], object], within_s: float = 10) -> str:
    """Return what *work* returns or raises in a forked child."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            said = str(work())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    try:
        told, _, _ = select.select([reader], [], [], within_s)
        return os.read(reader, 65_536).decode() if told else "nothing in time"
    finally:
        os.close(reader)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
