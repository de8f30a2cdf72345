"""
The kind Topic: a named set of queues.

The number of queues of an ordered topic is part of its order, because a key goes to queue `hash % queues`. So it is
chosen once, and later changes only by DrainAndSwitch. `plan.refusals` says which changes are refused.
"""

from typing import Annotated, Final, Literal, Self

from pydantic import Field, model_validator

from orderlymq_operator.resources.meta import (
    IMMUTABLE,
    ClusterRef,
    KubernetesObject,
    Model,
    Status,
    WireName,
    rule,
    rules,
    set_once,
)
from orderlymq_operator.resources.quantities import Duration
from orderlymq_protocol.header.extensions import EXPANSION_MS_MAX

QueueChangePolicy = Literal["Reject", "Expand", "DrainAndSwitch"]
PERMISSION_BITS: Final = {"ReadOnly": 4, "WriteOnly": 2, "ReadWrite": 6}
QUEUES_MAX: Final = 1024
# With a shorter time, a fence would end before the operator, which needs a second, has switched to the new list.
_DRAIN_MIN: Final = Duration("2s")
_EXPANSION_MAX: Final = Duration(f"{EXPANSION_MS_MAX // 3_600_000}h")
_DRAIN_RANGE: Final = f"drainTimeout is {_DRAIN_MIN} to {_EXPANSION_MAX}"
_PROPAGATION_RANGE: Final = f"routePropagationTime is at most {_EXPANSION_MAX}"


class TopicSpec(Model):
    """Desired state of a topic."""

    cluster_ref: ClusterRef = Field(
        description="The Cluster that holds the topic.", json_schema_extra=IMMUTABLE
    )
    topic_name: WireName | None = Field(
        default=None,
        description="Name that clients use. Defaults to metadata.name. Names that brokers reserve, such as `%DLQ%...`, "
        "`%RETRY%...`, `rmq_sys_...` and TBW102, are refused.",
        json_schema_extra=IMMUTABLE,
    )
    type: Literal["Ordered", "Normal", "Delay", "Transaction"] = Field(
        default="Ordered",
        description="Ordered keeps the order of each key across failures; its queue list changes only by DrainAndSwitch.",
        json_schema_extra=IMMUTABLE,
    )
    queues: Annotated[int, Field(ge=1, le=QUEUES_MAX)] = Field(
        default=8,
        description="Number of queues in all broker groups together; at most this many consumers can share the work.",
    )
    queue_change_policy: QueueChangePolicy | None = Field(
        default=None,
        description="How a changed number of queues takes effect. Defaults to Reject for Ordered topics and to Expand for "
        "others. DrainAndSwitch lets an Ordered topic grow: writes are refused until every ordered consumer group has "
        "consumed all messages, then the new queue list applies.",
    )
    drain_timeout: Duration = Field(
        default=Duration("60s"),
        description="DrainAndSwitch: how long writes may be refused while consumer groups drain the topic; after that, writes "
        f"to the old queues are accepted again, and the status names the consumer groups that were too slow. From {_DRAIN_MIN} "
        f"to {_EXPANSION_MAX}.",
        json_schema_extra=rules(
            rule(
                f"duration(self) >= duration('{_DRAIN_MIN}') && duration(self) <= duration('{_EXPANSION_MAX}')",
                _DRAIN_RANGE,
            )
        ),
    )
    route_propagation_time: Duration = Field(
        default=Duration("40s"),
        description="DrainAndSwitch: how long the sends of RocketMQ clients are refused after the new list is published. They "
        "fetch it every 30 s (pollNameServerInterval) and may use the old one for another send time-out. The SDK is served "
        f"immediately. At most {_EXPANSION_MAX}.",
        json_schema_extra=rules(
            rule(f"duration(self) <= duration('{_EXPANSION_MAX}')", _PROPAGATION_RANGE)
        ),
    )
    permission: Literal["ReadOnly", "WriteOnly", "ReadWrite"] = Field(
        default="ReadWrite", description="Operations that clients are allowed to do."
    )
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain",
        description="Whether the messages are kept or deleted when this object is deleted.",
    )

    @property
    def effective_queue_change_policy(self) -> QueueChangePolicy:
        """The policy, or its default if it is absent."""
        if self.queue_change_policy is not None:
            return self.queue_change_policy
        return "Reject" if self.type == "Ordered" else "Expand"

    @model_validator(mode="after")
    def _ordered_never_expands(self) -> Self:
        if self.type == "Ordered" and self.queue_change_policy == "Expand":
            raise ValueError(
                "queueChangePolicy Expand would move keys between the queues of an Ordered topic; "
                "use Reject, or type Normal"
            )
        return self

    @model_validator(mode="after")
    def _brokers_take_its_times(self) -> Self:
        drain, propagation = self.drain_timeout, self.route_propagation_time
        if not _DRAIN_MIN.milliseconds <= drain.milliseconds <= EXPANSION_MS_MAX:
            raise ValueError(f"{_DRAIN_RANGE}, not {drain}")
        if propagation.milliseconds > EXPANSION_MS_MAX:
            raise ValueError(f"{_PROPAGATION_RANGE}, not {propagation}: brokers do not wait longer")
        return self


