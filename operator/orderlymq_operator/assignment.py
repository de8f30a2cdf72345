"""
Which member of a consumer group takes which queue, and what is wrong with how the queues are held.

For members that ask (QUERY_ASSIGNMENT) `divide` decides and the decision is stored at the brokers, which complete
it by the same rule when a member goes while no operator is there. For members that divide by themselves
`examine` compares: every queue of an ordered group should have one living holder, the one that everybody's own
computation gives it to.

Rules: pure. Sticky moves a queue of a living member only when nobody has come or gone for a while; so a rolling
restart that starts the new before it ends the old moves each queue once. Order is not at stake here: whoever is
named, the queue's lock decides who may consume.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple, TypeAlias

from orderlymq.assignment import AssignmentStrategy, Averagely, AveragelyByCircle, ConsistentHash
from orderlymq.assignment import assign as assign_alone
from orderlymq_operator.consumergroup import LockStatus, MemberStatus, QueueOwner
from orderlymq_protocol.messagequeue import MessageQueue

Strategy: TypeAlias = Literal["Averagely", "AveragelyByCircle", "ConsistentHash", "Sticky", "Zone"]

_ALONE: Final[Mapping[str, AssignmentStrategy]] = {
    "Averagely": Averagely(),
    "AveragelyByCircle": AveragelyByCircle(),
    "ConsistentHash": ConsistentHash(),
}
# A queue without a holder for this long is no hand-over any more: RocketMQ's clients ask again every 20 s.
ORPHAN_MS: Final = 30_000
_MEMBERS_SHOWN_MAX: Final = 256
_QUEUES_SHOWN_MAX: Final = 1024
_NAMED_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a group; *zone* is empty where none is known."""

    client_id: str
    zone: str = ""
    address: str = ""
    subscriptions: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Division:
    """The queues of one topic and who may take them.

    Attributes:
        present: owners by the last decision; also of members that are gone.
        zones: zone of each raft group's leader; without those that are not known.
        calm: nobody has come or gone for the strategy's delay.
    """

    queues: Sequence[MessageQueue]
    members: Sequence[Member]
    present: Mapping[MessageQueue, str] = field(default_factory=dict)
    zones: Mapping[str, str] = field(default_factory=dict)
    calm: bool = True


def divide(strategy: Strategy, group: str, division: Division) -> dict[MessageQueue, str]:
    """Return the owner of each queue; the last ones while nobody is there."""
    names = sorted(member.client_id for member in division.members)
    if not names:
        # The last owners are kept in mind: who comes back takes up where it was.
        return {queue: o for queue in division.queues if (o := division.present.get(queue))}
    if strategy in _ALONE:
        alone = _ALONE[strategy]
        shares = {name: assign_alone(alone, group, name, division.queues, names) for name in names}
        return {queue: name for name, share in shares.items() for queue in share}
    return _stick(division, by_zone=strategy == "Zone")


def _stick(division: Division, *, by_zone: bool) -> dict[MessageQueue, str]:
    zones = {member.client_id: member.zone for member in division.members}
    everybody = sorted(zones)
    residents: dict[str, list[str]] = {}
    for name in everybody:
        residents.setdefault(zones[name], []).append(name)

    def candidates(queue: MessageQueue) -> list[str]:
        """Return who should take a queue: the members of its zone, everybody where there is none."""
        zone = division.zones.get(queue.broker_name, "") if by_zone else ""
        return (residents.get(zone) if zone else None) or everybody

    queues = sorted(division.queues)
    owners = {q: o for q in queues if (o := division.present.get(q)) is not None and o in zones}
    loads = dict.fromkeys(everybody, 0)
    for owner in owners.values():
        loads[owner] += 1
    for queue in queues:
        if queue not in owners:
            _give(queue, _least(candidates(queue), loads), owners, loads)
    if division.calm:
        for queue, owner in sorted(owners.items()):  # first into their zone, then evenly inside it
            near = candidates(queue)
            if owner not in near:
                _give(queue, _least(near, loads), owners, loads)
        _even(owners, loads, candidates)
    return owners


