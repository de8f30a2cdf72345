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
    """One replica of a raft group as it is."""

    node: Annotated[int, Field(ge=1)] = Field(description="Its number in the group, from 1.")
    pod: str | None = Field(default=None, description="Pod that it runs in.")
    pod_uid: str | None = Field(default=None, description="UID of the pod.")
    role: Literal["Leader", "Follower", "Learner", "Outside", "Unknown"] = Field(
        default="Unknown", description="Its role in the group."
    )
    caught_up: bool = Field(default=False, description="Whether it could lead immediately.")
    zone: str | None = Field(default=None, description="Failure domain that it runs in.")
    revision: str | None = Field(default=None, description="Settings that it runs with.")


class GroupStatus(Model):
    """One raft group as it is."""

    name: str = Field(description="Broker name that clients see.")
    leader: int | None = Field(default=None, description="Node that leads.")
    term: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Raft term of the leader."
    )
    replicas: Annotated[int, Field(ge=0)] = Field(default=0, description="Replicas that answer.")
    members: list[ReplicaStatus] = Field(
        default=[], max_length=2 * REPLICAS_MAX, description="The replicas, one by one."
    )
    draining: bool = Field(default=False, description="Whether the group is being taken away.")


class Operation(Model):
    """Something that takes several steps and is not finished."""

    type: Literal["RollingUpdate", "ChangeReplicas", "AddGroup", "DrainGroup"] = Field(
        description="The step that is under way."
    )
    step: Annotated[str, StringConstraints(max_length=256)] = Field(
        default="", description="The step that is under way, or what it waits for."
    )
    started_at: str | None = Field(
        default=None, description="When it began.", json_schema_extra=DATE_TIME
    )


class RestoredStatus(Model):
    """The backup that a cluster began with."""

    backup_id: str = Field(description="Id of the backup.")
    cluster: str | None = Field(default=None, description="The cluster that it was made of.")
    location: str = Field(description="Where it is kept.")
    completed_at: str | None = Field(
        default=None,
        description="When every replica had it; absent before.",
        json_schema_extra=DATE_TIME,
    )


class ClusterStatus(Status):
    """Observed state of a running cluster."""

    phase: str | None = Field(default=None, description="One word for people; not a contract.")
    leaders: str | None = Field(default=None, description='Groups that have a leader, as in "3/3".')
    replicas: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description="Replicas that every group has at least; what `kubectl scale` reads.",
    )
    selector: str | None = Field(default=None, description="Labels of the brokers' pods, as text.")
    image: str | None = Field(default=None, description="Image that the pods are made from.")
    revision: str | None = Field(
        default=None, description="Revision of settings and pod form that is wanted of every pod."
    )
    name_server_address: str | None = Field(
        default=None, description="Name server address for clients."
    )
    operation: Operation | None = Field(
        default=None, description="The operation under way; absent when there is none."
    )
    listeners: list[ListenerStatus] = Field(
        default=[],
        max_length=LISTENERS_MAX,
        description="How clients of other networks reach the cluster, by listener.",
    )
    restored: RestoredStatus | None = Field(
        default=None,
        description="The backup that the cluster began with; absent when it began empty.",
    )
    groups: list[GroupStatus] = Field(
        default=[], max_length=GROUPS_MAX, description="The raft groups."
    )
