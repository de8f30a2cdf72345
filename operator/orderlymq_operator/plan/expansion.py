"""
Queue expansion of ordered topics: fence, drain, switch, publish, propagate.

A key belongs to queue `hash % queues`. Therefore a topic may get more queues only when all messages of the old
mapping are consumed. Every raft group fences writes, the ordered consumer groups drain, every raft group switches,
and the name servers publish the list. Senders that do not name the list they chose from then wait until every client
must have read the new one.

Rules: pure and level-based like `planner`; a crash in any state can be continued from what raft groups and name
servers then hold. No client learns the new list before every raft group has switched. If a leader lifts its fence,
the expansion is aborted on all raft groups, unless one has switched already: then the raft group is fenced again and
follows. After an aborted expansion, writes stay open for a while before the next attempt. A raft group that is not in
the list never joins it. Raft groups fence for, switch to and publish a list only if it has as many queues as its
total says, because senders are refused by the total.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from orderlymq_operator.plan.actions import (
    AbortExpansion,
    ExpansionAction,
    FenceTopic,
    Observed,
    ObservedExpansion,
    ObservedGroup,
    PublishTopic,
    PutOrderConfig,
    SwitchTopic,
    TopicConfig,
    UpdateTopic,
    topic_config,
)
from orderlymq_operator.plan.placement import order_text, parse_order_text, spread
from orderlymq_operator.plan.refusals import expands, published_layout, topic_layout
from orderlymq_operator.resources.kinds import Desired, Topic
from orderlymq_operator.resources.topic import (
    PERMISSION_BITS,
    ExpansionBlocker,
    ExpansionStatus,
    QueueBarrier,
    TopicSpec,
)
from orderlymq_protocol.body.config import TOPIC_ATTRIBUTES
from orderlymq_protocol.plurals import counted

# If a consumer group is further behind than this, a fence would likely be in vain: writes stay open until it is
# nearer.
LAG_MAX: Final = 10_000
# After an aborted expansion, writes stay open for this many times the limit of the fence.
PAUSE_FACTOR: Final = 3
# Blockers that only a person can end, by the words of a broker, and the text to report. A fence would stand until its
# limit, again and again.
_PERSONS: Final = {
    "nobody online": "consumer group {group} is behind, and no member is online",
    "release with orderlymq group release": "consumer group {group} holds keys: release them with orderlymq group release",
    "given up: ask again": "transactions were given up: check them again with orderlymq message check-transaction",
}
# Do not switch an expansion that is about to be aborted: some raft groups would switch and others abort.
SWITCH_MARGIN_MS: Final = 1_000
# Limit for the names of readers in the body of a switch; brokers read at most 2 MiB.
_READERS_SIZE_MAX: Final = (2 << 20) - 1024
_BLOCKERS_SHOWN_MAX: Final = 64
_BARRIERS_SHOWN_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class ExpansionRequest:
    """The expansion that a topic's manifest asks for.

    Attributes:
        config: settings of the whole topic, with all its queues.
    """

    topic: str
    config: TopicConfig
    limit_ms: int
    propagation_ms: int


@dataclass(frozen=True, slots=True)
class ExpansionState:
    """Observed state of one topic.

    Attributes:
        groups: every raft group of the cluster, in order; None if it does not have the topic.
        lists: the published list of each name server; None for one that does not answer.
        routes: queues to write per raft group in each name server's route; None as for `lists`.
        leaving: raft groups that are to be removed.
    """

    groups: Mapping[str, ObservedExpansion | None]
    lists: tuple[Mapping[str, int] | None, ...]
    routes: tuple[Mapping[str, int] | None, ...] = ()
    leaving: frozenset[str] = frozenset()

    @property
    def present(self) -> dict[str, ObservedExpansion]:
        """The raft groups that have the topic."""
        return {name: found for name, found in self.groups.items() if found is not None}

    @property
    def published(self) -> Mapping[str, int]:
        """The smallest list that a name server returns: a client may still be using it."""
        lists = [found for found in self.lists if found]
        return min(lists, key=lambda found: sum(found.values()), default={})


@dataclass(frozen=True, slots=True)
class ExpansionPlan:
    """The next actions in order, and the status; *status* is None if there is no expansion."""

    actions: tuple[ExpansionAction, ...] = ()
    status: ExpansionStatus | None = None
    message: str = ""

    @property
    def holds(self) -> bool:
        """Return whether no other action may change the topic now."""
        begun = self.status is not None and self.status.phase not in ("Waiting", "Aborted")
        return begun or bool(self.actions)


class _MisfitError(Exception):
    """The existing queues do not fit into a list of the wanted total."""


@dataclass(slots=True)
class _Layout:
    """The target of an expansion: the total of queues, and how many each raft group holds."""

    total: int
    layout: dict[str, int]


def expanding_topics(topics: Iterable[Topic]) -> list[str]:
    """Return the names of the topics about whose expansion brokers must be asked."""
    return [
        topic.topic_name
        for topic in topics
        if topic.ordered and topic.spec.effective_queue_change_policy == "DrainAndSwitch"
    ]


def topics_under_way(groups: Mapping[str, ObservedGroup]) -> frozenset[str]:
    """Return the topics that are being expanded in some raft group."""
    return frozenset(
        name
        for group in groups.values()
        for name, expansion in group.expansion.items()
        if expansion.phase != "open"
    )


def topic_expansion(topic: Topic, desired: Desired, observed: Observed) -> ExpansionPlan | None:
    """Return the plan of a topic's expansion; None if it does not grow.

    The caller has made sure that every raft group answers.
    """
    name = topic.topic_name
    if not topic.ordered:
        return None
    under_way = expands(name, observed)
    if not under_way and topic.spec.effective_queue_change_policy != "DrainAndSwitch":
        return None
    if not under_way and not published_layout(name, observed):
        return None
    request = ExpansionRequest(
        name,
        topic_config(topic, topic.spec.queues),
        topic.spec.drain_timeout.milliseconds,
        topic.spec.route_propagation_time.milliseconds,
    )
    world = _state(name, desired, observed)
    if not any(world.groups.values()):
        return None  # the topic is still being created
    silent = [group for group in _silent(name, world, observed) if under_way]
    if silent:
        # Brokers were not asked, because the manifest no longer allows an expansion; the next reconcile asks.
        status = _status("Fencing", request.config.queues, world)
        return ExpansionPlan(
            (), status, f"{silent[0]} has not reported the phase of the expansion yet"
        )
    plan = plan_expansion(request, world)
    return plan if plan.status is not None else None


def with_attributes(
    name: str, steps: Iterable[ExpansionAction], observed: Observed
) -> Iterator[ExpansionAction | UpdateTopic]:
    """Yield *steps*; before a list is published, give the raft groups that the expansion added the topic's attributes."""
    existing = topic_layout(name, observed)
    listed = published_layout(name, observed) or {}
    given = given_elsewhere({group: existing[group] for group in listed if group in existing})
    for step in steps:
        if isinstance(step, PutOrderConfig):
            for group, config in sorted(existing.items()):
                expansion = observed.groups[group].expansion.get(name)
                is_new = expansion is not None and expansion.phase == "switched"
                if is_new and group not in listed and given and not config.attributes:
                    yield UpdateTopic(name, group, replace(config, attributes=given))
        yield step


