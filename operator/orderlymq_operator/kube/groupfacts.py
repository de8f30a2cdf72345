"""
What the status of a ConsumerGroup says: who is there, who has which queue, how much is left.

Pure. Rules: lag is told in two digits, so that it is written when it means something; lists are cut, counts never; what
is not known is left out.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from orderlymq_operator.actions import ConditionReport, Observed
from orderlymq_operator.brokeradmin import GroupMember, Lock
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.models import ConsumerGroup

_MEMBERS_MAX: Final = 256  # of the schema
_QUEUES_MAX: Final = 1024  # likewise
_NAMED_MAX: Final = 5  # in a sentence
_RETRY: Final = "%RETRY%"

Queue = tuple[str, str, int]  # topic, raft group, number


@dataclass(frozen=True, slots=True)
class GroupSight:
    """A consumer group as all raft groups see it."""

    members: Mapping[str, GroupMember] = field(default_factory=dict)
    owners: Mapping[Queue, str] = field(default_factory=dict)
    lag: int = 0


def sight_of(
    name: str,
    members: Sequence[Sequence[GroupMember]],
    locks: Mapping[str, Sequence[Lock]],
    lags: Sequence[int],
) -> GroupSight:
    """Return what the raft groups say of consumer group *name*, put together."""
    return GroupSight(
        {member.client_id: member for found in members for member in found},
        {
            (lock.topic, group, lock.queue): lock.client_id
            for group, found in locks.items()
            for lock in found
            if lock.group == name and not lock.topic.startswith(_RETRY)
        },
        sum(lags),
    )


def group_facts(group: ConsumerGroup, sight: GroupSight, observed: Observed) -> Json:
    """Return what is known of a consumer group beside its conditions."""
    shares = Counter(sight.owners.values())
    members = sorted(sight.members.values(), key=lambda member: member.client_id)
    facts: Json = {
        "members": len(members),
        "lag": coarse(sight.lag),
        "memberList": [
            {
                "clientId": member.client_id,
                "address": member.address,
                "zone": "",
                "queues": shares[member.client_id],
            }
            for member in members[:_MEMBERS_MAX]
        ],
    }
    if group.spec.ordering != "Ordered":
        return facts | {"assignment": []}
    queues = queues_of(group, sight, observed)
    return facts | {
        "assignment": [
            {
                "topic": topic,
                "group": raft_group,
                "queue": number,
                "clientId": sight.owners.get((topic, raft_group, number), ""),
            }
            for topic, raft_group, number in queues[:_QUEUES_MAX]
        ],
        "locks": {
            "held": len(sight.owners),
            "free": sum(queue not in sight.owners for queue in queues),
            "contended": 0,
        },
    }


def group_conditions(
    group: ConsumerGroup, sight: GroupSight, observed: Observed
) -> dict[str, ConditionReport]:
    """Return Balanced, for an Ordered group, and ConsistentSubscription."""
    if not sight.members:
        nobody = ConditionReport("Unknown", "NoMembers", "nobody consumes")
        kinds = ["ConsistentSubscription"]
        kinds += ["Balanced"] if group.spec.ordering == "Ordered" else []
        return dict.fromkeys(kinds, nobody)
    found = {"ConsistentSubscription": _consistency(sight)}
    if group.spec.ordering == "Ordered":
        found["Balanced"] = _balance(group, sight, observed)
    return found


def _balance(group: ConsumerGroup, sight: GroupSight, observed: Observed) -> ConditionReport:
    queues = queues_of(group, sight, observed)
    free = [queue for queue in queues if queue not in sight.owners]
    if free:
        named = ", ".join(f"{topic}@{place}-{number}" for topic, place, number in free[:_NAMED_MAX])
        more = f" and {len(free) - _NAMED_MAX} more" if len(free) > _NAMED_MAX else ""
        return ConditionReport("False", "QueuesWithoutOwner", f"no owner: {named}{more}")
    shares = Counter(sight.owners[queue] for queue in queues)
    counts = [shares[client] for client in sight.members]
    if counts and max(counts) - min(counts) > 1:
        text = f"between {min(counts)} and {max(counts)} of {len(queues)} queues per member"
        return ConditionReport("False", "UnevenShares", text)
    text = f"{len(queues)} queues, {len(sight.members)} members"
    return ConditionReport("True", "Balanced", text)


def _consistency(sight: GroupSight) -> ConditionReport:
    wishes: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for member in sight.members.values():
        own = tuple(
            sorted(
                (topic, expression)
                for topic, expression in member.subscriptions.items()
                if not topic.startswith(_RETRY)
            )
        )
        wishes.setdefault(own, []).append(member.client_id)
    if len(wishes) <= 1:
        return ConditionReport("True", "SameSubscription", "all members subscribe to the same")
    # The smaller parties are the likely mistake.
    parties = sorted(wishes.items(), key=lambda party: len(party[1]))
    text = "; ".join(
        f"{clients[0]}{f' and {len(clients) - 1} more' if len(clients) > 1 else ''}: "
        + (", ".join(f"{topic} {expression}" for topic, expression in own) or "nothing")
        for own, clients in parties[:_NAMED_MAX]
    )
    return ConditionReport("False", "DifferentSubscriptions", text)


def queues_of(group: ConsumerGroup, sight: GroupSight, observed: Observed) -> list[Queue]:
    """Return every queue that the group is to consume: of its topics, or of those its members ask for."""
    topics = {topic.name for topic in group.spec.topics} or {
        topic
        for member in sight.members.values()
        for topic in member.subscriptions
        if not topic.startswith(_RETRY)
    }
    return [
        (topic, name, number)
        for topic in sorted(topics)
        for name, found in sorted(observed.groups.items())
        if (config := (found.topics or {}).get(topic)) is not None
        for number in range(config.queues)
    ]


def coarse(count: int) -> int:
    """Return a count in two digits: 1234 becomes 1200, 17 stays."""
    step = 1
    while count // step >= 100:
        step *= 10
    return count // step * step
