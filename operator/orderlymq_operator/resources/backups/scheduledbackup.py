"""
The kind ScheduledBackup: when Backups of a Cluster are made, and how many are kept.

Rule: one at a time. A Backup that becomes due while another runs waits for its end; of several missed ones, only the
newest is made later. `kube.reconcile.backups.times` computes the times.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from orderlymq_operator.resources.backups.backup import (
    BACKUP_RESOURCES,
    DEADLINE,
    OwnCluster,
    Scratch,
)
from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.meta import DATE_TIME, KubernetesObject, Model, Status
from orderlymq_operator.resources.pipelines.spark import Cron
from orderlymq_operator.resources.quantities import Duration
from orderlymq_operator.resources.workload import Resources

# Its Backups append a time to this name.
NAME_MAX: Final = 40


class Retention(Model):
    """Which Backups of a schedule are kept; a Backup goes when no field keeps it."""

    keep_last: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=7, description="The newest complete ones are kept, however old."
    )
    keep_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=None, description="Those that are not older are kept, too."
    )


class ScheduledBackupSpec(Model):
    """When, where to, and how many are kept."""

    cluster_ref: OwnCluster = Field(description="The Cluster, in the namespace of this object.")
    schedule: Cron = Field(
        description="When a Backup begins, in cron's form: minute, hour, day of the month, month, day of the week."
    )
    time_zone: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$", max_length=64),
    ] = Field(default="UTC", description="Time zone of the schedule, as in Europe/Berlin.")
    suspend: bool = Field(
        default=False,
        description="Begin no Backup; what was due meanwhile is not made up for.",
    )
    retention: Retention = Field(
        default=Retention(),
        description="Which Backups are kept; others are deleted, with what is stored.",
    )
    destination: Destination = Field(description="Where the backups are kept.")
    verify: bool = Field(default=True, description="Read each backup back.")
    scratch: Scratch | None = Field(
        default=None,
        description="Where a group is put together to verify it; the disk of the pod's node when absent.",
    )
    resources: Resources = Field(
        default=BACKUP_RESOURCES, description="Resources of the Jobs' pods."
    )
    deadline: Duration = Field(
        default=DEADLINE, description="A backup that takes longer fails, all attempts together."
    )


class ScheduledBackupStatus(Status):
    """Past and next runs of a schedule."""

    last_schedule_time: str | None = Field(
        default=None,
        description="The time for which the last Backup was made.",
        json_schema_extra=DATE_TIME,
    )
    next_schedule_time: str | None = Field(
        default=None, description="When the next one is due.", json_schema_extra=DATE_TIME
    )
    last_backup: str | None = Field(default=None, description="The last Backup that was made.")
    kept: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Complete Backups of this schedule."
    )


class ScheduledBackup(KubernetesObject):
    """Backups of a Cluster on a schedule."""

    kind: Literal["ScheduledBackup"] = "ScheduledBackup"
    spec: ScheduledBackupSpec
    status: ScheduledBackupStatus | None = None
