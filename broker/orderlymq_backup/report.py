"""
The result of a backup or a restore as a JSON file, for the operator that started the program in a pod.

It is a JSON object of at most `REPORT_MAX` bytes, which is what Kubernetes keeps of a terminated container.
Broker groups are named by the part of their name after the last `-`, so that all of a Cluster fit. A failure
has only the field `error`.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from orderlymq.cli.session import CommandFailed
from orderlymq.errors import OrderlyMQError
from orderlymq_backup.manifest import Backup

# Kubernetes cuts a termination message here.
REPORT_MAX: Final = 4096
# Characters; each may take six bytes.
_ERROR_MAX: Final = 600


def report_of(backup: Backup, *, verified: bool = False) -> dict[str, Any]:
    """Return the report of a backup; each broker group as [end of its name, entry, time in ms, bytes]."""
    return {
        "id": backup.id,
        "cluster": backup.cluster,
        "beganMs": backup.began_ms,
        "endedMs": backup.ended_ms,
        "spreadMs": backup.spread_ms,
        "salvaged": backup.salvaged,
        "verified": verified,
        "sizeBytes": backup.size_bytes,
        "newBytes": backup.new_bytes,
        "files": sum(len(part.files) for part in backup.parts),
        "groups": [
            [part.group.rpartition("-")[2], part.index, part.taken_ms, part.size_bytes]
            for part in backup.parts
        ],
    }


def write_report(path: Path | None, report: dict[str, Any]) -> None:
    """Write *report* to *path*; without the broker groups if they do not fit."""
    if path is None:
        return
    text = json.dumps(report, separators=(",", ":"))
    if len(text) > REPORT_MAX:
        text = json.dumps({**report, "groups": []}, separators=(",", ":"))
    path.write_text(text, encoding="ascii")


@contextmanager
def reported(path: Path | None) -> Iterator[None]:
    """Write the reason to *path* if the block fails."""
    try:
        yield
    except (OrderlyMQError, CommandFailed) as error:
        write_report(path, {"error": str(error)[:_ERROR_MAX]})
        raise
