"""
Which member of a consumer group gets which queue, and whether the present owners match that.

`assign_queues` decides for members that ask (QUERY_ASSIGNMENT). The brokers store the decision. If a member leaves
while no operator runs, they complete the decision by the same rule. For members that compute their share themselves,
`examine` compares: every queue of an ordered consumer group should have one living owner, the one that this
computation names.

Rules: pure. Sticky moves a queue of a living member only if no member has come or gone for a while. Therefore a
rolling restart that starts each new member before it ends the old one moves each queue once. The order of messages
does not depend on this module: the queue lock decides which member may consume a queue.
"""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from orderlymq.consumer.assignment import (
    AssignmentStrategy,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
)
from orderlymq.consumer.assignment import assign as assign_alone
from orderlymq_protocol.body.messagequeue import MessageQueue

Strategy: TypeAlias = Literal["Averagely", "AveragelyByCircle", "ConsistentHash", "Sticky", "Zone"]

_ALONE: Final[Mapping[str, AssignmentStrategy]] = {
    "Averagely": Averagely(),
    "AveragelyByCircle": AveragelyByCircle(),
    "ConsistentHash": ConsistentHash(),
}
# A queue that has no holder for this long is no longer in a hand-over: RocketMQ's clients ask again every 20 s.
ORPHAN_MS: Final = 30_000


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a consumer group.

    Attributes:
        zone: empty if not known.
        since_ms: when it subscribed, by its own clock; 0 if not known.
    """

    client_id: str
    zone: str = ""
    address: str = ""
    subscriptions: frozenset[tuple[str, str]] = frozenset()
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class AssignmentInput:
    """The queues of one topic and the members that may own them.

    Attributes:
        present: owners by the last decision, including members that are gone.
        zones: zone of each raft group's leader; without the zones that are not known.
        calm: no member has come or gone for the strategy's delay.
    """

    queues: Sequence[MessageQueue]
    members: Sequence[Member]
    present: Mapping[MessageQueue, str] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    calm: bool = True


def assign_queues(
    strategy: Strategy, group: str, given: AssignmentInput
) -> dict[MessageQueue, str]:
    """Return the owner of each queue; if there are no members, return the last owners."""
    names = sorted(member.client_id for member in given.members)
    if not names:
        # Keep the last owners, so that a member that comes back gets its old queues.
        return {queue: o for queue in given.queues if (o := given.present.get(queue))}
    if strategy in _ALONE:
        alone = _ALONE[strategy]
        shares = {name: assign_alone(alone, group, name, given.queues, names) for name in names}
        return {queue: name for name, share in shares.items() for queue in share}
    return _stick(given, by_zone=strategy == "Zone")


def _stick(given: AssignmentInput, *, by_zone: bool) -> dict[MessageQueue, str]:
    zones = {member.client_id: member.zone for member in given.members}
    since = {member.client_id: member.since_ms for member in given.members}
    everybody = sorted(zones)
    residents: dict[str, list[str]] = {}
    for name in everybody:
        residents.setdefault(zones[name], []).append(name)

    def candidates(queue: MessageQueue) -> list[str]:
        """Return the members that should take a queue: those of its zone, or all members if its zone has none."""
        zone = given.zones.get(queue.broker_name, "") if by_zone else ""
        return (residents.get(zone) if zone else None) or everybody

    queues = sorted(given.queues)
    owners = {q: o for q in queues if (o := given.present.get(q)) is not None and o in zones}
    loads = dict.fromkeys(everybody, 0)
    for owner in owners.values():
        loads[owner] += 1
    for queue in queues:
        if queue not in owners:
            _give(queue, _least(candidates(queue), loads, since), owners, loads)
    if given.calm:
        for queue, owner in sorted(
            owners.items()
        ):  # first to a member in the queue's zone, then evenly within the zone
            near = candidates(queue)
            if owner not in near:
                _give(queue, _least(near, loads, since), owners, loads)
        _even(owners, loads, candidates, since)
    return owners


def _even(
    owners: dict[MessageQueue, str],
    loads: dict[str, int],
    candidates: Callable[[MessageQueue], Sequence[str]],
    since: Mapping[str, int],
) -> None:
    """Move queues from the member that has the most, until one more move would only swap two members' counts."""
    # All queues of one raft group have the same candidates, so the first queue stands for the others.
    held: dict[str, dict[str, deque[MessageQueue]]] = {name: {} for name in loads}
    for queue in sorted(owners):
        held[owners[queue]].setdefault(queue.broker_name, deque()).append(queue)
    moving = True
    while moving:
        moving = False
        for owner in sorted(loads, key=lambda name: (-loads[name], name)):
            for queues in held[owner].values():
                if not queues:
                    continue
                taker = _least(candidates(queues[0]), loads, since)
                if loads[owner] - loads[taker] > 1:
                    queue = queues.popleft()
                    held[taker].setdefault(queue.broker_name, deque()).append(queue)
                    _give(queue, taker, owners, loads)
                    moving = True
                    break
            if moving:
                break


