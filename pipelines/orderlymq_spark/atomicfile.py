"""
Files that are there whole or not at all.

Rule: nothing heavy is imported here: Spark loads the sinks again for every batch, in processes of their own.
"""

import os
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write a file that is there whole or not at all, also after a crash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with draft.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
