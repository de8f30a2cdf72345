"""
The planner's part about growing ordered topics: fence, drain, switch, publish, settle, one look at a time.

A key belongs to `hash % queues`, so a topic may only get more queues when nothing of the old mapping is left to be
consumed: writes are fenced on every raft group, the ordered groups drain, every raft group switches, the list is
published, and senders that do not say which list they chose from wait until everybody must have seen it.

Rules: pure and level-based like `plan`; every state in which a crash can leave the raft groups and name servers
leads on. Nobody learns the new list before every raft group has switched. A raft group whose fence was lifted by
its leader ends the growth for all, unless one has switched already: then there is no way but forward, and it
is fenced anew. After a growth that was given up, writes stay open for a while before the next try.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from orderlymq_operator.plan.placement import order_text, spread
from orderlymq_operator.resources.topic import GrowthBlocker, GrowthStatus, QueueBarrier

Phase: TypeAlias = Literal["open", "fenced", "switched", "settling"]

# With more than this to consume a fence would likely be in vain: writes stay open until the groups are nearer.
LAG_MAX: Final = 10_000
# After a growth that was given up writes stay open for this many times the fence's limit.
PAUSE_FACTOR: Final = 3
# A fence that is about to be lifted is not switched any more: the raft groups would part.
SWITCH_MARGIN_MS: Final = 1_000
_BLOCKERS_SHOWN_MAX: Final = 64
_BARRIERS_SHOWN_MAX: Final = 1024


@dataclass(frozen=True, slots=True)
class FenceTopic:
    """Refuse writes to a topic on one raft group and note where its queues end."""

    topic: str
    group: str
    attempt: int
    total: int
    queues: int
    limit_ms: int


@dataclass(frozen=True, slots=True)
class LiftTopic:
    """Give a growth up on one raft group: the old list stays, writes are let in."""

    topic: str
    group: str
    attempt: int
    reason: str


@dataclass(frozen=True, slots=True)
class SwitchTopic:
    """Make the new list valid on one raft group; *readers* are consumer groups of all raft groups."""

    topic: str
    group: str
    attempt: int
    total: int
    queues: int
    permission: int
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PublishTopic:
    """Tell one raft group that every name server tells the new list."""

    topic: str
    group: str
    total: int
    settle_ms: int


@dataclass(frozen=True, slots=True)
class PutQueueList:
    """Publish the new list (`broker:queues;...`) on every name server."""

    topic: str
    value: str


GrowthAction: TypeAlias = FenceTopic | LiftTopic | SwitchTopic | PublishTopic | PutQueueList


@dataclass(frozen=True, slots=True)
class ObservedBlocker:
    """Who has not consumed to the end; *queue* is -1 for retries and transactions."""

    consumer_group: str
    queue: int
    messages: int
    reason: str


@dataclass(frozen=True, slots=True)
class ObservedGrowth:
    """The growth of one topic on one raft group that has the topic, as its leader tells it.

    Attributes:
        total: queues of the valid list over all raft groups; 0 while the topic never grew.
        next_total: of the list that comes, while fenced.
        write_queues: queues of this raft group that are written by the valid list.
        attempt: number of the last growth.
        age_ms: time since the phase began.
        reason: why the last growth was given up; empty when it was not.
        barriers: (queue, offset), while fenced.
        readers: consumer groups that read the topic here.
    """

    phase: Phase = "open"
    total: int = 0
    next_total: int = 0
    queues: int = 0
    write_queues: int = 0
    attempt: int = 0
    age_ms: int = 0
    reason: str = ""
    barriers: tuple[tuple[int, int], ...] = ()
    blockers: tuple[ObservedBlocker, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GrowthWish:
    """What the manifest of a topic says about its growth."""

    topic: str
    queues: int
    permission: int
    limit_ms: int
    settle_ms: int


@dataclass(frozen=True, slots=True)
class GrowthWorld:
    """What is known about one topic.

    Attributes:
        groups: every raft group of the cluster, in order; None where the topic does not exist.
        lists: the published list of each name server; None for one that does not answer.
        routes: queues written per raft group in each name server's route, None as above.
    """

    groups: Mapping[str, ObservedGrowth | None]
    lists: tuple[Mapping[str, int] | None, ...]
    routes: tuple[Mapping[str, int] | None, ...] = ()


@dataclass(frozen=True, slots=True)
class GrowthPlan:
    """What to do now, in order, and what to say about it; *status* is None when there is no growth."""

    actions: tuple[GrowthAction, ...] = ()
    status: GrowthStatus | None = None
    message: str = ""

    @property
    def holds(self) -> bool:
        """Tell whether nothing else may touch the topic now."""
        begun = self.status is not None and self.status.phase not in ("Waiting", "Lifted")
        return begun or bool(self.actions)


@dataclass(slots=True)
class _Aim:
    """One growth: to how many queues, and how they stand."""

    total: int
    layout: dict[str, int] = field(default_factory=dict)


def plan_growth(wish: GrowthWish, world: GrowthWorld) -> GrowthPlan:
    """Return the next steps of a topic's growth; without actions when there is something to wait for."""
    present = {name: found for name, found in world.groups.items() if found is not None}
    published = _published(world)
    valid = max((found.total for found in present.values()), default=0)
    fenced = {name: found for name, found in present.items() if found.phase == "fenced"}
    switched = {name for name, found in present.items() if found.total == valid} if valid else set()
    before = sum(published.values())

    if valid > before or _unpublished(world, present, valid):
        # At least one raft group has switched: forward only.
        return _go_on(wish, world, _aim(valid, world, published), switched)
    if any(found.phase in ("switched", "settling") for found in present.values()):
        return _publish(wish, world, _aim(valid, world, published))
    if fenced:
        return _drain(wish, world, fenced, published)
    if wish.queues <= before:
        return GrowthPlan()
    return _begin(wish, world, present, published)


