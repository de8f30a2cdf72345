"""
The canary of a Cluster: a pod that proves order, delivery, take-over and latency all the time; only Kubernetes obeys it.

`kube.objects.canary` makes its objects, `orderlymq_operator.canary` is what runs in it.
"""

from typing import Annotated, Final

from pydantic import Field

from orderlymq_operator.resources.meta import Model
from orderlymq_operator.resources.quantities import Duration, Quantity
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
    requests=ComputeRequests(cpu="20m", memory=Quantity("96Mi")),
    limits=ComputeRequests(memory=Quantity("256Mi")),
)

# Name, status, what is the case and what to do, of each reason of the condition OrderVerified.
ORDER_REASONS: Final = (
    (
        "OrderKept",
        "True",
        "Every queue of the canary has delivered in order a moment ago.",
        "",
    ),
    (
        "Slow",
        "True",
        "The order is kept, but messages of the canary arrive later than spec.canary.target.",
        "See the alert OrderlyMQCanaryBudgetBurns: disk, CPU limits, network.",
    ),
    (
        "Starting",
        "Unknown",
        "The canary has begun, and not every queue has delivered yet.",
        "",
    ),
    (
        "SendsFail",
        "Unknown",
        "A group does not take the canary's messages; the message has the last error. The order is not broken, it cannot be proven.",
        "Nothing while it passes within seconds, as in an election; otherwise look at the condition Available.",
    ),
    (
        "NotDelivered",
        "Unknown",
        "Acknowledged messages of the canary have not been delivered for 5 seconds. It becomes Undelivered after 60.",
        "Nothing while it passes; otherwise `orderlymq group show orderlymq_canary` names who holds the queue.",
    ),
    (
        "AnotherCanary",
        "Unknown",
        "Another canary sends to the same topics, so that this one proves nothing.",
        "Stop it, or start it with a --prefix of its own.",
    ),
    (
        "CanarySilent",
        "Unknown",
        "The canary's pod does not run or does not answer.",
        "Look at the pod and the log of the Deployment NAME-canary.",
    ),
    (
        "Skipped",
        "False",
        "A message was delivered although an earlier one of its key was not.",
        "docs/howto/canary.md says what each trouble means and where to look.",
    ),
    (
        "Reordered",
        "False",
        "A message was delivered for the first time behind a later one of its key.",
        "As Skipped.",
    ),
    (
        "Lost",
        "False",
        "A queue was begun again behind what had been acknowledged: acknowledged messages are lost.",
        "Did somebody delete the canary's topic or a volume? Otherwise keep the volumes and report it.",
    ),
    (
        "StoredTwice",
        "False",
        "An older message stands in the queue a second time, behind later ones.",
        "As Skipped.",
    ),
    (
        "Rewritten",
        "False",
        "One offset of a queue has held two different messages.",
        "Keep the volumes; `orderlymq doctor` examines a replica. Report it.",
    ),
    (
        "TwoHolders",
        "False",
        "Two consumers worked on one queue at the same time.",
        "Does a client of the group consume without locks? Otherwise report it.",
    ),
    (
        "Altered",
        "False",
        "A message is not what the canary sent, or nobody has sent it.",
        "Does somebody send to the canary's topics? Otherwise look at memory and disks of the group.",
    ),
    (
        "RefusedDelivered",
        "False",
        "A message was delivered whose send had been refused.",
        "As Skipped.",
    ),
    (
        "Misplaced",
        "False",
        "A message is in another queue, or at another offset, than the answer to its send said.",
        "As Skipped.",
    ),
    (
        "Replayed",
        "False",
        "Messages were delivered again that had been consumed long before: the offset of the canary's group has gone back.",
        "Did somebody reset the group's offset? Otherwise report it.",
    ),
    (
        "Undelivered",
        "False",
        "A message was acknowledged a minute ago and not delivered, although the group takes messages.",
        "`orderlymq group show orderlymq_canary` names who holds the queue, and whether the group is suspended.",
    ),
    (
        "TopicGone",
        "False",
        "The canary's topic was deleted, with the messages in it. The canary has made it again.",
        "See who deletes topics: the events of the operator and the audit log of the console.",
    ),
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
    resources: Resources = Field(
        default=CANARY_RESOURCES, description="What its pod is promised and may use."
    )


def canary_topic(group: str) -> str:
    """Return the topic of the canary in one broker group."""
    return f"{CANARY_PREFIX}_{group}"
