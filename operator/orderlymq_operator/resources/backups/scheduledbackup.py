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
    """Which Backups of a schedule are kept; a Backup is deleted if neither field keeps it."""

    keep_last: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=7,
        description="Number of the newest complete Backups that are kept, whatever their age.",
    )
    keep_days: Annotated[int, Field(ge=1, le=3650)] | None = Field(
        default=None,
        description="Age in days up to which Backups are kept in addition to those of keepLast.",
    )


class ScheduledBackupSpec(Model):
    """When Backups are made, where they are stored, and which of them are kept."""

    cluster_ref: OwnCluster = Field(description="The Cluster, in the namespace of this object.")
    schedule: Cron = Field(
        description="When a Backup begins, as a cron expression: minute, hour, day of the month, month, day of the week."
    )
    time_zone: Annotated[
        str,
        StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+)*$", max_length=64),
    ] = Field(default="UTC", description="Time zone of the schedule, such as Europe/Berlin.")
    suspend: bool = Field(
        default=False,
        description="Begin no Backup while true; Backups that become due in this time are skipped.",
    )
    retention: Retention = Field(
        default=Retention(),
        description="Which Backups are kept; the others are deleted with their stored data.",
    )
    destination: Destination = Field(description="Where the backups are stored.")
    verify: bool = Field(default=True, description="Verify each backup after it is stored.")
    scratch: Scratch | None = Field(
        default=None,
        description="Volume on which each broker group is assembled for the verification. Defaults to the disk of the pod's "
        "node.",
    )
    resources: Resources = Field(
        default=BACKUP_RESOURCES, description="Resources of the Jobs' pods."
    )
    deadline: Duration = Field(
        default=DEADLINE,
        description="Time limit for all attempts together; a backup that takes longer fails.",
    )


class ScheduledBackupStatus(Status):
    """Past and next runs of a schedule."""

    last_schedule_time: str | None = Field(
        default=None,
        description="Scheduled time of the last Backup.",
        json_schema_extra=DATE_TIME,
    )
    next_schedule_time: str | None = Field(
        default=None,
        description="Time at which the next Backup is due.",
        json_schema_extra=DATE_TIME,
    )
    last_backup: str | None = Field(
        default=None, description="Name of the last Backup of this schedule."
    )
    kept: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Number of complete Backups of this schedule."
    )


class ScheduledBackup(KubernetesObject):
    """Backups of a Cluster on a schedule."""

    kind: Literal["ScheduledBackup"] = "ScheduledBackup"
    spec: ScheduledBackupSpec
    status: ScheduledBackupStatus | None = None