class QueueLayout(Model):
    """The queues of a topic in one broker group."""

    group: str
    queues: Annotated[int, Field(ge=0)]


class QueueBarrier(Model):
    """The end of a queue when writes were fenced."""

    group: str
    queue: Annotated[int, Field(ge=0)]
    offset: Annotated[int, Field(ge=0)]


class ExpansionBlocker(Model):
    """A consumer group that is not past the barriers, and how many messages it still has to consume."""

    consumer_group: str = Field(
        description="The ordered consumer group; empty for open transactions."
    )
    group: str = Field(description="The raft group that holds the queue.")
    queue: int = Field(description="Queue number; -1 for retries and transactions.")
    messages: Annotated[int, Field(ge=0)] = Field(description="Messages not consumed yet.")
    reason: str = ""


class ExpansionStatus(Model):
    """Progress of the expansion of an Ordered topic."""

    phase: Literal["Waiting", "Fencing", "Draining", "Switching", "Propagating", "Aborted"] = Field(
        description="Waiting: not begun, writes are accepted. Fencing, Draining: writes are refused until every ordered "
        "consumer group is past the barriers. Switching: the new list takes effect. Propagating: only senders that know the "
        "new list are served. Aborted: tried again later."
    )
    from_queues: Annotated[int, Field(ge=0)]
    to_queues: Annotated[int, Field(ge=0)]
    attempt: Annotated[int, Field(ge=0)] = 0
    barriers: list[QueueBarrier] = Field(default=[], max_length=1024)
    blockers: list[ExpansionBlocker] = Field(
        default=[],
        max_length=64,
        description="What the expansion waits for, the farthest behind first.",
    )


class TopicStatus(Status):
    """Observed state of a topic."""

    topic_name: str | None = Field(default=None, description="Name that clients use.")
    queue_layout: list[QueueLayout] = Field(
        default=[], max_length=64, description="The queues by broker group."
    )
    expansion: ExpansionStatus | None = Field(
        default=None, description="The current expansion, or the last one that was aborted."
    )


class Topic(KubernetesObject):
    """A named set of queues, spread over the broker groups of a Cluster."""

    kind: Literal["Topic"] = "Topic"
    spec: TopicSpec
    status: TopicStatus | None = None

    @property
    def topic_name(self) -> str:
        """The name that clients use."""
        return self.spec.topic_name or self.metadata.name

    @property
    def ordered(self) -> bool:
        """Whether the topic promises order, so that its queue list may not change freely."""
        return self.spec.type == "Ordered"


SPEC_RULES: Final = rules(
    rule(
        "!(self.type == 'Ordered' && has(self.queueChangePolicy) && self.queueChangePolicy == 'Expand')",
        "queueChangePolicy Expand would move keys between the queues of an Ordered topic",
        field=".queueChangePolicy",
    ),
    rule(
        "self.queues == oldSelf.queues || (has(self.queueChangePolicy) ? "
        "self.queueChangePolicy != 'Reject' : self.type != 'Ordered')",
        "queueChangePolicy Reject: the number of queues cannot change",
        field=".queues",
    ),
    rule(
        "self.queues >= oldSelf.queues",
        "queues cannot be removed while they may hold messages",
        field=".queues",
    ),
    set_once("topicName"),
)