def _least(names: Collection[str], loads: Mapping[str, int], since: Mapping[str, int]) -> str:
    """Return the member with the fewest queues; of several, the newest.

    In a rolling restart, a queue that an old member takes would have to move again. Brokers complete a decision by
    the same rule.
    """
    return min(names, key=lambda name: (loads[name], -since[name], name))


def _give(
    queue: MessageQueue, taker: str, owners: dict[MessageQueue, str], loads: dict[str, int]
) -> None:
    before = owners.get(queue)
    if before is not None:
        loads[before] -= 1
    owners[queue] = taker
    loads[taker] += 1


# -- what is wrong -------------------------------------------------------------------------------------


class Holding(NamedTuple):
    """The member that holds a queue's lock, and for how long; an empty id if no member holds it."""

    client_id: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class AssignmentState:
    """Observed state of a consumer group.

    Attributes:
        members: members by the raft group that reported them; the reports may differ for a moment.
        queues: queues of all topics that the consumer group reads.
        holdings: holders of the queues whose state is known; a missing queue of an ordered group was never locked.
        decided: owners by the operator's decision; empty for members that compute their share themselves.
        wanted: by queue, the member that was refused it a moment ago. Brokers report it, because only members know
            how they assign.
        topics: topics of each raft group.
    """

    ordered: bool
    members: Mapping[str, Sequence[Member]]
    queues: Sequence[MessageQueue]
    holdings: Mapping[MessageQueue, Holding] = field(default_factory=dict)
    decided: Mapping[MessageQueue, str] = field(default_factory=dict)
    wanted: Mapping[MessageQueue, str] = field(default_factory=dict)
    topics: Mapping[str, Collection[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Examination:
    """Problems of a consumer group that have lasted longer than a hand-over.

    Attributes:
        orphans: queues without a holder.
        contended: queues that a member other than the holder wants, each with that member.
        parted: raft groups that do not know a member that reads one of their topics.
    """

    orphans: tuple[MessageQueue, ...] = ()
    contended: tuple[tuple[MessageQueue, str], ...] = ()
    parted: tuple[str, ...] = ()

    @property
    def notify(self) -> bool:
        """Whether a notice would help: members then assign and lock again."""
        return bool(self.orphans or self.contended or self.parted)


def examine(world: AssignmentState) -> Examination:
    """Compare the members that hold the queues with the members that should hold them."""
    members = {member.client_id for found in world.members.values() for member in found}
    parted = _parted(world)
    if not world.ordered or not members:
        return Examination(parted=parted)
    unknown = Holding("", ORPHAN_MS)
    late = {
        queue: held.client_id
        for queue in sorted(world.queues)
        if (held := world.holdings.get(queue, unknown)).for_ms >= ORPHAN_MS
    }
    wanted = {
        queue: wants
        for queue, wants in {**world.decided, **world.wanted}.items()
        if wants in members
    }
    return Examination(
        orphans=tuple(queue for queue, holder in late.items() if not holder),
        contended=tuple(
            (queue, wanted[queue])
            for queue, holder in late.items()
            if holder in members and wanted.get(queue, holder) != holder
        ),
        parted=parted,
    )


def _parted(world: AssignmentState) -> tuple[str, ...]:
    """Return the raft groups that do not know every member that reads one of their topics.

    A member connects only to raft groups whose topics it reads.
    """
    everybody = [member for found in world.members.values() for member in found]
    parted = []
    for name, found in world.members.items():
        known, topics = {member.client_id for member in found}, world.topics.get(name, ())
        if any(
            member.client_id not in known
            and any(topic in topics for topic, _ in member.subscriptions)
            for member in everybody
        ):
            parted.append(name)
    return tuple(parted)
