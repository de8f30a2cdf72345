"""The reasons of the other conditions of ConsumerGroups."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import CONSUMER_GROUP, Reason

REASONS: Final = (
    Reason(
        "Balanced",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "Every queue has exactly one online owner, and the members' shares differ by at most one queue.",
    ),
    Reason(
        "NoMembers",
        (CONSUMER_GROUP,),
        ("Balanced", "ConsistentSubscription"),
        "Unknown",
        "Nobody consumes.",
    ),
    Reason(
        "QueuesWithoutOwner",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Queues have no owner; the message names them. The brokers notify the members.",
        "If this lasts, add members, or look for a client that takes no queue locks.",
    ),
    Reason(
        "UnevenShares",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Some members have more queues than others.",
        "None needed; the shares even out when members join or leave.",
    ),
    Reason(
        "QueuesContended",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "A member was refused a queue in the last 30 seconds because another member holds its lock; the message names both.",
        "None if it passes. If it lasts, the members compute different assignments: give all of them the same strategy and "
        "the same topics.",
    ),
    Reason(
        "MembersDiffer",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Raft groups know different members, so the members compute different assignments; the message names the raft groups.",
        "None if it passes: the members are asked to rebalance. If it lasts, a client cannot reach every raft group.",
    ),
    Reason(
        "MembersIdle",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "There are more members than queues: every queue has one owner, and some members have no queue.",
        "Run fewer members, or give the topic more queues.",
    ),
    Reason(
        "LanesFlowing",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "True",
        "With concurrency Key: no lane needs attention. Parked lanes continue by themselves.",
    ),
    Reason(
        "LanesHeld",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "False",
        "Lanes wait behind a message that failed too often (`onDeadLetter: HoldKey`). Other keys are not affected.",
        "`orderlymq group show` names the lanes. Repair what fails, then run `orderlymq group release`, or skip the message.",
    ),
    Reason(
        "LanesLimited",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "False",
        "A queue starts no new lanes; the message names the queue and the reason.",
        "Do what the message says.",
    ),
    Reason(
        "SameSubscription",
        (CONSUMER_GROUP,),
        ("ConsistentSubscription",),
        "True",
        "All members have the same subscription.",
    ),
    Reason(
        "DifferentSubscriptions",
        (CONSUMER_GROUP,),
        ("ConsistentSubscription",),
        "False",
        "Members subscribe to different topics or tags and take messages from each other; the message names them.",
        "Give all members of a group the same subscription.",
    ),
)
