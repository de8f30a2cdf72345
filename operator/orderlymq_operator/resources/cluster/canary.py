"""
The canary of a Cluster: a pod that checks order, delivery, take-over and latency; only Kubernetes applies it.

`kube.objects.canary` makes its objects; the pod runs `orderlymq_operator.canary`.
"""

from typing import Annotated, Final

from pydantic import Field

from orderlymq_operator.resources.meta import Model
from orderlymq_operator.resources.quantities import Duration
from orderlymq_operator.resources.workload import ComputeRequests, Resources

CANARY_COMPONENT: Final = "canary"
CANARY_PORT: Final = 9871
# Queues of each topic: one for each of the two consumers, and both change hands.
CANARY_QUEUES: Final = 2
# The prefix of its topics and the name of its consumer group; a canary that a person runs has another prefix.
CANARY_PREFIX: Final = "orderlymq_canary"
# An objective in parts per million, because schemas of Kubernetes should not use fractions.
OBJECTIVE_PPM: Final = 999_000
# A canary of 64 broker groups uses less than 150 MiB.
CANARY_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="20m", memory="96Mi"),
    limits=ComputeRequests(memory="256Mi"),
)


class Canary(Model):
    """A producer and two consumers that check the ordering guarantees with their own messages; only in Kubernetes."""

    enabled: bool = Field(default=False, description="Run the canary.")
    interval: Duration = Field(
        default=Duration("1s"),
        description="Interval between two messages in each of two queues of each broker group.",
    )
    target: Duration = Field(
        default=Duration("1s"),
        description="A message that is delivered later than this after its send counts against the error budget.",
    )
    objective_ppm: Annotated[int, Field(ge=500_000, le=999_999)] = Field(
        default=OBJECTIVE_PPM,
        description="How many of a million messages must be delivered within the target.",
    )
    takeover_interval: Duration = Field(
        default=Duration("1m"),
        description="How often one of the two consumers stops, so that the other takes over its queues.",
    )
    hold: Duration = Field(
        default=Duration("15m"),
        description="How long OrderVerified stays False after the last violation.",
    )
    resources: Resources = Field(
        default=CANARY_RESOURCES, description="Resources of the canary's pod."
    )


def canary_topic(group: str) -> str:
    """Return the topic of the canary in one broker group."""
    return f"{CANARY_PREFIX}_{group}"
