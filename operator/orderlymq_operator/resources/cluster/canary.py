"""
The canary of a Cluster: a pod that checks order, delivery, take-over and latency continuously; only Kubernetes obeys it.

`kube.objects.canary` makes its objects, `orderlymq_operator.canary` is what runs in it.
"""

from typing import Annotated, Final

from pydantic import Field

from orderlymq_operator.resources.meta import Model
from orderlymq_operator.resources.quantities import Duration
from orderlymq_operator.resources.workload import ComputeRequests, Resources

CANARY_COMPONENT: Final = "canary"
CANARY_PORT: Final = 9871
# Of each topic: so that each of the two consumers has one, and both change hands.
CANARY_QUEUES: Final = 2
# Of its topics and its consumer group; a canary that somebody runs by hand has another one.
CANARY_PREFIX: Final = "orderlymq_canary"
# An objective in parts per million, because a schema of Kubernetes has no business with fractions.
OBJECTIVE_PPM: Final = 999_000
# A canary of 64 groups stays below 150 MiB.
CANARY_RESOURCES: Final = Resources(
    requests=ComputeRequests(cpu="20m", memory="96Mi"),
    limits=ComputeRequests(memory="256Mi"),
)


class Canary(Model):
    """A producer and two consumers whose own messages prove the promise; only in Kubernetes."""

    enabled: bool = Field(default=False, description="Run the canary.")
    interval: Duration = Field(
        default=Duration("1s"),
        description="From one message to the next in each of two queues of each broker group.",
    )
    target: Duration = Field(
        default=Duration("1s"),
        description="A message that is delivered later than this after its send spends the error budget.",
    )
    objective_ppm: Annotated[int, Field(ge=500_000, le=999_999)] = Field(
        default=OBJECTIVE_PPM,
        description="Messages of a million that must be delivered within the target.",
    )
    takeover_interval: Duration = Field(
        default=Duration("1m"),
        description="How often one of the two consumers ends, so that the other takes its queues.",
    )
    hold: Duration = Field(
        default=Duration("15m"),
        description="How long OrderVerified stays False after the last trouble.",
    )
    resources: Resources = Field(default=CANARY_RESOURCES, description="Resources of its pod.")


def canary_topic(group: str) -> str:
    """Return the topic of the canary in one broker group."""
    return f"{CANARY_PREFIX}_{group}"
