"""
The kind ConsumerGroup: who reads which topics, in order or not, and what happens to failures.

A group need not be declared to exist; declaring it fixes its rules before the first consumer starts.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from orderlymq_operator.meta import (
    API_VERSION,
    IMMUTABLE,
    ClusterRef,
    Model,
    ObjectMeta,
    Status,
    WireName,
    rule,
    rules,
)
from orderlymq_operator.quantities import Duration


class SubscribedTopic(Model):
    """A topic that the group reads."""

    name: WireName = Field(description="Name of the topic, as clients use it.")
    filter: Annotated[str, StringConstraints(min_length=1, max_length=1024)] = Field(
        default="*", description="Tags that the group wants, as in `TagA || TagB`."
    )


class Retry(Model):
    """What happens to a message whose consumer fails."""

    max_times: Annotated[int, Field(ge=-1, le=10_000)] = Field(
        default=16, description="Deliveries before the message becomes a dead letter."
    )
    queues: Annotated[int, Field(ge=0, le=64)] = Field(
        default=1, description="Queues of the group's retry topic; 0 drops failures."
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
        description="Ordered: one consumer per queue, proven by a lock; the broker refuses others.",
        json_schema_extra=IMMUTABLE,
    )
    topics: Annotated[list[SubscribedTopic], Field(max_length=64)] = Field(
        default=[], description="Topics that the group reads; startFrom applies to them."
    )
    retry: Retry = Field(default=Retry(), description="What happens to failures.")
    start_from: Literal["Client", "Latest", "Earliest"] = Field(
        default="Client",
        description="Where the group begins on its topics; used once, when the group is created. "
        "Client leaves the choice to the consumers.",
    )
    consume_timeout: Duration = Field(
        default=Duration("15m"), description="A message in work for longer counts as failed."
    )
    enabled: bool = Field(default=True, description="False stops deliveries to the group.")
    deletion_policy: Literal["Retain", "Delete"] = Field(
        default="Retain", description="What becomes of the offsets when this object is deleted."
    )


class ConsumerGroupStatus(Status):
    """What is known about a consumer group."""

    members: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Consumers online."
    )
    lag: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="Messages not consumed yet, about."
    )


class ConsumerGroup(Model):
    """A set of consumers that share the queues of topics."""

    api_version: Literal["orderlymq.io/v1alpha1"] = API_VERSION
    kind: Literal["ConsumerGroup"] = "ConsumerGroup"
    metadata: ObjectMeta
    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus | None = None

    @property
    def group_name(self) -> str:
        """The name that clients use."""
        return self.spec.group_name or self.metadata.name


SPEC_RULES: Final = rules(
    rule(
        "has(self.groupName) == has(oldSelf.groupName)",
        "groupName cannot be set or removed later",
        field=".groupName",
    )
)
