"""
The planner of Clusters: the next safe steps from the observed to the desired state.

Pure and level-based: it compares states and knows no history. The caller performs the steps in order, observes and
asks again until the answer is empty. Rules: a plan that refuses anything does nothing else. At most one replica of a
raft group changes at a time, and only while the others are healthy. The queue list of an ordered topic changes only
as `expansion` says. `replicas` plans the members of raft groups. With access control, a raft group gets its accounts
before queues. It gets no queues while it lacks a former secret that the others still accept, because it would refuse
their clients.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from orderlymq_operator.plan.actions import (
    Action,
    ConditionReport,
    ConsumerGroupConfig,
    CreateTopic,
    DeleteConsumerGroup,
    DeleteOrderConfig,
    DeleteTopic,
    DeleteUser,
    ExpansionStep,
    FenceTopic,
    Observed,
    ObservedGroup,
    PutOrderConfig,
    Refuse,
    ReportCondition,
    RestartNameServer,
    RestartReplica,
    SetConsumerGroup,
    SetUser,
    StartNameServer,
    Subject,
    TopicConfig,
    UpdateTopic,
    UserConfig,
    chain_of,
    topic_config,
)
from orderlymq_operator.plan.canary import canary_actions
from orderlymq_operator.plan.expansion import (
    ExpansionPlan,
    given_elsewhere,
    topic_expansion,
    undeclared_steps,
    with_attributes,
)
from orderlymq_operator.plan.leaders import leader_move
from orderlymq_operator.plan.placement import order_text, spread
from orderlymq_operator.plan.refusals import expands, published_layout, refusals, topic_layout
from orderlymq_operator.plan.replicas import group_problem, replica_actions, stale_name_server
from orderlymq_operator.plan.settings import name_server_revision, revision
from orderlymq_operator.resources.kinds import (
    Cluster,
    ConsumerGroup,
    Desired,
    Resource,
    Topic,
    User,
)
from orderlymq_operator.resources.user import NO_SECRET
from orderlymq_protocol.names import AUTO_CREATE_TOPIC

__all__ = ["TEMPLATE", "plan", "plan_accepted", "without_gone"]

# The template as brokers without an operator make it: new topics may inherit its settings.
TEMPLATE: Final = TopicConfig(8, 7, order=False)
# Tables that each raft group must have reported before resources of a kind are planned.
_TABLES: Final = {
    "Topic": ("topics",),
    "ConsumerGroup": ("topics", "consumer_groups"),
    "User": ("users",),
}
_MINUTE_MS: Final = 60_000
_ATTEMPTS: Final = 4  # number of plans; each leaves out what the previous one refused


def plan(desired: Desired, observed: Observed) -> list[Action]:
    """Return the next steps towards *desired*; empty if *observed* is the desired state.

    If anything about *desired* is not allowed, the answer holds only `Refuse`.
    """
    refused = refusals(desired, observed)
    if refused:
        return list(refused)

    work: list[Action] = list(_name_servers(desired, observed))
    work += _processes(desired.cluster, observed)
    unknown = _unknown(desired, observed)
    lacking = _lacking_accounts(desired, observed)
    parts = _parts(desired, observed, lacking, known=not unknown)
    about = parts.actions
    topics_exist = not lacking and not any(
        isinstance(it, CreateTopic) for actions in about.values() for it in actions
    )
    for kind, name in desired.unheld:
        about.pop(Subject(kind, name), None)
    for actions in about.values():
        work += actions
    canary = canary_actions(desired, observed)
    work += canary
    if not unknown:
        if topics_exist and not any(isinstance(action, CreateTopic) for action in canary):
            work += _template(desired, observed)
        work += undeclared_steps(desired, observed)
    work += _deletions(desired, observed)
    if not desired.draining and not any(map(_keeps_leaders, work)):
        work += leader_move(desired.cluster, observed.groups)
    return work + list(_conditions(desired, observed, parts))


def plan_accepted(desired: Desired, observed: Observed) -> tuple[list[Action], list[Refuse]]:
    """Plan without the Topics and ConsumerGroups that are refused; return the steps and all refusals.

    A refused object was accepted once, so the brokers have changed since: it is left alone, and the rest is planned.
    """
    refused: list[Refuse] = []
    for _ in range(_ATTEMPTS):
        actions = plan(desired, observed)
        found = [action for action in actions if isinstance(action, Refuse)]
        if not found:
            return actions, refused
        refused += found
        out = {(refusal.kind, refusal.name) for refusal in found}
        if ("Cluster", desired.cluster.metadata.name) in out:
            break  # without the Cluster nothing can be planned
        desired = replace(
            desired,
            topics=tuple(t for t in desired.topics if ("Topic", t.metadata.name) not in out),
            consumer_groups=tuple(
                g for g in desired.consumer_groups if ("ConsumerGroup", g.metadata.name) not in out
            ),
        )
    return [], refused


def without_gone(desired: Desired, observed: Observed) -> Desired:
    """Return *desired* without the deleted objects that are gone.

    Objects that clients create later under these names belong to the clients. An object does not count as gone while
    a raft group or name server does not report what it has of that kind.
    """
    groups = [observed.groups.get(name, ObservedGroup()) for name in desired.cluster.group_names]
    left = list(_deletions(desired, observed))

    def whole(table: str) -> bool:
        return all(getattr(found, table) is not None for found in groups)

    if whole("topics") and all(
        each.order_config is not None for each in observed.name_servers.values()
    ):
        lists = (DeleteTopic, DeleteOrderConfig)
        topics = frozenset(each.topic for each in left if isinstance(each, lists))
        desired = replace(desired, deleted_topics=topics)
    if whole("consumer_groups"):
        names = frozenset(
            each.consumer_group for each in left if isinstance(each, DeleteConsumerGroup)
        )
        desired = replace(desired, deleted_consumer_groups=names)
    if whole("users"):
        keys = frozenset(each.access_key for each in left if isinstance(each, DeleteUser))
        desired = replace(desired, deleted_users=keys)
    return desired


def _keeps_leaders(action: Action) -> bool:
    """Return whether leaders must stay until *action* is done: processes or members change, or a topic expands."""
    return chain_of(action)[0] in ("RaftGroup", "NameServer") or isinstance(action, ExpansionStep)


@dataclass(slots=True)
class _Parts:
    """Topics, consumer groups and users: their steps, what they wait for, and the progress of expansions."""

    actions: dict[Subject, list[Action]] = field(default_factory=dict)
    waits: dict[Subject, str] = field(default_factory=dict)
    expansions: dict[Subject, ExpansionPlan] = field(default_factory=dict)


def _parts(
    desired: Desired, observed: Observed, lacking: Mapping[str, str], *, known: bool
) -> _Parts:
    """Plan each topic, consumer group and user.

    Topics are planned only if what exists is *known*: a guess could create a second queue list.
    """
    made = _Parts()
    topics = {topic.topic_name: topic for topic in desired.topics}
    for topic in desired.topics:
        actions = made.actions[_subject(topic)] = list[Action]()
        if not known:
            continue
        if (expansion := topic_expansion(topic, desired, observed)) is not None:
            made.expansions[_subject(topic)] = expansion
        actions += _topic(topic, desired, observed, expansion)
        if wait := _wait_for_accounts(topic, actions, observed, lacking):
            made.waits[_subject(topic)] = wait
    silent = _silent("ConsumerGroup", desired, observed)
    for group in desired.consumer_groups:
        steps = [] if silent else list(_group(group, topics, desired, observed))
        made.actions[_subject(group)] = steps
    silent = _silent("User", desired, observed)
    for user in desired.users:
        made.actions[_subject(user)] = [] if silent else list(_user(user, desired, observed))
    return made


def _name_servers(desired: Desired, observed: Observed) -> Iterator[Action]:
    for index in range(desired.cluster.spec.name_servers.replicas):
        if index not in observed.name_servers:
            yield StartNameServer(index)


def _processes(cluster: Cluster, observed: Observed) -> list[Action]:
    """Plan replicas and the restart of name servers so that every process that calls a name server can connect.

    Brokers use the same TLS mode when they call and when they are called. So all brokers must speak TLS before a name
    server requires it, and a name server must accept plain connections before brokers speak plain again.
    """
    replicas = replica_actions(cluster, observed.groups)
    stale = _stale_name_servers(cluster, observed)
    leading = [name for name, group in observed.groups.items() if group.leader is not None]
    chosen = stale_name_server(stale, observed.name_servers, leading) if stale else None
    restart: list[Action] = [] if chosen is None else [RestartNameServer(chosen)]
    enforces = cluster.spec.tls.mode == "Enforcing"
    if all(observed.name_servers[index].serves_plain is not enforces for index in stale):
        return restart + replicas
    if not enforces:
        return restart + [each for each in replicas if not isinstance(each, RestartReplica)]
    current = revision(cluster)
    nodes = [node for group in observed.groups.values() for node in group.replicas.values()]
    return replicas + restart if all(node.revision == current for node in nodes) else replicas


def _stale_name_servers(cluster: Cluster, observed: Observed) -> list[int]:
    known = (None, name_server_revision(cluster))
    return [index for index, each in observed.name_servers.items() if each.revision not in known]


def _topic(
    topic: Topic, desired: Desired, observed: Observed, expansion: ExpansionPlan | None
) -> Iterator[Action]:
    """Plan a topic; the caller has made sure that every raft group and some name server answer."""
    name = topic.topic_name
    if expansion is not None and expansion.holds:
        yield from with_attributes(name, expansion.actions, observed)
        return
    existing = topic_layout(name, observed)
    layout = wanted_layout(topic, desired, observed)
    if topic.ordered:
        # Publish the list before the first queue exists, so that no client ever sees only a part of the queues.
        text = order_text(layout)
        servers = observed.name_servers.values()
        # A silent name server may lack the list: then publishing fails and holds the queues back.
        makes = not layout.keys() <= existing.keys()
        if any(
            makes if server.order_config is None else server.order_config.get(name) != text
            for server in servers
        ):
            yield PutOrderConfig(name, text)
    for group, queues in sorted(layout.items()):
        own = existing[group].attributes if group in existing else given_elsewhere(existing)
        config = replace(topic_config(topic, queues), attributes=own)
        if group not in existing:
            yield CreateTopic(name, group, config)
        elif existing[group] != config:
            yield UpdateTopic(name, group, config)


def _lacking_accounts(desired: Desired, observed: Observed) -> dict[str, str]:
    """Return the raft groups that would refuse clients whom another one serves, and what each waits for.

    Such a raft group lacks a declared account, or does not know an account's former secret while a rotation is under
    way. It can no longer be given the former secret. The rotation ends by itself on the other raft groups.
    """
    if not desired.cluster.spec.config.acl_enable:
        return {}
    tables = {
        name: observed.groups.get(name, ObservedGroup()).users or {}
        for name in desired.cluster.group_names
    }
    declared = {user.access_key for user in desired.users}
    served = declared.intersection(key for table in tables.values() for key in table)
    rotated = {
        key
        for table in tables.values()
        for key, user in table.items()
        if key in declared and user.former_until_ms
    }
    waits: dict[str, str] = {}
    for name, table in tables.items():
        if missing := served - table.keys():
            waits[name] = f"it has the account {min(missing)}"
        elif former := rotated - {key for key, user in table.items() if user.former_until_ms}:
            waits[name] = (
                f"the former secret of account {min(former)}, which it does not know, has ended; set "
                "spec.secretRotation.overlapSeconds of its User to 0 to end it now"
            )
    return waits


def _wait_for_accounts(
    topic: Topic, actions: list[Action], observed: Observed, lacking: Mapping[str, str]
) -> str:
    """Remove the *actions* that would bring queues to raft groups that lack accounts.

    Return what the topic waits for; empty if nothing was removed.
    """
    creates = [each for each in actions if isinstance(each, CreateTopic) and each.group in lacking]
    grows = any(isinstance(each, FenceTopic) for each in actions)
    begins = bool(lacking) and grows and not expands(topic.topic_name, observed)
    if not creates and not begins:
        return ""
    # The list of an ordered topic names all of its queues, so it is not published before all of them may be created.
    publishes = any(isinstance(each, PutOrderConfig) for each in actions)
    actions[:] = [] if begins or publishes else [each for each in actions if each not in creates]
    group = creates[0].group if creates else min(lacking)
    return f"{group} gets queues when {lacking[group]}"


def _template(desired: Desired, observed: Observed) -> Iterator[Action]:
    """Enable auto-creation, after every declared topic exists.

    Otherwise a send of a running producer would create a declared topic as Normal, and a Normal topic never becomes
    ordered.
    """
    is_wanted = desired.cluster.spec.config.auto_create_topic_enable
    for group in desired.cluster.group_names if is_wanted else ():
        if AUTO_CREATE_TOPIC not in (observed.groups[group].topics or {}):
            yield CreateTopic(AUTO_CREATE_TOPIC, group, TEMPLATE)


def wanted_layout(topic: Topic, desired: Desired, observed: Observed) -> Mapping[str, int]:
    """Return how many queues of *topic* each raft group should hold.

    The published list of an ordered topic decides, even if raft groups were added since. Without a list, its queues
    decide.
    """
    if topic.ordered and (published := published_layout(topic.topic_name, observed)):
        return published
    existing = topic_layout(topic.topic_name, observed)
    present = {group: config.queues for group, config in existing.items()}
    if topic.ordered and present:
        return (
            present  # the list is lost and is published again as it was; more queues need a fence
        )
    # A raft group that is to be removed keeps its queues and gets no new ones.
    places = [
        group
        for group in desired.cluster.group_names
        if group in present or group not in desired.draining
    ]
    return spread(topic.spec.queues, places, present)


def _group(
    group: ConsumerGroup, topics: Mapping[str, Topic], desired: Desired, observed: Observed
) -> Iterator[Action]:
    """Plan a consumer group: it must exist in every raft group that may hold its queues.

    *topics* are all declared topics, by the name that clients use.
    """
    config = group_config(group)
    seed = tuple(topic.name for topic in group.spec.topics)
    layouts = {
        name: wanted_layout(topics[name], desired, observed) for name in seed if name in topics
    }
    tables = [item.consumer_groups or {} for item in observed.groups.values()]
    known = [table[group.group_name] for table in tables if group.group_name in table]
    # An existing consumer group reads everything from queues in a raft group that was added later: "Latest" would
    # skip the messages sent in between.
    start = "Earliest" if known and group.spec.start_from != "Client" else group.spec.start_from
    names = desired.cluster.group_names
    for name in names:
        found = observed.groups[name]
        existing = found.topics or {}
        if any(name in layout and topic not in existing for topic, layout in layouts.items()):
            continue  # create its topics first: a start position needs queues
        present = (found.consumer_groups or {}).get(group.group_name)
        # `orderlymq group set` declares existing groups concurrent: brokers refuse that while one of their queues is
        # locked.
        as_is = all(each.concurrent for each in (known if present is None else [present]))
        wanted = replace(config, concurrent=config.concurrent and as_is)
        if present is None:
            also = tuple(other for other in names if other != name) if start == "Latest" else ()
            yield SetConsumerGroup(group.group_name, name, wanted, start, seed, also)
            if start == "Latest":
                start = "Earliest"  # the first raft group sets every position
        elif present != wanted:
            yield SetConsumerGroup(group.group_name, name, wanted)


def group_config(group: ConsumerGroup) -> ConsumerGroupConfig:
    """Return the settings of *group* in the brokers."""
    minutes = -(
        -group.spec.consume_timeout.milliseconds // _MINUTE_MS
    )  # rounded up, so that it is never too short
    return ConsumerGroupConfig(
        orderly=group.spec.ordering == "Ordered",
        enabled=group.spec.enabled,
        retry_times=group.spec.retry.max_times,
        retry_queues=group.spec.retry.queues,
        consume_timeout_minutes=minutes,
        on_dead_letter=group.spec.on_dead_letter,
        concurrency=group.spec.concurrency,
        lane_key_property=group.spec.lane_key_property,
        concurrent=group.spec.ordering == "Concurrent" and group.spec.concurrency == "Queue",
        retry_pause_ms=group.spec.retry.pause.milliseconds,
        retry_pause_max_ms=group.spec.retry.pause_max.milliseconds,
    )


def _user(user: User, desired: Desired, observed: Observed) -> Iterator[Action]:
    """Plan an account: every raft group must know it."""
    secret = observed.secrets.get(user.metadata.name)
    if secret is None:
        return
    config = user_config(user, secret)
    for name in desired.cluster.group_names:
        found = (observed.groups[name].users or {}).get(user.access_key)
        is_ended = config.overlap_s == 0 and found is not None and found.former_until_ms != 0
        if found != config or is_ended:
            yield SetUser(user.metadata.name, user.access_key, name, config)


def user_config(user: User, secret: str) -> UserConfig:
    """Return the settings of *user* in the brokers; *secret* is the fingerprint of the user's secret."""
    spec = user.spec
    return UserConfig(
        admin=spec.admin,
        default_topic_permission=spec.default_topic_permission,
        default_group_permission=spec.default_group_permission,
        topics=tuple(sorted((grant.name, grant.permission) for grant in spec.topics)),
        groups=tuple(sorted((grant.name, grant.permission) for grant in spec.groups)),
        white_remote_address=spec.white_remote_address.strip(),
        fingerprint=secret,
        limits=spec.quotas.limits(),
        overlap_s=spec.secret_rotation.overlap_seconds,
    )