# -- the phases ----------------------------------------------------------------------------------------


def _begin(
    wish: GrowthWish,
    world: GrowthWorld,
    present: Mapping[str, ObservedGrowth],
    published: Mapping[str, int],
) -> GrowthPlan:
    """Fence, unless the last try was just now, or the groups are too far behind to drain in time."""
    last = max(present.values(), key=lambda found: found.attempt)
    status = _status("Lifted" if last.reason else "Waiting", wish.queues, world, published)
    given_up = [found for found in present.values() if found.reason]
    pause_ms = PAUSE_FACTOR * wish.limit_ms - min((g.age_ms for g in given_up), default=1 << 62)
    if pause_ms > 0:
        reason = min(given_up, key=lambda found: found.age_ms).reason
        return GrowthPlan((), status, f"given up {reason}; tried again in {-(-pause_ms // 1000)} s")
    hopeless = _hopeless(present)
    if hopeless is not None:
        return GrowthPlan((), status, f"not begun: {hopeless}")
    silent = [name for name, found in enumerate(world.lists) if found is None]
    if silent:
        return GrowthPlan((), status, f"not begun: name server {silent[0]} does not answer")
    aim = _aim(wish.queues, world, published)
    attempt = 1 + max(found.attempt for found in present.values())
    fences = tuple(
        FenceTopic(wish.topic, name, attempt, aim.total, aim.layout[name], wish.limit_ms)
        for name in present
    )
    status = _status("Fencing", aim.total, world, published)
    return GrowthPlan(fences, status, "writes are being fenced")


def _drain(
    wish: GrowthWish,
    world: GrowthWorld,
    fenced: Mapping[str, ObservedGrowth],
    published: Mapping[str, int],
) -> GrowthPlan:
    """Wait for the groups, then switch; give up when a raft group's leader has done so."""
    present = {name: found for name, found in world.groups.items() if found is not None}
    attempt = max(found.attempt for found in fenced.values())
    total = max(found.next_total for found in fenced.values() if found.attempt == attempt)
    lifted = [f for f in present.values() if f.phase == "open" and f.attempt == attempt]
    stray = [name for name, found in fenced.items() if found.attempt != attempt]
    if lifted or stray or total != wish.queues:
        reason = (
            lifted[0].reason
            if lifted
            else "another number of queues is wanted now"
            if total != wish.queues
            else "a newer growth has begun"
        )
        gone = stray if stray and not lifted and total == wish.queues else list(fenced)
        lifts = tuple(LiftTopic(wish.topic, n, fenced[n].attempt, reason or "lifted") for n in gone)
        return GrowthPlan(lifts, _status("Lifted", total, world, published), f"given up: {reason}")
    aim = _aim(total, world, published)
    missing = [name for name in present if name not in fenced]
    if missing:
        fences = tuple(
            FenceTopic(wish.topic, name, attempt, total, aim.layout[name], wish.limit_ms)
            for name in missing
        )
        return GrowthPlan(fences, _status("Fencing", total, world, published), "fencing the rest")
    status = _status("Draining", total, world, published)
    blockers = _blockers(world)
    if blockers:
        return GrowthPlan((), status, f"writes are fenced: {blockers[0].reason}")
    if max(found.age_ms for found in fenced.values()) > wish.limit_ms - SWITCH_MARGIN_MS:
        return GrowthPlan((), status, "too late to switch: the fence is about to be lifted")
    switches = tuple(_switches(wish, world, aim, attempt, set()))
    return GrowthPlan(switches, _status("Switching", total, world, published), "switching")


def _go_on(wish: GrowthWish, world: GrowthWorld, aim: _Aim, switched: set[str]) -> GrowthPlan:
    """Bring the raft groups forward that have not switched; then publish."""
    status = _status("Switching", aim.total, world, _published(world))
    attempt = max(f.attempt for f in world.groups.values() if f is not None)
    fences: list[GrowthAction] = []
    late: dict[str, ObservedGrowth] = {}
    for name, found in world.groups.items():
        if found is None or name in switched or not aim.layout.get(name):
            continue
        late[name] = found
        if found.phase == "open":
            # Its leader lifted the fence at the last moment; the others wait for it.
            fences.append(
                FenceTopic(
                    wish.topic,
                    name,
                    max(attempt, found.attempt + 1),
                    aim.total,
                    aim.layout[name],
                    wish.limit_ms,
                )
            )
    if fences:
        return GrowthPlan(tuple(fences), status, "fencing raft groups that have not switched")
    blockers = [blocker for found in late.values() for blocker in found.blockers]
    if blockers:
        return GrowthPlan((), status, f"writes are fenced: {blockers[0].reason}")
    switches = tuple(_switches(wish, world, aim, attempt, switched))
    if switches:
        return GrowthPlan(switches, status, "switching")
    return _publish(wish, world, aim)