def _even(
    owners: dict[MessageQueue, str],
    loads: dict[str, int],
    candidates: Callable[[MessageQueue], Sequence[str]],
) -> None:
    """Move queues, always from who has the most, until one more would only swap the roles."""
    held: dict[str, list[MessageQueue]] = {name: [] for name in loads}
    for queue in sorted(owners):
        held[owners[queue]].append(queue)
    moving = True
    while moving:
        moving = False
        for owner in sorted(loads, key=lambda name: (-loads[name], name)):
            for queue in held[owner]:
                taker = _least(candidates(queue), loads)
                if loads[owner] - loads[taker] > 1:
                    held[owner].remove(queue)
                    held[taker].append(queue)
                    _give(queue, taker, owners, loads)
                    moving = True
                    break
            if moving:
                break


def _least(names: Collection[str], loads: Mapping[str, int]) -> str:
    return min(names, key=lambda name: (loads[name], name))


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
    """Who holds a queue's lock, and since when it has been so; empty for nobody."""

    client_id: str
    for_ms: int


@dataclass(frozen=True, slots=True)
class GroupWorld:
    """What is known about a group.

    Attributes:
        members: by raft group that was asked: they may differ for a moment.
        queues: of all topics that the group reads.
        holdings: of queues whose state is known; an ordered group's queue that is missing was never locked.
        decided: owners by the operator's decision; None for members that divide by themselves.
    """

    ordered: bool
    members: Mapping[str, Sequence[Member]]
    queues: Sequence[MessageQueue]
    holdings: Mapping[MessageQueue, Holding] = field(default_factory=dict)
    decided: Mapping[MessageQueue, str] | None = None
    strategy: Strategy = "Averagely"


@dataclass(frozen=True, slots=True)
class Examination:
    """What is to be said about a group, and whether it should be told to look again.

    Attributes:
        orphans: queues without a living holder for longer than a hand-over takes.
        contended: queues that another member than their holder wants, with the wanting one.
        dead_holders: holders that are no members any more, whose leases still run.
        different: members that subscribe to something else than most, with what.
        parted: raft groups that see other members than the first one.
        notify: a notice would help: the members should divide and lock again.
    """

    members: tuple[Member, ...]
    owners: Mapping[MessageQueue, str]
    orphans: tuple[MessageQueue, ...] = ()
    contended: tuple[tuple[MessageQueue, str], ...] = ()
    dead_holders: tuple[str, ...] = ()
    different: tuple[tuple[str, str], ...] = ()
    parted: tuple[str, ...] = ()
    notify: bool = False

    @property
    def balanced(self) -> tuple[bool, str, str]:
        """Return truth, reason and message of the condition Balanced."""
        if not self.members:
            return False, "NoMembers", "nobody is online"
        if self.orphans:
            return False, "QueuesWithoutOwner", f"nobody has {_named(self.orphans)}"
        if self.contended:
            queue, wants = self.contended[0]
            text = f"{wants} wants {_text(queue)}, which {self.owners.get(queue, 'nobody')} holds"
            more = len(self.contended) - 1
            return False, "QueuesContended", text + (f", and {more} more" if more else "")
        if self.parted:
            return False, "MembersDiffer", f"{', '.join(self.parted)} see other members"
        idle = sum(1 for member in self.members if member.client_id not in self.owners.values())
        if idle and self.owners:
            text = f"every queue has one owner; {idle} of {len(self.members)} members have none"
            return True, "MembersIdle", text
        return True, "Balanced", "every queue has one living owner"

    @property
    def consistent(self) -> tuple[bool, str, str]:
        """Return truth, reason and message of the condition ConsistentSubscription."""
        if not self.different:
            return True, "SameSubscriptions", "all members subscribe to the same"
        named = "; ".join(f"{name}: {what}" for name, what in self.different[:_NAMED_MAX])
        return False, "SubscriptionsDiffer", f"some members subscribe to something else: {named}"

    def member_list(self) -> list[MemberStatus]:
        """Return the members for a status."""
        counts: dict[str, int] = {}
        for owner in self.owners.values():
            counts[owner] = counts.get(owner, 0) + 1
        return [
            MemberStatus(
                client_id=member.client_id,
                address=member.address,
                zone=member.zone,
                queues=counts.get(member.client_id, 0),
            )
            for member in self.members[:_MEMBERS_SHOWN_MAX]
        ]

    def assignment(self, queues: Sequence[MessageQueue]) -> list[QueueOwner]:
        """Return who has which of *queues* for a status."""
        return [
            QueueOwner(
                topic=queue.topic,
                group=queue.broker_name,
                queue=queue.queue_id,
                client_id=self.owners.get(queue, ""),
            )
            for queue in sorted(queues)[:_QUEUES_SHOWN_MAX]
        ]

    def locks(self, queues: Sequence[MessageQueue]) -> LockStatus:
        """Return how many locks are held, free and contended for a status."""
        held = sum(1 for queue in queues if queue in self.owners)
        return LockStatus(held=held, free=len(queues) - held, contended=len(self.contended))