def given_elsewhere(existing: Mapping[str, TopicConfig]) -> tuple[tuple[str, str], ...]:
    """Return the attributes that a topic gets in a new raft group: those that tools set in another raft group.

    Attributes that only an earlier broker version accepted are left out, because brokers now refuse them. Later each
    raft group keeps its own attributes, so that a person can remove one.
    """
    given = next((each.attributes for _, each in sorted(existing.items()) if each.attributes), ())
    return tuple((key, value) for key, value in given if value in TOPIC_ATTRIBUTES.get(key, ()))


def undeclared_steps(
    desired: Desired, observed: Observed
) -> Iterator[ExpansionAction | UpdateTopic]:
    """Yield the next steps of expansions that no Topic asks for any more.

    Fenced expansions are aborted, and switched ones are published. The caller has made sure that every raft group
    answers.
    """
    declared = {topic.topic_name for topic in desired.topics} | desired.deleted_topics
    times = TopicSpec.model_fields
    for name in sorted(topics_under_way(observed.groups) - declared):
        world = _state(name, desired, observed)
        if _silent(name, world, observed):
            continue  # the next observation asks it
        configs = topic_layout(name, observed).values()
        config = next(iter(configs), TopicConfig(0, PERMISSION_BITS["ReadWrite"], order=True))
        request = ExpansionRequest(
            name,
            replace(config, queues=0),
            times["drain_timeout"].default.milliseconds,
            times["route_propagation_time"].default.milliseconds,
        )
        yield from with_attributes(name, plan_expansion(request, world).actions, observed)