def _publish(wish: GrowthWish, world: GrowthWorld, aim: _Aim) -> GrowthPlan:
    """Publish the list everywhere; when every route tells it, let it settle."""
    status = _status("Switching", aim.total, world, _published(world))
    if any(found != aim.layout for found in world.lists):
        # Also those that do not answer: the action fails until they do.
        put = PutQueueList(wish.topic, order_text(aim.layout))
        return GrowthPlan((put,), status, "publishing the new queue list")
    if any(found != aim.layout for found in world.routes):
        return GrowthPlan((), status, "waiting for the name servers to tell the new queues")
    waiting = [
        name
        for name, found in world.groups.items()
        if found is not None and found.phase == "switched"
    ]
    if waiting:
        actions = tuple(
            PublishTopic(wish.topic, name, aim.total, wish.settle_ms) for name in waiting
        )
        return GrowthPlan(actions, status, "the new queue list is published")
    status = _status("Settling", aim.total, world, _published(world))
    return GrowthPlan(
        (), status, "clients that do not say which list they use may have the old one"
    )


# -- parts ---------------------------------------------------------------------------------------------


def _switches(
    wish: GrowthWish, world: GrowthWorld, aim: _Aim, attempt: int, done: set[str]
) -> Iterator[SwitchTopic]:
    readers = tuple(
        sorted({name for found in world.groups.values() if found for name in found.readers})
    )
    for name, queues in aim.layout.items():
        if name not in done:
            found = world.groups.get(name)
            number = attempt if found is None else found.attempt
            yield SwitchTopic(wish.topic, name, number, aim.total, queues, wish.permission, readers)


def _aim(total: int, world: GrowthWorld, published: Mapping[str, int]) -> _Aim:
    """Return where *total* queues stand: as raft groups know it already, the rest spread evenly."""
    known: dict[str, int] = {}
    for name, found in world.groups.items():
        if found is None:
            known[name] = 0
        elif found.total == total:
            known[name] = found.write_queues
        elif found.phase == "fenced" and found.next_total == total:
            known[name] = found.queues
        else:
            known[name] = found.write_queues or published.get(name, 0)
    return _Aim(total, spread(total, tuple(world.groups), known))


def _published(world: GrowthWorld) -> Mapping[str, int]:
    """Return the smallest list that a name server tells: what somebody may still be using."""
    lists = [found for found in world.lists if found]
    return min(lists, key=lambda found: sum(found.values()), default={})


def _unpublished(world: GrowthWorld, present: Mapping[str, ObservedGrowth], valid: int) -> bool:
    return valid > 0 and any(found.total != valid for found in present.values())


def _hopeless(present: Mapping[str, ObservedGrowth]) -> str | None:
    """Return why a fence would be in vain."""
    behind: dict[str, int] = {}
    for found in present.values():
        for blocker in found.blockers:
            if "nobody online" in blocker.reason:
                return blocker.reason
            behind[blocker.consumer_group] = (
                behind.get(blocker.consumer_group, 0) + blocker.messages
            )
    for name, messages in behind.items():
        if messages > LAG_MAX:
            return f"group {name} is {messages} messages behind; fewer than {LAG_MAX} can be waited for"
    return None


def _blockers(world: GrowthWorld) -> list[GrowthBlocker]:
    found = [
        GrowthBlocker(
            consumer_group=blocker.consumer_group,
            group=name,
            queue=blocker.queue,
            messages=blocker.messages,
            reason=blocker.reason,
        )
        for name, growth in world.groups.items()
        if growth is not None
        for blocker in growth.blockers
    ]
    return sorted(found, key=lambda blocker: (-blocker.messages, blocker.group, blocker.queue))


def _status(
    phase: Literal["Waiting", "Fencing", "Draining", "Switching", "Settling", "Lifted"],
    total: int,
    world: GrowthWorld,
    published: Mapping[str, int],
) -> GrowthStatus:
    present = [(name, found) for name, found in world.groups.items() if found is not None]
    barriers = [
        QueueBarrier(group=name, queue=queue, offset=offset)
        for name, found in present
        for queue, offset in found.barriers
    ]
    return GrowthStatus(
        phase=phase,
        from_queues=sum(published.values()),
        to_queues=total,
        attempt=max((found.attempt for _, found in present), default=0),
        barriers=barriers[:_BARRIERS_SHOWN_MAX],
        blockers=_blockers(world)[:_BLOCKERS_SHOWN_MAX],
    )
