"""
The kind ConsumerGroup: who reads which topics, in order or not, and what happens to failures.

A consumer group can exist without a declaration; a declaration fixes its rules before the first consumer starts.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from orderlymq_operator.resources.meta import (
    IMMUTABLE,
    ClusterRef,
    KubernetesObject,
    Model,
    Status,
    WireName,
    rules,
    set_once,
)
from orderlymq_operator.resources.quantities import Duration
from orderlymq_protocol.message.properties import SHARDING_KEY


class SubscribedTopic(Model):
    """A topic that the group reads."""

    name: WireName = Field(description="Name of the topic, as clients use it.")
    filter: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        default="*", description="Tags that the group wants, as in `TagA || TagB`."
    )


class Retry(Model):
    """Retries of a message whose consumer fails."""

    max_times: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        default=16,
        description="Repeats of a concurrent group's message before it becomes a dead letter, by key its deliveries, where the "
        "client names no number. An ordered consumer tries without limit unless its client sets one.",
    )
    queues: Annotated[int, Field(ge=0, le=64)] = Field(
        default=1, description="Queues of the group's retry topic; 0 drops failures."
    )
    pause: Duration = Field(
        default=Duration("1s"),
        description="With concurrency Key, how long a message that has failed once waits for its next try, where the client names no "
        "time; then twice as long each time. At most 24h.",
    )
    pause_max: Duration = Field(
        default=Duration("5m"),
        description="The longest of these pauses, no shorter than the first. At most 24h.",
    )


class Assignment(Model):
    """Who takes which queue, for members that ask the brokers (QUERY_ASSIGNMENT)."""

    strategy: Literal["Averagely", "AveragelyByCircle", "ConsistentHash", "Sticky", "Zone"] = Field(
        default="Averagely",
        description="Averagely, AveragelyByCircle, ConsistentHash: as RocketMQ's clients compute it. "
        "Sticky: a queue stays with its member. Zone: Sticky, and members in the zone of the queue's leader first; "
        "in Kubernetes the zone is the label topology.kubernetes.io/zone of the pod's node. "
        "RocketMQ clients ask only with clientRebalance=false, the SDK with server_assignment.",
    )
    rebalance_delay: Duration = Field(
        default=Duration("30s"),
        description="Sticky, Zone: queues of members that live on are moved to newcomers only when "
        "nobody has come or gone for this long.",
    )


class ConsumerGroupSpec(Model):
    """The rules of a consumer group."""

    cluster_ref: ClusterRef = Field(
        description="The Cluster that the group reads from.", json_schema_extra=IMMUTABLE
    )
    group_name: WireName | None = Field(
        default=None,
        description="Name that clients use; metadata.name when absent.",
        json_schema_extra=IMMUTABLE,
    )
    ordering: Literal["Ordered", "Concurrent"] = Field(
        default="Ordered",
        description="Ordered: one consumer per queue, proven by a lock; the broker refuses others. "
        "Concurrent: no order; brokers refuse queue locks to the group. One that existed before and took locks stays ordered until "
        "`orderlymq group set --ordering concurrent`.",
        json_schema_extra=IMMUTABLE,
    )
    topics: Annotated[list[SubscribedTopic], Field(max_length=64)] = Field(
        default=[], description="Topics that the group reads; startFrom applies to them."
    )
    retry: Retry = Field(default=Retry(), description="Retries of failed messages.")
    on_dead_letter: Literal["Continue", "HoldKey", "StopQueue"] = Field(
        default="Continue",
        description="Policy for messages behind a dead letter of an Ordered group. Continue: later messages of its key "
        "are consumed. HoldKey: they go to the dead letters, too, until `orderlymq group release` "
        "releases the key; members with the Python SDK only. StopQueue: there are no dead letters, the message "
        "is tried for ever and its queue waits.",
    )
    concurrency: Literal["Queue", "Key"] = Field(
        default="Queue",
        description="Queue: one consumer per queue. Key: one consumer per sharding key, any number per queue; a message "
        "that fails stops its own key alone; members with the OrderlyMQ SDK only. It changes while the "
        "group's consumers are stopped.",
    )
    lane_key_property: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        default=SHARDING_KEY,
        description="Property of a message whose value is its key, with concurrency Key; printable characters.",
    )
    start_from: Literal["Client", "Latest", "Earliest"] = Field(
        default="Client",
        description="Where the group begins on its topics; used once, when the group is created. "
        "Client leaves the choice to the consumers.",
    )
    consume_timeout: Duration = Field(
        default=Duration("15m"),
        description="By key, a coroutine of the Python SDK that has a message for longer is cancelled, and the message counts as "
        "failed; rounded up to minutes. Consumers by queue go by a setting of their own of this name.",
    )
    assignment: Assignment = Field(
        default=Assignment(), description="Who takes which queue, for members that ask."
    )
    enabled: bool = Field(default=True, description="False stops deliveries to the group.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the group and its offsets are kept or deleted with this object. A group that is deleted waits until its "
        "consumers have stopped.",
    )


class MemberStatus(Model):
    """One consumer of a group."""

    client_id: str
    address: str = ""
    zone: str = ""
    queues: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Queues that it has locked, or that are assigned to it."
    )


class QueueOwner(Model):
    """A queue and who has it."""

    topic: str
    group: str = Field(description="The raft group that holds the queue.")
    queue: Annotated[int, Field(ge=0)]
    client_id: str = Field(default="", description="Holder of its lock; empty when it is free.")


class LockStatus(Model):
    """Queue locks of an ordered group."""

    held: Annotated[int, Field(ge=0)] = 0
    free: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Queues of its topics without a holder."
    )
    contended: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Queues that a member was refused in the last half minute because another holds them.",
    )


class LaneStatus(Model):
    """Lanes of a group with concurrency Key."""

    in_hand: Annotated[int, Field(ge=0)] = 0
    ready: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Lanes that wait for a member."
    )
    parked: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Lanes whose message failed and is tried again by itself."
    )
    held: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Lanes that wait for `orderlymq group release`."
    )
    owed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Messages that lanes wait with, about."
    )


class ConsumerGroupStatus(Status):
    """Observed state of a consumer group.

    Conditions beside Ready: `Balanced` (every queue has exactly one living owner, shares differ by one
    at most), or `LanesFlowing` with concurrency Key, and `ConsistentSubscription` (all members subscribe to the same).
    """

    members: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Consumers online."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages not consumed yet, about."
    )
    member_list: list[MemberStatus] = Field(
        default=[], max_length=256, description="The members, as many as fit."
    )
    assignment: list[QueueOwner] = Field(
        default=[], max_length=1024, description="Who has which queue, as many as fit."
    )
    locks: LockStatus | None = Field(
        default=None, description="Locks of an Ordered group with concurrency Queue."
    )
    lanes: LaneStatus | None = Field(default=None, description="Lanes, with concurrency Key.")


class ConsumerGroup(KubernetesObject):
    """A set of consumers that share the queues of topics."""

    kind: Literal["ConsumerGroup"] = "ConsumerGroup"
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus | None = None

    @property
    def group_name(self) -> str:
        """The name that clients use."""
        return self.spec.group_name or self.metadata.name


SPEC_RULES: Final = rules(set_once("groupName"))
