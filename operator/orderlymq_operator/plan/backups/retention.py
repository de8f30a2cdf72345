"""
Which Backups of a schedule are kept.

Pure. Rules: the newest complete Backups are kept, and those that are young enough. A Backup that has not ended is
never deleted. The newest few failed ones are kept, so that a person can see why they failed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from orderlymq_operator.resources.backups.scheduledbackup import Retention

# A few: more would hide the other Backups.
FAILED_KEPT: Final = 3


@dataclass(frozen=True, slots=True)
class MadeBackup:
    """A Backup of a schedule; *at* is when it was created."""

    name: str
    at: datetime
    phase: str | None


def surplus(backups: Sequence[MadeBackup], retention: Retention, now: datetime) -> list[str]:
    """Return the names of the Backups to delete, the oldest first."""
    newest = sorted(backups, key=lambda each: (each.at, each.name), reverse=True)
    complete = [each for each in newest if each.phase == "Complete"]
    failed = [each for each in newest if each.phase == "Failed"]
    kept = {each.name for each in [*complete[: retention.keep_last], *failed[:FAILED_KEPT]]}
    if retention.keep_days is not None:
        oldest = now - timedelta(days=retention.keep_days)
        kept |= {each.name for each in complete if each.at >= oldest}
    return [each.name for each in reversed([*complete, *failed]) if each.name not in kept]