def _silent(name: str, world: ExpansionState, observed: Observed) -> list[str]:
    """Return the raft groups that have a topic and have not reported how far its expansion is."""
    return [
        group
        for group, found in world.groups.items()
        if found is None and name in (observed.groups[group].topics or ())
    ]


def _state(name: str, desired: Desired, observed: Observed) -> ExpansionState:
    """Return the observed state of one topic."""
    groups = {
        group: observed.groups[group].expansion.get(name) for group in desired.cluster.group_names
    }
    lists = []
    routes = []
    for index in range(desired.cluster.spec.name_servers.replicas):
        server = observed.name_servers.get(index)
        config = server.order_config if server is not None else None
        lists.append(None if config is None else _layout(config.get(name, "")))
        routes.append(None if server is None else server.routes.get(name))
    return ExpansionState(groups, tuple(lists), tuple(routes), desired.draining)


def plan_expansion(request: ExpansionRequest, world: ExpansionState) -> ExpansionPlan:
    """Return the next steps of a topic's expansion; no actions if it must wait."""
    world = _without_groups_beside(world)
    try:
        return _next_steps(request, world)
    except _MisfitError as error:
        rests = all(each.phase == "open" for each in world.present.values())
        status = _status("Waiting" if rests else "Switching", request.config.queues, world)
        return ExpansionPlan((), status, str(error))


def _next_steps(request: ExpansionRequest, world: ExpansionState) -> ExpansionPlan:
    present = world.present
    valid = max((found.total for found in present.values()), default=0)
    fenced = {name: found for name, found in present.items() if found.phase == "fenced"}
    switched = {name for name, found in present.items() if found.total == valid} if valid else set()
    before = sum(world.published.values())

    if valid > before or (valid and any(found.total != valid for found in present.values())):
        # At least one raft group has switched, so the expansion can only go forward.
        return _go_on(request, world, _layout_of(valid, world), switched)
    if any(found.phase in ("switched", "settling") for found in present.values()):
        return _publish(request, world, _layout_of(valid, world))
    if fenced:
        return _drain(request, world, fenced)
    if request.config.queues <= before:
        return ExpansionPlan()
    return _begin(request, world)


# -- the phases ----------------------------------------------------------------------------------------


