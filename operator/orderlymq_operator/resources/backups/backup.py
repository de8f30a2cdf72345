"""
The kind Backup: one backup of a Cluster, made once, and its result.

Rule: a Backup and its Cluster are in the same namespace, because a user who can read a backup can read all messages
and accounts.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from orderlymq_operator.resources.backups.destination import Destination
from orderlymq_operator.resources.cluster.status import GROUPS_MAX
from orderlymq_operator.resources.meta import (
    DATE_TIME,
    IMMUTABLE,
    DnsName,
    KubernetesObject,
    Model,
    Name,
    Status,
    rules,
    set_once,
)
from orderlymq_operator.resources.quantities import Duration, Quantity
from orderlymq_operator.resources.workload import ComputeRequests, Resources

# A ScheduledBackup's name, `-`, and a time to the minute; the name of a Job contains part of it.
NAME_MAX: Final = 53
BACKUP_ID_PATTERN: Final = r"^[0-9]{8}T[0-9]{9}Z-[0-9a-f]{8}$"
BACKUP_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="100m", memory="256Mi"),
    limits=ComputeRequests(memory="2Gi"),
)
DEADLINE: Final = Duration("24h")
Count = Annotated[int, Field(ge=0)]


class OwnCluster(Model):
    """A Cluster in the same namespace."""

    name: Name = Field(description="Name of the Cluster.", json_schema_extra=IMMUTABLE)


class Scratch(Model):
    """A volume that is deleted with the Job's pod."""

    size: Quantity = Field(
        description="Size of the volume: the largest broker group and 256Mi more."
    )
    class_name: DnsName | None = Field(
        default=None,
        description="StorageClass of the volume. Defaults to the cluster's default StorageClass.",
    )


class BackupSpec(Model):
    """Source and destination of a backup. Only deletionPolicy can be changed."""

    cluster_ref: OwnCluster = Field(description="The Cluster, in the namespace of the Backup.")
    destination: Destination = Field(
        description="Where the backup is stored. Only data that no earlier backup there contains is copied.",
        json_schema_extra=IMMUTABLE,
    )
    verify: bool = Field(
        default=True,
        description="Verify the backup after it is stored: read it back, compare all bytes, open each store and check its "
        "state.",
        json_schema_extra=IMMUTABLE,
    )
    scratch: Scratch | None = Field(
        default=None,
        description="Volume on which each broker group is assembled for the verification. Defaults to the disk of the pod's "
        "node.",
        json_schema_extra=IMMUTABLE,
    )
    resources: Resources = Field(
        default=BACKUP_RESOURCES,
        description="Resources of the Job's pod.",
        json_schema_extra=IMMUTABLE,
    )
    deadline: Duration = Field(
        default=DEADLINE,
        description="Time limit for all attempts together; a backup that takes longer fails.",
        json_schema_extra=IMMUTABLE,
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Retain keeps the stored data when the Backup is deleted; Delete deletes the stored data first.",
    )


SPEC_RULES: Final = rules(set_once("scratch"))


class GroupPosition(Model):
    """The position of one broker group in the backup."""

    name: str = Field(description="Broker name.")
    entry: Count = Field(description="Last entry of the group's raft log that the backup contains.")
    taken_at: str = Field(
        description="Time at which the group was at this entry.", json_schema_extra=DATE_TIME
    )
    size_bytes: Count = Field(description="Size of the group's files in bytes.")


class BackupStatus(Status):
    """Result of a backup."""

    phase: Literal["Waiting", "Running", "Complete", "Failed"] | None = Field(
        default=None, description="Summary for people; programs should read the condition Ready."
    )
    started_at: str | None = Field(
        default=None, description="Time at which the backup began.", json_schema_extra=DATE_TIME
    )
    completed_at: str | None = Field(
        default=None, description="Time at which the backup ended.", json_schema_extra=DATE_TIME
    )
    backup_id: str | None = Field(
        default=None,
        description="Id of the backup; a Cluster that is restored from it names this id.",
    )
    location: str | None = Field(default=None, description="Where the backup is stored.")
    size_bytes: Count | None = Field(
        default=None, description="Size in bytes of all files that the backup consists of."
    )
    new_bytes: Count | None = Field(
        default=None, description="Bytes that no earlier backup in the same place contained."
    )
    files: Count | None = Field(default=None, description="Number of files of all broker groups.")
    spread_ms: Count | None = Field(
        default=None,
        description="Milliseconds between the earliest and the latest position of the broker groups.",
    )
    verified: bool | None = Field(
        default=None, description="Whether the backup was read back and verified."
    )
    attempts: Count | None = Field(default=None, description="Number of pods that have failed.")
    error: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Why the last attempt failed."
    )
    pod_settings: Annotated[str, StringConstraints(max_length=65_536)] | None = Field(
        default=None,
        description="Image, placement and user of the Cluster's pods, as JSON. The Job that deletes the stored data uses them "
        "if the Cluster is gone. Absent if the Cluster sets none of them.",
    )
    groups: list[GroupPosition] = Field(
        default=[],
        max_length=GROUPS_MAX,
        description="The position of each broker group in the backup.",
    )


class Backup(KubernetesObject):
    """One backup of a Cluster."""

    kind: Literal["Backup"] = "Backup"
    spec: BackupSpec
    status: BackupStatus | None = None
