"""
The last report of a Job of `orderlymq backup`, treated as hostile input: its pod may have run anything.

Pure. `orderlymq_backup.report` writes these reports.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from orderlymq_operator.resources.backups.backup import BACKUP_ID_PATTERN
from orderlymq_operator.resources.cluster.status import GROUPS_MAX

# Kubernetes keeps this much of a container's termination message.
_TEXT_MAX: Final = 4096
_COUNT_MAX: Final = 2**62
# The last millisecond that RFC 3339 can express.
_TIME_MAX: Final = 253_402_300_799_999
ERROR_MAX: Final = 600

Count = Annotated[int, Field(ge=0, le=_COUNT_MAX)]
Time = Annotated[int, Field(ge=0, le=_TIME_MAX)]
# Anything printable: a backup to restore may have broker groups with names that a person chose.
GroupEnd = Annotated[str, StringConstraints(max_length=255, pattern=r"^\P{C}*$")]


class _Report(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", alias_generator=None)


class BackupReport(_Report):
    """A backup as its maker or reader describes it; times in ms since the epoch.

    Attributes:
        groups: (end of the broker group's name, index in its log, time, bytes); empty if they did not fit.
    """

    id: Annotated[str, StringConstraints(pattern=BACKUP_ID_PATTERN)]
    cluster: Annotated[str, StringConstraints(min_length=1, max_length=255)]
    began_ms: Time = Field(alias="beganMs")
    ended_ms: Time = Field(alias="endedMs")
    spread_ms: Count = Field(alias="spreadMs")
    salvaged: bool
    verified: bool
    size_bytes: Count = Field(alias="sizeBytes")
    new_bytes: Count = Field(alias="newBytes")
    files: Count
    groups: Annotated[tuple[tuple[GroupEnd, Count, Time, Count], ...], Field(max_length=GROUPS_MAX)]


class FailureReport(_Report):
    """Why the backup failed."""

    error: Annotated[str, StringConstraints(min_length=1, max_length=ERROR_MAX)]


def read_report(text: str) -> BackupReport | FailureReport | None:
    """Return the report in a termination message; None if the message is something else."""
    if len(text) > _TEXT_MAX:
        return None
    for model in (BackupReport, FailureReport):
        try:
            found: Any = model.model_validate_json(text)
        except ValidationError:
            continue
        assert isinstance(found, BackupReport | FailureReport)
        return found
    return None