def _deletions(desired: Desired, observed: Observed) -> Iterator[Action]:
    for name in sorted(desired.deleted_consumer_groups):
        for group, found in sorted(observed.groups.items()):
            if name in (found.consumer_groups or {}):
                yield DeleteConsumerGroup(name, group)
    for key in sorted(desired.deleted_users):
        for group, found in sorted(observed.groups.items()):
            if key in (found.users or {}):
                yield DeleteUser(key, group)
    for name in sorted(desired.deleted_topics):
        for group in sorted(topic_layout(name, observed)):
            yield DeleteTopic(name, group)
        # A raft group that does not answer may still hold queues of the topic: keep the list until that is known.
        known = all(found.topics is not None for found in observed.groups.values())
        listed = any(name in (each.order_config or {}) for each in observed.name_servers.values())
        if known and listed:
            yield DeleteOrderConfig(name)


def _unknown(desired: Desired, observed: Observed, kind: str = "Topic") -> str:
    """Return why it is not known what exists of a kind; empty if every raft group and a name server report it."""
    if silent := _silent(kind, desired, observed):
        return silent
    answer = any(server.order_config is not None for server in observed.name_servers.values())
    return "" if answer else "no name server answers"


def _silent(kind: str, desired: Desired, observed: Observed) -> str:
    """Return the first raft group that does not report the tables of a kind, with its refusal; empty if all do."""
    for name in desired.cluster.group_names:
        found = observed.groups.get(name, ObservedGroup())
        if any(getattr(found, table) is None for table in _TABLES[kind]):
            return f"{name}: {found.refused}" if found.refused else f"{name} does not answer"
    return ""


