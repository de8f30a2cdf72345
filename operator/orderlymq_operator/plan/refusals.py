"""
Which changes of a running cluster are refused, why, and what to do instead.

Rule: the whole change is judged before anything is touched. One refusal of a changed object refuses the whole change.
The new manifests are compared field by field with the previous ones, and with what the brokers have, because a client
or a tool may have made a topic.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

from orderlymq_operator.plan.actions import Observed, Refuse, TopicConfig
from orderlymq_operator.plan.guard import unconfirmed
from orderlymq_operator.plan.placement import parse_order_text
from orderlymq_operator.resources.kinds import (
    Cluster,
    ConsumerGroup,
    Desired,
    Topic,
    is_brokers_own,
)
from orderlymq_protocol.body.lanes import DELAY_MS_MAX
from orderlymq_protocol.plurals import counted


def refusals(desired: Desired, observed: Observed) -> list[Refuse]:
    """Return every reason why *desired* is refused."""
    found: list[Refuse] = []
    before = observed.accepted
    if before is not None:
        found += _cluster_changes(before.cluster, desired.cluster)
        found += _tls_change(observed.tls_modes, desired.cluster)
        if not found:  # a forbidden change needs no confirmation
            found += _unconfirmed(before.cluster, desired.cluster)
        topics = {topic.metadata.name: topic for topic in before.topics}
        groups = {group.metadata.name: group for group in before.consumer_groups}
        for topic in desired.topics:
            if (old_topic := topics.get(topic.metadata.name)) is not None:
                found += _topic_changes(old_topic, topic)
        for group in desired.consumer_groups:
            if (old_group := groups.get(group.metadata.name)) is not None:
                found += _group_changes(old_group, group)
    named = {(refusal.kind, refusal.name) for refusal in found}
    for topic in desired.topics:
        if ("Topic", topic.metadata.name) not in named:
            found += _conflicts(topic, desired.cluster, observed)
    for group in desired.consumer_groups:
        found += _unusable(group)
    return found


def of_change(refused: Sequence[Refuse], desired: Desired, before: Desired | None) -> list[Refuse]:
    """Return which of *refused* refuse the change from *before* to *desired*.

    A Topic or ConsumerGroup that was accepted with the same spec refuses no change. Either the brokers have changed
    since, or an earlier version accepted what this one refuses. `plan_accepted` leaves such an object alone and plans
    the rest. Exception: a Topic refuses the change if the change adds a broker group that takes its name.
    """
    if before is None:
        return list(refused)
    accepted = {(each.kind, each.metadata.name): each.spec for each in before.resources()}
    same = {
        (each.kind, each.metadata.name)
        for each in desired.resources()
        if each.kind in ("Topic", "ConsumerGroup")
        and accepted.get((each.kind, each.metadata.name)) == each.spec
    }
    taken = {
        ("Topic", each.metadata.name)
        for each in desired.topics
        if is_brokers_own(each.topic_name, desired.cluster)
        and not is_brokers_own(each.topic_name, before.cluster)
    }
    return [refusal for refusal in refused if (refusal.kind, refusal.name) not in same - taken]


def _cluster_changes(old: Cluster, new: Cluster) -> Iterator[Refuse]:
    name = new.metadata.name
    if old.metadata.name != name:
        yield Refuse(
            "Cluster",
            name,
            "metadata.name",
            f"the data belongs to Cluster {old.metadata.name!r}",
            "use another data directory for another Cluster",
        )
        return
    if new.spec.groups < old.spec.groups:
        yield Refuse(
            "Cluster",
            name,
            "spec.groups",
            f"{old.spec.groups} groups cannot become {new.spec.groups}: their queues hold messages",
            f"keep {old.spec.groups}",
        )
    if new.spec.name_servers.replicas < old.spec.name_servers.replicas:
        yield Refuse(
            "Cluster",
            name,
            "spec.nameServers.replicas",
            "clients keep the addresses of all name servers, so none can be removed",
            f"keep {old.spec.name_servers.replicas}",
        )
    if new.spec.storage.size.size_bytes < old.spec.storage.size.size_bytes:
        yield Refuse(
            "Cluster",
            name,
            "spec.storage.size",
            f"storage never shrinks: {old.spec.storage.size} cannot become {new.spec.storage.size}",
            f"keep {old.spec.storage.size}, or shorten the retention",
        )
    if new.spec.local != old.spec.local:
        yield Refuse(
            "Cluster",
            name,
            "spec.local",
            "stored message ids and clients contain the addresses",
            "keep the old values, or start a new cluster in another data directory",
        )


def _tls_change(running: Collection[str], new: Cluster) -> Iterator[Refuse]:
    mode = new.spec.tls.mode
    other = {"Disabled": "Enforcing", "Enforcing": "Disabled"}.get(mode)
    if other in running:
        yield Refuse(
            "Cluster",
            new.metadata.name,
            "spec.tls.mode",
            f"it cannot go from {other} to {mode} while the cluster runs: processes in one mode cannot reach those in the other",
            f"apply Permissive first, then {mode}",
        )


def _unconfirmed(old: Cluster, new: Cluster) -> Iterator[Refuse]:
    for act in unconfirmed(old, new, new.metadata.annotations):
        reason = f"{act.name} is not confirmed: {act.text}"
        yield Refuse("Cluster", new.metadata.name, act.field, reason, act.advice)


def _topic_changes(old: Topic, new: Topic) -> Iterator[Refuse]:
    name = new.metadata.name
    if old.topic_name != new.topic_name:
        yield _immutable("Topic", name, "spec.topicName", old.topic_name)
    if old.spec.type != new.spec.type:
        yield _immutable("Topic", name, "spec.type", old.spec.type)
    if old.spec.queues != new.spec.queues:
        yield from _queue_change(new, old.spec.queues)


def _queue_change(topic: Topic, present: int) -> Iterator[Refuse]:
    """Refuse a number of queues that a topic with *present* queues must not get."""
    name, wanted = topic.metadata.name, topic.spec.queues
    policy = topic.spec.effective_queue_change_policy
    if topic.ordered and policy == "DrainAndSwitch" and wanted > present:
        return
    if topic.ordered and policy == "DrainAndSwitch":
        yield Refuse(
            "Topic",
            name,
            "spec.queues",
            f"an Ordered topic never shrinks: {present} queues cannot become {wanted}",
            f"keep {present}",
        )
    elif topic.ordered:
        yield Refuse(
            "Topic",
            name,
            "spec.queues",
            f"an Ordered topic keeps its {counted(present, 'queue')}: with {wanted}, keys would move to other queues and their "
            "messages could overtake each other",
            f"keep {present}; to grow, set queueChangePolicy to DrainAndSwitch",
        )
    elif wanted < present:
        yield Refuse(
            "Topic",
            name,
            "spec.queues",
            f"{present} queues cannot become {wanted}: the last ones may hold messages",
            f"keep {present}",
        )
    elif topic.spec.effective_queue_change_policy != "Expand":
        yield Refuse(
            "Topic",
            name,
            "spec.queues",
            f"queueChangePolicy {topic.spec.effective_queue_change_policy} does not allow {present} "
            f"queues to become {wanted}",
            "set queueChangePolicy to Expand",
        )


def _group_changes(old: ConsumerGroup, new: ConsumerGroup) -> Iterator[Refuse]:
    name = new.metadata.name
    if old.group_name != new.group_name:
        yield _immutable("ConsumerGroup", name, "spec.groupName", old.group_name)
    if old.spec.ordering != new.spec.ordering:
        yield _immutable("ConsumerGroup", name, "spec.ordering", old.spec.ordering)


def _unusable(group: ConsumerGroup) -> Iterator[Refuse]:
    """Refuse a consumer group that every broker refuses."""
    name = group.spec.lane_key_property
    if not name.isprintable():
        reason = f"{name!r} is not a valid property name: messages store their properties as text"
        advice = "choose printable characters"
        yield Refuse("ConsumerGroup", group.metadata.name, "spec.laneKeyProperty", reason, advice)
    retry = group.spec.retry
    if not retry.pause.milliseconds <= retry.pause_max.milliseconds <= DELAY_MS_MAX:
        reason = f"pauses from {retry.pause} to {retry.pause_max} are not valid"
        advice = "choose a pauseMax of at most 24h that is no shorter than pause"
        yield Refuse("ConsumerGroup", group.metadata.name, "spec.retry.pauseMax", reason, advice)


def _immutable(kind: str, name: str, field: str, value: str) -> Refuse:
    return Refuse(
        kind,
        name,
        field,
        f"it is {value!r} and cannot be changed",
        "create the changed object under another metadata.name",
    )


def _conflicts(topic: Topic, cluster: Cluster, observed: Observed) -> Iterator[Refuse]:
    """Refuse a topic that exists in the brokers as something else, or that they would not create."""
    existing = topic_layout(topic.topic_name, observed)
    if is_brokers_own(topic.topic_name, cluster):
        reason = f"brokers reserve the name {topic.topic_name!r}"
        yield Refuse(
            "Topic", topic.metadata.name, "spec.topicName", reason, "choose another topicName"
        )
        return
    if not existing or expands(topic.topic_name, observed):
        return  # an expansion that has begun is finished, even if the manifest has changed since
    present = sum(config.queues for config in existing.values())
    whole = all(found.topics is not None for found in observed.groups.values())
    published = published_layout(topic.topic_name, observed)
    if topic.ordered:
        if not all(_may_be_ordered(config, group, published) for group, config in existing.items()):
            yield Refuse(
                "Topic",
                topic.metadata.name,
                "spec.type",
                f"the topic {topic.topic_name!r} exists already and is not ordered",
                "delete it first (if clients send to it, set autoCreateTopicEnable to false before); or declare type Normal, "
                "or choose another topicName",
            )
        elif published and (count := sum(published.values())) != topic.spec.queues:
            yield from _queue_change(topic, count)
        elif not published and whole and present != topic.spec.queues:
            yield from _queue_change(topic, present)
    elif any(config.order for config in existing.values()):
        yield Refuse(
            "Topic",
            topic.metadata.name,
            "spec.type",
            f"the topic {topic.topic_name!r} exists already and stays ordered",
            "delete it first, declare type Ordered, or choose another topicName",
        )
    elif whole and present != topic.spec.queues:
        yield from _queue_change(topic, present)


def _may_be_ordered(config: TopicConfig, group: str, published: Mapping[str, int] | None) -> bool:
    """Return whether a topic may count as ordered in a raft group.

    It is ordered there, or it has as many queues as the published list says, or the list does not name the raft
    group.
    """
    stands = published is not None and published.get(group, config.queues) == config.queues
    return config.order or stands


def topic_layout(name: str, observed: Observed) -> dict[str, TopicConfig]:
    """Return the raft groups in which the topic exists, as far as raft groups answer."""
    return {
        group: found.topics[name]
        for group, found in observed.groups.items()
        if found.topics is not None and name in found.topics
    }


def expands(name: str, observed: Observed) -> bool:
    """Return whether a raft group is in the middle of an expansion of the topic."""
    return any(
        found.expansion[name].phase != "open"
        for found in observed.groups.values()
        if name in found.expansion
    )


def published_layout(name: str, observed: Observed) -> Mapping[str, int] | None:
    """Return the queue list that a name server publishes for the topic; None if there is none.

    A list of a topic that no raft group has is ignored: a deleted topic left it behind, or its queues are created
    next.
    """
    whole = all(found.topics is not None for found in observed.groups.values())
    if whole and not topic_layout(name, observed):
        return None
    for _, server in sorted(observed.name_servers.items()):
        text = (server.order_config or {}).get(name)
        if text is not None:
            try:
                return parse_order_text(text)
            except ValueError:
                continue  # another tool wrote it: the next server has a list, or the plan repairs it
    return None
