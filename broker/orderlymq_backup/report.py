"""
The result of a backup or a restore as a file of JSON, for the operator that started the program in a pod.

It is a JSON object of `REPORT_MAX` bytes at most, which is what Kubernetes keeps of a container that has ended. Groups are
named by the end of their name, behind the last `-`, so that all of a Cluster fit. A failure has the field `error` and no other.
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
    """Return what is reported of a backup; each group as [end of its name, entry, time in ms, bytes]."""
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
    """Write *report* to *path*; groups are left out where they do not fit."""
    if path is None:
        return
    text = json.dumps(report, separators=(",", ":"))
    if len(text) > REPORT_MAX:
        text = json.dumps({**report, "groups": []}, separators=(",", ":"))
    path.write_text(text, encoding="ascii")


@contextmanager
def reported(path: Path | None) -> Iterator[None]:
    """Write why the block fails to *path*, if it does."""
    try:
        yield
    except (OrderlyMQError, CommandFailed) as error:
        write_report(path, {"error": str(error)[:_ERROR_MAX]})
        raise