def _unregistered(desired: Desired, observed: Observed) -> str | None:
    """Return which raft group clients cannot find, because a name server that answers does not know it; None if none."""
    for index, server in sorted(observed.name_servers.items()):
        if server.brokers is not None:
            for name in desired.cluster.group_names:
                if name not in server.brokers:
                    return f"{name} is not registered with name server {index} yet"
    return None


def _subject(resource: Resource) -> Subject:
    return Subject(resource.kind, resource.metadata.name)


def _conditions(desired: Desired, observed: Observed, parts: _Parts) -> Iterator[Action]:
    """Report the Ready conditions that changed."""
    reports = {_subject(desired.cluster): _cluster_condition(desired, observed)}
    unregistered = _unregistered(desired, observed)
    unavailable = {kind: _unknown(desired, observed, kind) or unregistered for kind in _TABLES}
    for subject, actions in parts.actions.items():
        expansion = parts.expansions.get(subject)
        if text := unavailable[subject.kind]:
            report = ConditionReport("False", "BrokerUnavailable", text)
        elif subject.kind == "User" and observed.secrets.get(subject.name) is None:
            text = observed.secret_troubles.get(subject.name, NO_SECRET)
            report = ConditionReport("False", "SecretMissing", text)
        elif subject in parts.waits:
            report = ConditionReport("False", "Progressing", parts.waits[subject])
        elif expansion is not None and expansion.status is not None:
            reason = f"Expansion{expansion.status.phase}"
            report = ConditionReport("False", reason, expansion.message)
        elif actions:
            report = ConditionReport("False", "Progressing", "not effective everywhere yet")
        else:
            report = ConditionReport("True", "Synced", "effective in every raft group")
        reports[subject] = report
    for subject, report in reports.items():
        if observed.conditions.get(subject) != report:
            yield ReportCondition(subject, report)


def _cluster_condition(desired: Desired, observed: Observed) -> ConditionReport:
    for index in range(desired.cluster.spec.name_servers.replicas):
        server = observed.name_servers.get(index)
        if server is None or server.order_config is None:
            return ConditionReport(
                "False", "NameServerUnavailable", f"name server {index} does not answer"
            )
    for index in _stale_name_servers(desired.cluster, observed):
        text = f"name server {index} runs with previous settings"
        return ConditionReport("False", "NameServerUnavailable", text)
    for name in desired.cluster.group_names:
        problem = group_problem(desired.cluster, observed.groups.get(name))
        if problem is not None:
            return ConditionReport("False", "GroupNotReady", f"{name}: {problem}")
    unregistered = _unregistered(desired, observed)
    if unregistered is not None:
        return ConditionReport("False", "GroupNotReady", unregistered)
    return ConditionReport("True", "Ready", "every group has a leader and all its replicas")
