"""
What a plan's steps mean for each resource: the sentences of a forecast.

Pure. Rule: every step appears in an effect of a resource, and the effect names its targets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    Action,
    AddLearner,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    FenceTopic,
    Observed,
    ObservedGroup,
    PromoteReplica,
    PublishTopic,
    PutOrderConfig,
    RemoveReplica,
    RestartNameServer,
    RestartReplica,
    SetConsumerGroup,
    SetUser,
    StartNameServer,
    StartReplica,
    StopReplica,
    Subject,
    SwitchTopic,
    TopicConfig,
    TransferLeadership,
    UpdateTopic,
    UserConfig,
    chain_of,
)
from orderlymq_operator.plan.expansion import topic_expansion
from orderlymq_operator.plan.forecast.effects import Effect, ResourceForecast
from orderlymq_operator.plan.guard import dangerous
from orderlymq_operator.plan.placement import parse_order_text
from orderlymq_operator.plan.refusals import published_layout, topic_layout
from orderlymq_operator.plan.settings import live_changes
from orderlymq_operator.resources.kinds import Cluster, Desired, Topic, declared_name
from orderlymq_operator.resources.topic import PERMISSION_BITS
from orderlymq_protocol.plurals import counted

_PERMISSIONS = {bits: name for name, bits in PERMISSION_BITS.items()}
# The fields of a ConsumerGroup's spec, by the names of the broker settings that they become.
GROUP_FIELDS: Final = {
    "orderly": "ordering",
    "enabled": "enabled",
    "retry_times": "retry.maxTimes",
    "retry_queues": "retry.queues",
    "consume_timeout_minutes": "consumeTimeout",
    "on_dead_letter": "onDeadLetter",
    "concurrency": "concurrency",
    "lane_key_property": "laneKeyProperty",
    "concurrent": "ordering",
    "retry_pause_ms": "retry.pause",
    "retry_pause_max_ms": "retry.pauseMax",
}
# The same for a User; overlap and end of a former secret change nothing by themselves.
USER_FIELDS: Final = {
    "admin": "admin",
    "default_topic_permission": "defaultTopicPermission",
    "default_group_permission": "defaultGroupPermission",
    "topics": "topics",
    "groups": "groups",
    "white_remote_address": "whiteRemoteAddress",
    "fingerprint": "secret",
    "limits": "quotas",
}


def consequences(
    desired: Desired, before: Observed, steps: Sequence[Action]
) -> Iterator[ResourceForecast]:
    """Yield what *steps* mean for every resource, the Cluster first; deleted resources come last."""
    chains: dict[tuple[str, str], list[Action]] = {}
    for step in steps:
        chains.setdefault(chain_of(step), []).append(step)
    about: list[Effect] = []
    started = [step.index for step in steps if isinstance(step, StartNameServer)]
    if started:
        about.append(Effect("Adds", f"name servers start: {_listed(started)}", _texts(started)))
    restarted = [step.index for step in steps if isinstance(step, RestartNameServer)]
    if restarted:
        text = f"name servers restart one at a time: {_listed(restarted)}"
        targets = tuple(f"nameserver/{index}" for index in restarted)
        about.append(Effect("Restarts", text, targets))
    running = desired.cluster if before.accepted is None else before.accepted.cluster
    election = str(running.spec.config.raft_election_timeout)
    for (kind, name), chain in chains.items():
        if kind == "RaftGroup":
            about += _raft_group(name, before.groups.get(name), chain, election)
    if before.accepted is not None:
        about += live_effects(before.accepted.cluster, desired.cluster)
    yield ResourceForecast(Subject("Cluster", desired.cluster.metadata.name), tuple(about))

    silent = [name for name, found in before.groups.items() if found.topics is None]
    for topic in desired.topics:
        chain = chains.pop(("Topic", topic.topic_name), [])
        found = [*_unknown(silent), *_topic(topic, desired, before, chain)]
        yield ResourceForecast(Subject("Topic", topic.metadata.name), tuple(found))
    for group in desired.consumer_groups:
        chain = chains.pop(("ConsumerGroup", declared_name(group)), [])
        found = [*_unknown(silent), *_consumer_group(declared_name(group), before, chain)]
        yield ResourceForecast(Subject("ConsumerGroup", group.metadata.name), tuple(found))
    for user in desired.users:
        chain = chains.pop(("User", user.access_key), [])
        found = [*_unknown(silent), *_user(user.access_key, before, chain)]
        yield ResourceForecast(Subject("User", user.metadata.name), tuple(found))
    for (kind, name), chain in sorted(chains.items()):
        if kind in ("Topic", "ConsumerGroup", "User"):
            yield ResourceForecast(Subject(kind, name), tuple(_undeclared(kind, name, chain)))


def live_effects(old: Cluster, new: Cluster) -> Iterator[Effect]:
    """Yield the changes of settings that brokers reload while they run, and the messages that they delete by them."""
    for path, text in live_changes(old, new):
        yield Effect("Changes", text, (f"spec.{path}",))
    for act in dangerous(old, new):
        if act.name == "ShortenRetention":
            yield Effect("DeletesData", act.text, (act.field,))


def _unknown(silent: Sequence[str]) -> Iterator[Effect]:
    if silent:
        text = f"{silent[0]} does not answer: its topics, consumer groups and users are not known, so nothing is forecast"
        yield Effect("Waits", text, (silent[0],))


# -- the Cluster ---------------------------------------------------------------------------------------------------


def _raft_group(  # noqa: C901 - one case per kind
    name: str, before: ObservedGroup | None, chain: Sequence[Action], election: str
) -> Iterator[Effect]:
    """Yield what happens to the replicas of one raft group, whose election timeout is *election*."""
    if before is None:
        count = sum(isinstance(step, StartReplica) for step in chain)
        text = f"group {name} is added, with {counted(count, 'replica')}"
        yield Effect("Adds", text, (name,))
        return
    restarts: list[int] = []
    alone = len(before.replicas) == 1
    wait = _not_ready(name, before)
    if wait is not None:
        yield wait
    leader = before.leader
    for step in chain:
        match step:
            case StartReplica(_, node, True) if node not in before.replicas:
                text = (
                    f"replica {node} joins {name}: it first receives the log, then becomes a voter"
                )
                yield Effect("Adds", text, (f"{name}/{node}",))
            case StartReplica(_, node):
                yield Effect("Adds", f"replica {node} of {name} starts", (f"{name}/{node}",))
            case AddLearner(_, node) | PromoteReplica(_, node):
                if node in before.replicas:
                    text = f"replica {node} of {name} becomes a full member"
                    yield Effect("Changes", text, (f"{name}/{node}",))
            case RemoveReplica(_, node):
                text = f"replica {node} leaves {name}; the others keep every message"
                yield Effect("Removes", text, (f"{name}/{node}",))
            case StopReplica(_, node):
                text = f"replica {node} of {name} stops"
                yield Effect("Removes", text, (f"{name}/{node}",))
            case TransferLeadership(_, target):
                text = (
                    f"the leadership of {name} goes from replica {leader} to replica {target}; sends to the group wait until "
                    f"the new leader serves, about one election timeout ({election}) if it has a free CPU"
                )
                yield Effect("MovesLeadership", text, (name,))
                leader = target
            case RestartReplica(_, node):
                restarts.append(node)
            case _:
                raise AssertionError(f"{step} is not about replicas")
    if restarts:
        yield from _restarts(name, restarts, alone=alone)


def _restarts(name: str, nodes: Sequence[int], *, alone: bool) -> Iterator[Effect]:
    targets = tuple(f"{name}/{node}" for node in nodes)
    if not alone:
        listed = ", then ".join(str(node) for node in nodes)
        text = f"{name} restarts one replica at a time, each when the others are healthy: {listed}"
        yield Effect("Restarts", text, targets)
        return
    yield Effect("Restarts", f"{name} restarts its only replica", targets)
    text = (
        f"{name} serves no sends and no consumers while its only replica restarts, one group at a time; it serves again within "
        "seconds if its node has the image and the volume"
    )
    yield Effect("PausesWrites", text, (name,))


def _not_ready(name: str, before: ObservedGroup) -> Effect | None:
    """Return what a raft group waits for before its steps begin; None if it waits for nothing."""
    if before.leader is None:
        return Effect(
            "Waits", f"{name} has no leader; its members cannot change before it has one", (name,)
        )
    silent = [node for node, found in sorted(before.replicas.items()) if not found.healthy]
    if not silent:
        return None
    text = f"replica {silent[0]} of {name} does not answer; the others wait for it"
    return Effect("Waits", text, (f"{name}/{silent[0]}",))


# -- topics --------------------------------------------------------------------------------------------------------


def _topic(
    topic: Topic, desired: Desired, before: Observed, chain: Sequence[Action]
) -> Iterator[Effect]:
    name = topic.topic_name
    if any(isinstance(step, FenceTopic | SwitchTopic | AbortExpansion) for step in chain):
        yield from _expansion(topic, desired, before, chain)
    existing = topic_layout(name, before)
    made = {step.group: step.config for step in chain if isinstance(step, CreateTopic)}
    changed = {step.group: step.config for step in chain if isinstance(step, UpdateTopic)}
    if made and not existing:
        total = sum(config.queues for config in made.values())
        text = f"is created with {counted(total, 'queue')}: {_queues(made)}"
        yield Effect("Creates", text, tuple(sorted(made)))
    elif made or changed:
        yield from _changes(existing, made, changed)
    expands = any(isinstance(step, FenceTopic | SwitchTopic | PublishTopic) for step in chain)
    if not made and not expands:
        puts = [step for step in chain if isinstance(step, PutOrderConfig)]
        if puts:
            text = f"its queue list is published again: {puts[0].value}"
            yield Effect("Changes", text, ("name servers",))


def _changes(
    existing: Mapping[str, TopicConfig],
    made: Mapping[str, TopicConfig],
    changed: Mapping[str, TopicConfig],
) -> Iterator[Effect]:
    """Yield the changes of an existing topic that need no fence."""
    after = {**existing, **made, **changed}
    old, new = (sum(each.queues for each in layout.values()) for layout in (existing, after))
    ordered = any(config.order for config in existing.values())
    if new != old and not ordered:
        text = f"grows from {old} to {new} queues: {_queues(after)}"
        yield Effect("Changes", text, tuple(sorted({*made, *changed})))
        text = f"keys move to other queues, because a Normal topic is not fenced: {new} queues instead of {old}"
        yield Effect("MovesKeys", text, tuple(sorted({*made, *changed})))
    elif made:
        yield Effect("Changes", f"is created again on {_listed(sorted(made))}", tuple(sorted(made)))
    for group, config in sorted(changed.items()):
        before = existing.get(group)
        if before is None:
            continue
        for field in fields(config):
            was, now = getattr(before, field.name), getattr(config, field.name)
            if was != now and (ordered or field.name != "queues"):
                yield Effect("Changes", _setting_change(field.name, group, was, now), (group,))


def _setting_change(field: str, group: str, was: Any, now: Any) -> str:
    match field:
        case "queues":
            return f"is reset to {counted(now, 'queue')} on {group}"
        case "order":
            return f"is marked as {'ordered' if now else 'not ordered'} again on {group}"
        case "permission":
            was, now = _permission(was), _permission(now)
    return f"its {field} on {group} changes from {was} to {now}"


def _expansion(
    topic: Topic, desired: Desired, before: Observed, chain: Sequence[Action]
) -> Iterator[Effect]:
    """Yield what a queue expansion does: what it waits for, how long writes pause, where keys go."""
    here = set(desired.cluster.group_names) <= before.groups.keys()
    begun = topic_expansion(topic, desired, before) if here else None
    switches = [step for step in chain if isinstance(step, SwitchTopic)]
    if begun is not None and not begun.actions and begun.message:
        yield Effect("Waits", begun.message, (topic.topic_name,))
    for step in chain:
        if isinstance(step, AbortExpansion):
            text = f"the current expansion is aborted on {step.group}: {step.reason}"
            yield Effect("Changes", text, (step.group,))
    if not switches:
        return
    spec = topic.spec
    lag = _lag(topic.topic_name, before)
    text = (
        f"writes are refused until every ordered consumer group has consumed all messages{lag}, at most {spec.drain_timeout} "
        f"(drainTimeout); sends of RocketMQ clients are refused for another {spec.route_propagation_time} "
        "(routePropagationTime), those of the SDK are not. If a consumer group needs longer, the expansion is aborted: writes "
        "go to the old queues again, and the operator tries again later"
    )
    yield Effect("PausesWrites", text, (topic.topic_name,))
    old = sum((published_layout(topic.topic_name, before) or {}).values())
    layout = {step.group: step.config.queues for step in switches}
    puts = [step.value for step in chain if isinstance(step, PutOrderConfig)]
    if puts:
        layout = parse_order_text(puts[-1])
    text = (
        f"keys move when the queues grow from {old} to {switches[-1].total} ({_counts(layout)}); "
        "the order of each key is kept, because the old queues are consumed first"
    )
    yield Effect("MovesKeys", text, (topic.topic_name,))


def _lag(topic: str, before: Observed) -> str:
    behind: dict[str, int] = {}
    for found in before.groups.values():
        expansion = found.expansion.get(topic)
        for blocker in expansion.blockers if expansion is not None else ():
            group = blocker.consumer_group or "open transactions"
            behind[group] = behind.get(group, 0) + blocker.messages
    listed = ", ".join(
        f"{name} {counted(count, 'message')}" for name, count in sorted(behind.items())
    )
    return f" (now: {listed})" if listed else ""


def _consumer_group(name: str, before: Observed, chain: Sequence[Action]) -> Iterator[Effect]:
    steps = [step for step in chain if isinstance(step, SetConsumerGroup)]
    if not steps:
        return
    present = {
        group: found.consumer_groups[name]
        for group, found in before.groups.items()
        if found.consumer_groups is not None and name in found.consumer_groups
    }
    yield from _settings(steps, present, GROUP_FIELDS)


def _user(key: str, before: Observed, chain: Sequence[Action]) -> Iterator[Effect]:
    steps = [step for step in chain if isinstance(step, SetUser)]
    present = {
        group: found.users[key]
        for group, found in before.groups.items()
        if found.users is not None and key in found.users
    }
    yield from _settings(steps, present, USER_FIELDS)


def _settings(
    steps: Sequence[SetConsumerGroup] | Sequence[SetUser],
    present: Mapping[str, ConsumerGroupConfig] | Mapping[str, UserConfig],
    names: Mapping[str, str],
) -> Iterator[Effect]:
    """Yield where an object changes and in which fields, and where it is created; *present* is by broker group."""
    changed = [step for step in steps if step.group in present]
    differing = {
        name
        for step in changed
        for field, name in names.items()
        if getattr(step.config, field) != getattr(present[step.group], field)
    }
    if changed:
        targets = tuple(step.group for step in changed)
        text = f"its settings change on {_listed(targets)}: {', '.join(sorted(differing))}"
        yield Effect("Changes", text, targets)
    if added := tuple(step.group for step in steps if step.group not in present):
        yield Effect("Creates", f"is created on {_listed(added)}", added)


def _undeclared(kind: str, name: str, chain: Sequence[Action]) -> Iterator[Effect]:
    """Yield the effects on a resource without a manifest: it is being deleted, or the operator makes it for all."""
    made = tuple(step.group for step in chain if isinstance(step, CreateTopic))
    if made:
        yield Effect("Creates", f"is created on {_listed(made)}", made)
    ended = tuple(
        step.group
        for step in chain
        if isinstance(step, AbortExpansion | FenceTopic | SwitchTopic | PublishTopic)
    )
    if ended:
        text = "the current expansion is finished, although no Topic asks for it"
        yield Effect("Changes", text, ("name servers", *ended))
    places = tuple(
        step.group
        for step in chain
        if isinstance(step, DeleteTopic | DeleteConsumerGroup | DeleteUser)
    )
    lost = {"Topic": "its messages", "ConsumerGroup": "its offsets"}.get(kind)
    if lost is None:
        yield Effect("Removes", f"is deleted from {_listed(places)}", places)
    elif places:
        yield Effect("DeletesData", f"is deleted with {lost} from {_listed(places)}", places)
    elif any(isinstance(step, DeleteOrderConfig) for step in chain):
        yield Effect("Removes", f"the queue list of {name} is withdrawn", ("name servers",))


# -- words -----------------------------------------------------------------------------------------------------------


def _queues(layout: Mapping[str, TopicConfig]) -> str:
    return _counts({group: config.queues for group, config in layout.items()})


def _counts(layout: Mapping[str, int]) -> str:
    return ", ".join(f"{count} on {group}" for group, count in sorted(layout.items()))


def _permission(bits: int) -> str:
    return _PERMISSIONS.get(bits, str(bits))


def _listed(items: Iterable[object]) -> str:
    return ", ".join(_texts(items))


def _texts(items: Iterable[object]) -> tuple[str, ...]:
    return tuple(str(item) for item in items)
