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
    """Which Cluster of the same namespace."""

    name: Name = Field(description="Name of the Cluster.", json_schema_extra=IMMUTABLE)


class Scratch(Model):
    """A volume that lives as long as a Job's pod."""

    size: Quantity = Field(description="Room for the largest broker group, and 256Mi.")
    class_name: DnsName | None = Field(
        default=None, description="Its StorageClass, the default one when absent."
    )


class BackupSpec(Model):
    """Source and destination of a backup. Only deletionPolicy can be changed."""

    cluster_ref: OwnCluster = Field(description="The Cluster, in the namespace of the Backup.")
    destination: Destination = Field(
        description="Where the backup is kept; only what no earlier backup there has is read.",
        json_schema_extra=IMMUTABLE,
    )
    verify: bool = Field(
        default=True,
        description="Read the backup back: compare all bytes, open each store, check its state.",
        json_schema_extra=IMMUTABLE,
    )
    scratch: Scratch | None = Field(
        default=None,
        description="Where a group is put together to verify it; the disk of the pod's node when absent.",
        json_schema_extra=IMMUTABLE,
    )
    resources: Resources = Field(
        default=BACKUP_RESOURCES,
        description="Resources of the Job's pod.",
        json_schema_extra=IMMUTABLE,
    )
    deadline: Duration = Field(
        default=DEADLINE,
        description="A backup that takes longer fails, all attempts together.",
        json_schema_extra=IMMUTABLE,
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Retain keeps what is stored when the Backup is deleted; Delete deletes it first.",
    )


SPEC_RULES: Final = rules(set_once("scratch"))


class GroupPosition(Model):
    """Where one broker group stood."""

    name: str = Field(description="Broker name.")
    entry: Count = Field(description="Entry of its log up to which everything is in the backup.")
    taken_at: str = Field(description="When that was.", json_schema_extra=DATE_TIME)
    size_bytes: Count = Field(description="Bytes of its files.")


class BackupStatus(Status):
    """Result of a backup."""

    phase: Literal["Waiting", "Running", "Complete", "Failed"] | None = Field(
        default=None, description="One word for people; programs take the condition Ready."
    )
    started_at: str | None = Field(
        default=None, description="When it began.", json_schema_extra=DATE_TIME
    )
    completed_at: str | None = Field(
        default=None, description="When it ended.", json_schema_extra=DATE_TIME
    )
    backup_id: str | None = Field(
        default=None, description="Its id, by which a Cluster is restored from it."
    )
    location: str | None = Field(default=None, description="Where it is kept.")
    size_bytes: Count | None = Field(default=None, description="Bytes of all that it needs.")
    new_bytes: Count | None = Field(
        default=None, description="Of which no earlier backup in the same place had."
    )
    files: Count | None = Field(default=None, description="Files of all groups.")
    spread_ms: Count | None = Field(
        default=None, description="How far apart in time the positions of the groups are."
    )
    verified: bool | None = Field(default=None, description="Whether it was read back.")
    attempts: Count | None = Field(default=None, description="Pods that have failed.")
    error: Annotated[str, StringConstraints(max_length=1024)] | None = Field(
        default=None, description="Why the last attempt failed."
    )
    pod_settings: Annotated[str, StringConstraints(max_length=65_536)] | None = Field(
        default=None,
        description="Image, placement and user of the Cluster's pods, as JSON: the Job that deletes the stored data "
        "has it, too, when the Cluster is gone. Absent where the Cluster says nothing of it.",
    )
    groups: list[GroupPosition] = Field(
        default=[], max_length=GROUPS_MAX, description="Where each broker group stood."
    )


class Backup(KubernetesObject):
    """One backup of a Cluster."""

    kind: Literal["Backup"] = "Backup"
    spec: BackupSpec
    status: BackupStatus | None = None