def examine(group: str, world: GroupWorld) -> Examination:
    """Compare who has the queues with who should have them."""
    views = {name: {m.client_id: m for m in found} for name, found in world.members.items()}
    members = {name: member for view in views.values() for name, member in view.items()}
    first = next(iter(views.values()), {})
    parted = tuple(name for name, view in views.items() if view.keys() != first.keys())
    ordered = tuple(members[name] for name in sorted(members))
    wanted = _wanted(group, world, sorted(members))
    if not world.ordered:
        return Examination(
            ordered, wanted, different=_different(ordered), parted=parted, notify=bool(parted)
        )
    owners = {queue: held.client_id for queue, held in world.holdings.items() if held.client_id}
    orphans = tuple(
        queue
        for queue in sorted(world.queues)
        if members
        and queue not in owners
        and world.holdings.get(queue, Holding("", ORPHAN_MS)).for_ms >= ORPHAN_MS
    )
    contended = tuple(
        (queue, wants)
        for queue, wants in sorted(wanted.items())
        if owners.get(queue, wants) != wants
        and owners[queue] in members
        and world.holdings[queue].for_ms >= ORPHAN_MS
    )
    dead = tuple(sorted({owner for owner in owners.values() if owner not in members}))
    return Examination(
        ordered,
        owners,
        orphans,
        contended,
        dead,
        _different(ordered),
        parted,
        notify=bool(orphans or contended or parted),
    )


def _wanted(group: str, world: GroupWorld, members: Sequence[str]) -> dict[MessageQueue, str]:
    """Return who should have each queue: by decision, else by everybody's own computation."""
    if world.decided is not None:
        return {queue: owner for queue, owner in world.decided.items() if owner in members}
    found: dict[MessageQueue, str] = {}
    alone = _ALONE.get(world.strategy, _ALONE["Averagely"])
    for topic in sorted({queue.topic for queue in world.queues}):
        queues = [queue for queue in world.queues if queue.topic == topic]
        for name in members:
            found |= dict.fromkeys(assign_alone(alone, group, name, queues, members), name)
    return found


def _different(members: Sequence[Member]) -> tuple[tuple[str, str], ...]:
    """Return the members whose subscriptions are not those of most, with what they have."""
    counts: dict[frozenset[tuple[str, str]], int] = {}
    for member in members:
        counts[member.subscriptions] = counts.get(member.subscriptions, 0) + 1
    if len(counts) < 2:
        return ()
    usual = max(counts, key=lambda found: (counts[found], sorted(found)))
    return tuple(
        (
            member.client_id,
            ", ".join(f"{t} {e}" for t, e in sorted(member.subscriptions)) or "nothing",
        )
        for member in members
        if member.subscriptions != usual
    )


def _text(queue: MessageQueue) -> str:
    return f"queue {queue.queue_id} of {queue.topic} on {queue.broker_name}"


def _named(queues: Sequence[MessageQueue]) -> str:
    named = ", ".join(map(_text, queues[:_NAMED_MAX]))
    more = len(queues) - _NAMED_MAX
    return named + (f" and {more} more" if more > 0 else "")
