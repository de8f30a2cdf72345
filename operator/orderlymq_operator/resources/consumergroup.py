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
    """A topic that the consumer group reads."""

    name: WireName = Field(description="Name of the topic that clients use.")
    filter: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        default="*",
        description="Tags that the consumer group reads, such as `TagA || TagB`; `*` for all.",
    )


class Retry(Model):
    """Retries of a message whose consumer failed."""

    max_times: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        default=16,
        description="Retries of a message of a Concurrent group before it becomes a dead letter; with concurrency Key, the "
        "number of its deliveries before onDeadLetter decides, -1 for no limit. Applies if the client sets no number. An "
        "ordered consumer by queue retries without limit unless its client sets one.",
    )
    queues: Annotated[int, Field(ge=0, le=64)] = Field(
        default=1,
        description="Number of queues of the group's retry topic; with 0, failed messages are dropped.",
    )
    pause: Duration = Field(
        default=Duration("1s"),
        description="With concurrency Key: how long a message waits after its first failure if the client names no time; the "
        "pause doubles with each further failure. At most 24h.",
    )
    pause_max: Duration = Field(
        default=Duration("5m"),
        description="With concurrency Key: the longest pause between two tries; not shorter than pause. At most 24h.",
    )


class Assignment(Model):
    """How brokers assign queues to members that ask for an assignment (QUERY_ASSIGNMENT)."""

    strategy: Literal["Averagely", "AveragelyByCircle", "ConsistentHash", "Sticky", "Zone"] = Field(
        default="Averagely",
        description="Averagely, AveragelyByCircle, ConsistentHash: as RocketMQ clients compute it. Sticky: a queue stays with "
        "its member. Zone: like Sticky, but members in the zone of the queue's leader are preferred; in Kubernetes the zone "
        "is the label topology.kubernetes.io/zone of the pod's node. RocketMQ clients ask the brokers only with "
        "clientRebalance=false, the SDK with server_assignment.",
    )
    rebalance_delay: Duration = Field(
        default=Duration("30s"),
        description="Sticky, Zone: queues of remaining members move to new members only after no member has joined or left "
        "for this long.",
    )


class ConsumerGroupSpec(Model):
    """The rules of a consumer group."""

    cluster_ref: ClusterRef = Field(
        description="The Cluster of the consumer group.", json_schema_extra=IMMUTABLE
    )
    group_name: WireName | None = Field(
        default=None,
        description="Name that clients use. Defaults to metadata.name.",
        json_schema_extra=IMMUTABLE,
    )
    ordering: Literal["Ordered", "Concurrent"] = Field(
        default="Ordered",
        description="Ordered: one consumer per queue, guarded by a queue lock; the broker refuses others. Concurrent: no "
        "order; brokers refuse queue locks to the group. A group that already took locks before this object was created stays "
        "ordered until `orderlymq group set --ordering concurrent`.",
        json_schema_extra=IMMUTABLE,
    )
    topics: Annotated[list[SubscribedTopic], Field(max_length=64)] = Field(
        default=[], description="Topics that the consumer group reads; startFrom applies to them."
    )
    retry: Retry = Field(default=Retry(), description="Retries of failed messages.")
    on_dead_letter: Literal["Continue", "HoldKey", "StopQueue"] = Field(
        default="Continue",
        description="What an Ordered group does after the last try of a message. Continue: the message becomes a dead letter, "
        "and later messages of its key are consumed. HoldKey: the key waits for `orderlymq group release`; with concurrency "
        "Queue the message and the later messages of its key become dead letters (only for members with the Python SDK), "
        "with concurrency Key the message stays first in its lane. StopQueue: the group has no dead letters; the message is "
        "retried for ever and its queue waits, with all its keys.",
    )
    concurrency: Literal["Queue", "Key"] = Field(
        default="Queue",
        description="Queue: one consumer per queue. Key: one consumer per sharding key and any number per queue; a failed "
        "message stops only its own key, except with onDeadLetter StopQueue; only for members with the OrderlyMQ SDK. A "
        "change takes effect only while the group's consumers are stopped.",
    )
    lane_key_property: Annotated[str, StringConstraints(min_length=1, max_length=128)] = Field(
        default=SHARDING_KEY,
        description="With concurrency Key: message property whose value is the key; printable characters.",
    )
    start_from: Literal["Client", "Latest", "Earliest"] = Field(
        default="Client",
        description="Where the group starts to read its topics; used only when the group is created. Client leaves the choice "
        "to the consumers.",
    )
    consume_timeout: Duration = Field(
        default=Duration("15m"),
        description="With concurrency Key: the Python SDK cancels a coroutine that works on a message for longer, and the "
        "message counts as failed; rounded up to minutes. Consumers by queue use their own setting of this name.",
    )
    assignment: Assignment = Field(
        default=Assignment(),
        description="How brokers assign queues to members that ask for an assignment.",
    )
    enabled: bool = Field(default=True, description="False stops deliveries to the group.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the consumer group and its offsets are kept or deleted when this object is deleted. The deletion "
        "waits until the group's consumers have stopped.",
    )


class MemberStatus(Model):
    """One consumer of a group."""

    client_id: str
    address: str = ""
    zone: str = ""
    queues: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of queues that the member has locked or been assigned."
    )


class QueueOwner(Model):
    """A queue and the member that holds it."""

    topic: str
    group: str = Field(description="The raft group that holds the queue.")
    queue: Annotated[int, Field(ge=0)]
    client_id: str = Field(
        default="", description="Member that holds the queue lock; empty if the queue is free."
    )


class LockStatus(Model):
    """Queue locks of an ordered group."""

    held: Annotated[int, Field(ge=0)] = 0
    free: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of queues that no member holds."
    )
    contended: Annotated[int, Field(ge=0)] = Field(
        default=0,
        description="Number of queues that a member was refused in the last 30 seconds because another member holds them.",
    )


class LaneStatus(Model):
    """Lanes of a group with concurrency Key."""

    in_hand: Annotated[int, Field(ge=0)] = 0
    ready: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of lanes that wait for a member."
    )
    parked: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of lanes whose message failed and is retried automatically."
    )
    held: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Number of lanes that wait for `orderlymq group release`."
    )
    owed: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Approximate number of messages that wait in lanes."
    )


class ConsumerGroupStatus(Status):
    """Observed state of a consumer group.

    Conditions in addition to Ready: `Balanced` (every queue has exactly one online owner, and shares differ by at most
    one queue), or `LanesFlowing` with concurrency Key; and `ConsistentSubscription` (all members have the same
    subscription).
    """

    members: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Number of consumers that are online."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Approximate number of messages not consumed yet."
    )
    member_list: list[MemberStatus] = Field(
        default=[], max_length=256, description="The members; at most 256 are listed."
    )
    assignment: list[QueueOwner] = Field(
        default=[],
        max_length=1024,
        description="The holder of each queue; at most 1024 queues are listed.",
    )
    locks: LockStatus | None = Field(
        default=None, description="Queue locks; only of an Ordered group with concurrency Queue."
    )
    lanes: LaneStatus | None = Field(default=None, description="Lanes; only with concurrency Key.")


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
