"""The reasons of the other conditions of ConsumerGroups."""

from typing import Final

from orderlymq_operator.resources.conditions.reason import CONSUMER_GROUP, Reason

REASONS: Final = (
    Reason(
        "Balanced",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "Every queue has exactly one living owner, and shares differ by one at most.",
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
        "Queues have no owner; the message names them. Their members are notified by the brokers.",
        "If it stays: more members, or a client that does not lock.",
    ),
    Reason(
        "UnevenShares",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Some members have more queues than others.",
        "None needed; it evens out when members come and go.",
    ),
    Reason(
        "QueuesContended",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "A member was refused a queue in the last half minute because another has it; "
        "the lock decides, and the message names both.",
        "None when it passes. If it stays, members assign the queues differently: give all the same "
        "strategy and the same topics.",
    ),
    Reason(
        "MembersDiffer",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "False",
        "Raft groups know different members, who then assign the queues differently; the message names the groups.",
        "None when it passes: the members are asked to look again. If it stays, a client does not reach every group.",
    ),
    Reason(
        "MembersIdle",
        (CONSUMER_GROUP,),
        ("Balanced",),
        "True",
        "There are more members than queues: every queue has one owner, and some members have none.",
        "Fewer members, or a topic with more queues.",
    ),
    Reason(
        "LanesFlowing",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "True",
        "With concurrency Key: no lane waits for a person. Lanes that are parked go on by themselves.",
    ),
    Reason(
        "LanesHeld",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "False",
        "Lanes wait behind a message that failed too often (`onDeadLetter: HoldKey`). Other keys go on.",
        "`orderlymq group show` names the lanes. Repair what fails, then run `orderlymq group release`, or skip the message.",
    ),
    Reason(
        "LanesLimited",
        (CONSUMER_GROUP,),
        ("LanesFlowing",),
        "False",
        "A queue hands out no new lanes; the message names the queue and the reason.",
        "As the message says.",
    ),
    Reason(
        "SameSubscription",
        (CONSUMER_GROUP,),
        ("ConsistentSubscription",),
        "True",
        "All members subscribe to the same.",
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