def _begin(request: ExpansionRequest, world: ExpansionState) -> ExpansionPlan:
    """Fence, unless the last attempt was very recent, or a consumer group is too far behind to drain in time."""
    present = world.present
    last = max(present.values(), key=lambda found: found.attempt)
    status = _status("Aborted" if last.reason else "Waiting", request.config.queues, world)
    given_up = [found for found in present.values() if found.reason]
    pause_ms = PAUSE_FACTOR * request.limit_ms - min((g.age_ms for g in given_up), default=1 << 62)
    if pause_ms > 0:
        reason = min(given_up, key=lambda found: found.age_ms).reason
        minutes = counted(-(-pause_ms // 60_000), "minute")
        return ExpansionPlan((), status, f"aborted {reason}; tried again within {minutes}")
    hopeless = _hopeless(present)
    if hopeless is not None:
        return ExpansionPlan((), status, f"not begun: {hopeless}")
    readers = _readers(world)
    if sum(len(name) + len('"",') for name in readers) > _READERS_SIZE_MAX:
        text = f"not begun: {len(readers)} consumer groups read the topic, too many for one switch"
        return ExpansionPlan((), status, text)
    silent = [name for name, found in enumerate(world.lists) if found is None]
    if silent:
        return ExpansionPlan((), status, f"not begun: name server {silent[0]} does not answer")
    target = _layout_of(request.config.queues, world)
    attempt = 1 + max(found.attempt for found in present.values())
    fences = tuple(
        FenceTopic(
            request.topic, name, attempt, target.total, target.layout[name], request.limit_ms
        )
        for name in present
    )
    status = _status("Fencing", target.total, world)
    return ExpansionPlan(fences, status, "writes are being fenced")


def _drain(
    request: ExpansionRequest, world: ExpansionState, fenced: Mapping[str, ObservedExpansion]
) -> ExpansionPlan:
    """Wait for the consumer groups, then switch; give up if the leader of a raft group has given up."""
    present = world.present
    attempt = max(found.attempt for found in fenced.values())
    total = max(found.next_total for found in fenced.values() if found.attempt == attempt)
    aborted = [f for f in present.values() if f.phase == "open" and f.attempt == attempt]
    stray = [name for name, found in fenced.items() if found.attempt != attempt]
    if aborted or stray or total != request.config.queues:
        reason = (
            aborted[0].reason
            if aborted
            else "the wanted number of queues has changed"
            if total != request.config.queues
            else "a newer expansion has begun"
        )
        gone = stray if stray and not aborted and total == request.config.queues else list(fenced)
        return _abort(request, world, {name: fenced[name] for name in gone}, total, reason)
    blockers = _blockers(world)
    age_ms = max(found.age_ms for found in fenced.values())
    if age_ms > request.limit_ms + SWITCH_MARGIN_MS:
        # Leaders got a longer limit than the manifest has now; otherwise they would have aborted it already.
        why = blockers[0].reason if blockers else "the switch did not happen in time"
        return _abort(request, world, fenced, total, f"after {request.limit_ms} ms: {why}")
    target = _layout_of(total, world)
    missing = [name for name in present if name not in fenced]
    if missing:
        fences = tuple(
            FenceTopic(request.topic, name, attempt, total, target.layout[name], request.limit_ms)
            for name in missing
        )
        return ExpansionPlan(
            fences, _status("Fencing", total, world), "fencing the remaining raft groups"
        )
    status = _status("Draining", total, world)
    if blockers:
        return ExpansionPlan((), status, f"writes are fenced: {blockers[0].reason}")
    if age_ms > request.limit_ms - SWITCH_MARGIN_MS:
        return ExpansionPlan((), status, "too late to switch: the expansion is about to be aborted")
    switches = tuple(_switches(request, world, target, attempt, set()))
    return ExpansionPlan(switches, _status("Switching", total, world), "switching")


def _abort(
    request: ExpansionRequest,
    world: ExpansionState,
    fenced: Mapping[str, ObservedExpansion],
    total: int,
    reason: str,
) -> ExpansionPlan:
    """Lift the fences of the raft groups in *fenced*."""
    aborts = tuple(
        AbortExpansion(request.topic, name, found.attempt, reason or "aborted")
        for name, found in fenced.items()
    )
    status = _status("Aborted", total, world)
    return ExpansionPlan(aborts, status, f"aborted: {reason}")


def _go_on(
    request: ExpansionRequest, world: ExpansionState, target: _Layout, switched: set[str]
) -> ExpansionPlan:
    """Switch the raft groups that have not switched yet; then publish."""
    status = _status("Switching", target.total, world)
    attempt = max(found.attempt for found in world.present.values())
    fences: list[ExpansionAction] = []
    late: dict[str, ObservedExpansion] = {}
    for name, found in world.groups.items():
        if found is None or name in switched or not target.layout.get(name):
            continue
        late[name] = found
        if found.phase == "open":
            # Its leader aborted at the last moment; the others wait for it.
            fences.append(
                FenceTopic(
                    request.topic,
                    name,
                    max(attempt, found.attempt + 1),
                    target.total,
                    target.layout[name],
                    request.limit_ms,
                )
            )
    if fences:
        return ExpansionPlan(tuple(fences), status, "fencing raft groups that have not switched")
    blockers = [blocker for found in late.values() for blocker in found.blockers]
    if blockers:
        return ExpansionPlan((), status, f"writes are fenced: {blockers[0].reason}")
    switches = tuple(_switches(request, world, target, attempt, switched))
    if switches:
        return ExpansionPlan(switches, status, "switching")
    return _publish(request, world, target)


def _publish(request: ExpansionRequest, world: ExpansionState, target: _Layout) -> ExpansionPlan:
    """Publish the list on every name server; when every route has it, let it propagate to clients."""
    status = _status("Switching", target.total, world)
    if any(found not in (None, target.layout) for found in world.lists):
        put = PutOrderConfig(request.topic, order_text(target.layout))
        return ExpansionPlan((put,), status, "publishing the new queue list")
    if None in world.lists:
        text = f"name server {world.lists.index(None)} does not answer; it lacks the new queue list"
        return ExpansionPlan((), status, text)
    if any(found != target.layout for found in world.routes):
        return ExpansionPlan((), status, "waiting for the name servers to serve the new queues")
    waiting = [name for name, found in world.present.items() if found.phase == "switched"]
    if waiting:
        actions = tuple(
            PublishTopic(request.topic, name, target.total, request.propagation_ms)
            for name in waiting
        )
        return ExpansionPlan(actions, status, "the new queue list is published")
    status = _status("Propagating", target.total, world)
    return ExpansionPlan(
        (),
        status,
        "clients that do not send the version of their queue list may still use the old one",
    )


# -- parts ---------------------------------------------------------------------------------------------


def _without_groups_beside(world: ExpansionState) -> ExpansionState:
    """Leave out the raft groups where a tool made the topic outside its list: an expansion does not touch them.

    A raft group that an expansion added has the total of its list, or its phase is not open.
    """
    listed = {name for found in world.lists for name in found or ()}
    groups = {
        name: found
        for name, found in world.groups.items()
        if not listed or name in listed or found is None or found.total or found.phase != "open"
    }
    return replace(world, groups=groups)


def _switches(
    request: ExpansionRequest, world: ExpansionState, target: _Layout, attempt: int, done: set[str]
) -> Iterator[SwitchTopic]:
    readers = _readers(world)
    for name, queues in target.layout.items():
        if name not in done:
            found = world.groups.get(name)
            number = attempt if found is None else found.attempt
            config = replace(request.config, queues=queues)
            yield SwitchTopic(request.topic, name, number, target.total, config, readers)


def _readers(world: ExpansionState) -> tuple[str, ...]:
    """Return the consumer groups that read the topic on any raft group."""
    return tuple(sorted({name for found in world.present.values() for name in found.readers}))


def _layout_of(total: int, world: ExpansionState) -> _Layout:
    """Return where *total* queues stand: as raft groups know it already, the rest spread evenly.

    A raft group that is to be removed gets no queues, unless the layout that the others know leaves no other place:
    then the expansion began before the removal.

    Raises:
        _MisfitError: there are already more queues than *total*.
    """
    known: dict[str, int] = {}
    is_settled = True
    for name, found in world.groups.items():
        if found is None:
            known[name] = 0
        elif found.total == total:
            known[name] = found.write_queues
        elif found.phase == "fenced" and found.next_total == total:
            known[name] = found.queues
        else:
            known[name] = found.write_queues or world.published.get(name, 0)
            is_settled = False
    places = [name for name in known if known[name] or is_settled or name not in world.leaving]
    layout = spread(total, places, known)
    if (count := sum(layout.values())) != total:
        raise _MisfitError(
            f"raft groups have {counted(count, 'queue')}, which cannot become {total}"
        )
    return _Layout(total, layout)


def _hopeless(present: Mapping[str, ObservedExpansion]) -> str | None:
    """Return why a fence would be in vain.

    The text stays the same while the reason does: a changed text would be written to the status and cause another
    reconcile.
    """
    behind: dict[str, int] = {}
    for found in present.values():
        for blocker in found.blockers:
            for words, text in _PERSONS.items():
                if words in blocker.reason:
                    return text.format(group=blocker.consumer_group)
            behind[blocker.consumer_group] = (
                behind.get(blocker.consumer_group, 0) + blocker.messages
            )
    for name, messages in behind.items():
        if messages > LAG_MAX:
            return f"consumer group {name} is more than {LAG_MAX} messages behind, too many to wait for"
    return None


def _blockers(world: ExpansionState) -> list[ExpansionBlocker]:
    found = [
        ExpansionBlocker(
            consumer_group=blocker.consumer_group,
            group=name,
            queue=blocker.queue,
            messages=blocker.messages,
            reason=blocker.reason,
        )
        for name, expansion in world.present.items()
        for blocker in expansion.blockers
    ]
    return sorted(found, key=lambda blocker: (-blocker.messages, blocker.group, blocker.queue))


def _status(
    phase: Literal["Waiting", "Fencing", "Draining", "Switching", "Propagating", "Aborted"],
    total: int,
    world: ExpansionState,
) -> ExpansionStatus:
    present = world.present
    barriers = [
        QueueBarrier(group=name, queue=queue, offset=offset)
        for name, found in present.items()
        for queue, offset in found.barriers
    ]
    return ExpansionStatus(
        phase=phase,
        from_queues=sum(world.published.values()),
        to_queues=total,
        attempt=max((found.attempt for found in present.values()), default=0),
        barriers=barriers[:_BARRIERS_SHOWN_MAX],
        blockers=_blockers(world)[:_BLOCKERS_SHOWN_MAX],
    )


def _layout(text: str) -> dict[str, int]:
    try:
        return parse_order_text(text)
    except ValueError:
        return {}  # another tool wrote it: the plan replaces it
