"""
Observed state of a ConsumerGroup, and its status: members, owners of queues, lag.

Pure. Rules: the lag is rounded to two digits, so that small changes cause no write. Lists are cut off; counts are
complete. Unknown facts are left out.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from orderlymq_operator.brokers.answers import GroupMember, Lock
from orderlymq_operator.kube.resources import Json
from orderlymq_operator.plan.actions import ConditionReport, Observed
from orderlymq_operator.resources.kinds import ConsumerGroup
from orderlymq_protocol.body.lanes import QueueLanes
from orderlymq_protocol.names import is_retry_topic
from orderlymq_protocol.plurals import counted

_MEMBERS_MAX: Final = 256  # the limit in the schema
_QUEUES_MAX: Final = 1024  # the limit in the schema
_NAMED_MAX: Final = 5  # in a message

Queue = tuple[str, str, int]  # topic, raft group, number


@dataclass(frozen=True, slots=True)
class ObservedConsumerGroup:
    """The state of a consumer group, merged from all raft groups.

    Attributes:
        wanted: for each queue, the client that was just refused its lock because another client holds it.
        views: the members that each raft group knows.
        zones: the zones of members; empty if unknown.
        lanes: figures of the queues, for a consumer group with concurrency by key.
    """

    members: Mapping[str, GroupMember] = field(default_factory=dict)
    owners: Mapping[Queue, str] = field(default_factory=dict)
    lag: int = 0
    wanted: Mapping[Queue, str] = field(default_factory=dict)
    views: Mapping[str, Collection[str]] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    lanes: Sequence[QueueLanes] = ()


def observe_consumer_group(
    members: Mapping[str, Sequence[GroupMember]],
    locks: Mapping[str, Sequence[Lock]],
    lags: Sequence[int],
    zone_of: Callable[[str], str] = lambda _: "",
    lanes: Iterable[Sequence[QueueLanes]] = (),
) -> ObservedConsumerGroup:
    """Merge the reports of the raft groups about one consumer group; *locks* are the locks of its queues."""
    held = {
        (lock.topic, group, lock.queue): lock
        for group, found in locks.items()
        for lock in found
        if not is_retry_topic(lock.topic)
    }
    known = {member.client_id: member for found in members.values() for member in found}
    return ObservedConsumerGroup(
        known,
        {queue: lock.client_id for queue, lock in held.items()},
        sum(lags),
        {queue: lock.wanted_by for queue, lock in held.items() if lock.wanted_by in known},
        {place: {member.client_id for member in found} for place, found in members.items()},
        {client_id: zone_of(member.address) for client_id, member in known.items()},
        tuple(chain.from_iterable(lanes)),
    )


def group_facts(group: ConsumerGroup, seen: ObservedConsumerGroup, observed: Observed) -> Json:
    """Return the status of a consumer group without its conditions."""
    shares = Counter(seen.owners.values())
    members = sorted(seen.members.values(), key=lambda member: member.client_id)
    facts: Json = {
        "members": len(members),
        "lag": coarse(seen.lag),
        "memberList": [
            {
                "clientId": member.client_id,
                "address": member.address,
                "zone": seen.zones.get(member.client_id, ""),
                "queues": shares[member.client_id],
            }
            for member in members[:_MEMBERS_MAX]
        ],
    }
    if group.spec.concurrency == "Key":
        facts["lanes"] = {
            "inHand": sum(each.in_hand for each in seen.lanes),
            "ready": sum(each.ready for each in seen.lanes),
            "parked": sum(each.parked for each in seen.lanes),
            "held": sum(each.held for each in seen.lanes),
            "owed": coarse(sum(each.owed for each in seen.lanes)),
        }
    if not _locks(group):
        return facts | {"assignment": []}
    queues = queues_of(group, seen, observed)
    return facts | {
        "assignment": [
            {
                "topic": topic,
                "group": raft_group,
                "queue": number,
                "clientId": seen.owners.get((topic, raft_group, number), ""),
            }
            for topic, raft_group, number in queues[:_QUEUES_MAX]
        ],
        "locks": {
            "held": len(seen.owners),
            "free": sum(queue not in seen.owners for queue in queues),
            "contended": sum(queue in seen.wanted for queue in queues),
        },
    }


def group_conditions(
    group: ConsumerGroup, seen: ObservedConsumerGroup, observed: Observed
) -> dict[str, ConditionReport]:
    """Return ConsistentSubscription, and Balanced (members lock queues) or LanesFlowing (concurrency is by key)."""
    found = {"LanesFlowing": _flow(group, seen)} if group.spec.concurrency == "Key" else {}
    if not seen.members:
        nobody = ConditionReport("Unknown", "NoMembers", "nobody consumes")
        kinds = ["ConsistentSubscription"]
        kinds += ["Balanced"] if _locks(group) else []
        return found | dict.fromkeys(kinds, nobody)
    found["ConsistentSubscription"] = _consistency(seen)
    if _locks(group):
        found["Balanced"] = _balance(group, seen, observed)
    return found


def _locks(group: ConsumerGroup) -> bool:
    """Return whether the members of a consumer group lock queues; with concurrency by key they take lanes instead."""
    return group.spec.ordering == "Ordered" and group.spec.concurrency == "Queue"


def _flow(group: ConsumerGroup, seen: ObservedConsumerGroup) -> ConditionReport:
    held = sum(each.held for each in seen.lanes)
    if held:
        waiting = counted(held, "lane waits", "lanes wait")
        text = f"{waiting} for `orderlymq group release {group.group_name}`"
        return ConditionReport("False", "LanesHeld", text)
    limited = next((each for each in seen.lanes if each.limited), None)
    if limited is not None:
        queue = _text((limited.topic, limited.broker_name, limited.queue_id))
        return ConditionReport("False", "LanesLimited", f"{queue}: {limited.limited}")
    ready, in_hand, parked = (
        sum(getattr(each, name) for each in seen.lanes) for name in ("ready", "in_hand", "parked")
    )
    text = f"{ready} ready, {in_hand} being processed, {parked} parked"
    return ConditionReport("True", "LanesFlowing", text)


def _balance(
    group: ConsumerGroup, seen: ObservedConsumerGroup, observed: Observed
) -> ConditionReport:
    queues = queues_of(group, seen, observed)
    free = [queue for queue in queues if queue not in seen.owners]
    if free:
        named = ", ".join(map(_text, free[:_NAMED_MAX])) + _more(free)
        return ConditionReport("False", "QueuesWithoutOwner", f"no owner: {named}")
    contended = [queue for queue in queues if queue in seen.wanted]
    if contended:
        named = ", ".join(
            f"{_text(queue)} of {seen.owners[queue]}, wanted by {seen.wanted[queue]}"
            for queue in contended[:_NAMED_MAX]
        )
        return ConditionReport("False", "QueuesContended", named + _more(contended))
    if parted := _parted(seen, observed):
        named = ", ".join(parted[:_NAMED_MAX]) + _more(parted)
        return ConditionReport("False", "MembersDiffer", f"other members are known to {named}")
    shares = Counter(seen.owners[queue] for queue in queues)
    counts = [shares[client] for client in seen.members]
    if counts and max(counts) - min(counts) > 1:
        text = f"between {min(counts)} and {max(counts)} of {len(queues)} queues per member"
        return ConditionReport("False", "UnevenShares", text)
    text = f"{counted(len(queues), 'queue')}, {counted(len(seen.members), 'member')}"
    if queues and min(counts) == 0:
        return ConditionReport(
            "True", "MembersIdle", f"{text}: {counts.count(0)} members have no queue"
        )
    return ConditionReport("True", "Balanced", text)


def _parted(seen: ObservedConsumerGroup, observed: Observed) -> list[str]:
    """Return the raft groups that do not know every member that reads one of their topics.

    Members do not contact raft groups that have none of their topics, so those raft groups do not count.
    """
    read = {
        client_id: {topic for topic in member.subscriptions if not is_retry_topic(topic)}
        for client_id, member in seen.members.items()
    }
    return [
        place
        for place, view in seen.views.items()
        if (found := observed.groups.get(place)) is not None
        and any(
            client_id not in view and not topics.isdisjoint(found.topics or ())
            for client_id, topics in read.items()
        )
    ]


def _text(queue: Queue) -> str:
    topic, place, number = queue
    return f"{topic}@{place}-{number}"


def _more(found: Sequence[object]) -> str:
    return f" and {len(found) - _NAMED_MAX} more" if len(found) > _NAMED_MAX else ""


def _consistency(seen: ObservedConsumerGroup) -> ConditionReport:
    subscriptions_of: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for member in seen.members.values():
        own = tuple(
            sorted(
                (topic, expression)
                for topic, expression in member.subscriptions.items()
                if not is_retry_topic(topic)
            )
        )
        subscriptions_of.setdefault(own, []).append(member.client_id)
    if len(subscriptions_of) <= 1:
        return ConditionReport("True", "SameSubscription", "all members have the same subscription")
    # Smallest first: a subscription that few members have is probably the mistake.
    parties = sorted(subscriptions_of.items(), key=lambda party: len(party[1]))
    text = "; ".join(
        f"{clients[0]}{f' and {len(clients) - 1} more' if len(clients) > 1 else ''}: "
        + (", ".join(f"{topic} {expression}" for topic, expression in own) or "nothing")
        for own, clients in parties[:_NAMED_MAX]
    )
    return ConditionReport("False", "DifferentSubscriptions", text)


def queues_of(group: ConsumerGroup, seen: ObservedConsumerGroup, observed: Observed) -> list[Queue]:
    """Return every queue to consume: of the topics in the spec, or, if none, of the members' subscriptions."""
    topics = {topic.name for topic in group.spec.topics} or {
        topic
        for member in seen.members.values()
        for topic in member.subscriptions
        if not is_retry_topic(topic)
    }
    return [
        (topic, name, number)
        for topic in sorted(topics)
        for name, found in sorted(observed.groups.items())
        if (config := (found.topics or {}).get(topic)) is not None
        for number in range(config.queues)
    ]


def coarse(count: int) -> int:
    """Round a count down to two digits: 1234 becomes 1200, 17 stays."""
    step = 1
    while count // step >= 100:
        step *= 10
    return count // step * step
