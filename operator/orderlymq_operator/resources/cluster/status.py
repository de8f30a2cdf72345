"""
Status of a Cluster; `kube.reconcile.status` fills it.

It has room for as many groups and replicas as a spec may ask for.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from orderlymq_operator.resources.cluster.listeners import LISTENERS_MAX, ListenerStatus
from orderlymq_operator.resources.meta import DATE_TIME, Model, Status

GROUPS_MAX: Final = 64  # in one cluster; a client sends one heartbeat to each broker group
REPLICAS_MAX: Final = 5


class ReplicaStatus(Model):
    """Observed state of one replica of a raft group."""

    node: Annotated[int, Field(ge=1)] = Field(
        description="Number of the replica in the group, from 1."
    )
    pod: str | None = Field(default=None, description="Pod of the replica.")
    pod_uid: str | None = Field(default=None, description="UID of the pod.")
    role: Literal["Leader", "Follower", "Learner", "Outside", "Unknown"] = Field(
        default="Unknown", description="Raft role of the replica."
    )
    caught_up: bool = Field(
        default=False, description="Whether the replica could become leader immediately."
    )
    zone: str | None = Field(default=None, description="Failure domain of the replica.")
    revision: str | None = Field(
        default=None, description="Revision of the settings that the replica runs with."
    )


class GroupStatus(Model):
    """Observed state of one raft group."""

    name: str = Field(description="Broker name that clients see.")
    leader: int | None = Field(default=None, description="Number of the replica that leads.")
    term: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Raft term of the leader."
    )
    replicas: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of replicas that answer."
    )
    members: list[ReplicaStatus] = Field(
        default=[], max_length=2 * REPLICAS_MAX, description="The replicas of the group."
    )
    draining: bool = Field(default=False, description="Whether the group is being removed.")


class Operation(Model):
    """A change that takes several steps and is not finished."""

    type: Literal["RollingUpdate", "ChangeReplicas", "AddGroup", "DrainGroup"] = Field(
        description="Type of the operation."
    )
    step: Annotated[str, StringConstraints(max_length=256)] = Field(
        default="", description="Details of the current step, or what it waits for."
    )
    started_at: str | None = Field(
        default=None, description="Time at which the operation began.", json_schema_extra=DATE_TIME
    )


class RestoredStatus(Model):
    """The backup from which a cluster was restored."""

    backup_id: str = Field(description="Id of the backup.")
    cluster: str | None = Field(default=None, description="The cluster that was backed up.")
    location: str = Field(description="Where the backup is stored.")
    completed_at: str | None = Field(
        default=None,
        description="Time at which all replicas were restored; absent before.",
        json_schema_extra=DATE_TIME,
    )


class ClusterStatus(Status):
    """Observed state of a running cluster."""

    phase: str | None = Field(
        default=None, description="Summary for people; programs must not rely on it."
    )
    leaders: str | None = Field(
        default=None, description='Groups that have a leader, such as "3/3".'
    )
    replicas: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Replicas of the group that has the fewest; `kubectl scale` reads it.",
    )
    selector: str | None = Field(
        default=None, description="Label selector of the brokers' pods, as text."
    )
    image: str | None = Field(default=None, description="Image for the pods.")
    revision: str | None = Field(
        default=None, description="Desired revision of settings and pod template."
    )
    name_server_address: str | None = Field(
        default=None, description="Name server address for clients."
    )
    operation: Operation | None = Field(
        default=None, description="The current operation; absent if there is none."
    )
    listeners: list[ListenerStatus] = Field(
        default=[],
        max_length=LISTENERS_MAX,
        description="How clients in other networks reach the cluster, by listener.",
    )
    restored: RestoredStatus | None = Field(
        default=None,
        description="The backup from which the cluster was restored; absent if it began empty.",
    )
    groups: list[GroupStatus] = Field(
        default=[], max_length=GROUPS_MAX, description="The raft groups."
    )
