"""
Which queues of a topic a member of a consumer group takes.

Rule: every member computes alone and all must come to the same assignment, members in Java included, so
each strategy gives RocketMQ's result for the same sorted input. Order is not at stake here: two members
that see different lists may both want a queue, and then its lock decides.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final, Protocol, TypeVar

from orderlymq.errors import SettingError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic
from orderlymq_protocol.plurals import counted
from orderlymq_protocol.shares import averagely, by_circle

# RocketMQ's default of AllocateMessageQueueConsistentHash; members with another number would disagree.
VIRTUAL_NODES: Final = 10


_T = TypeVar("_T")


class AssignmentStrategy(Protocol):
    """Divides the queues of one topic among the members of a group; pure."""

    @property
    def name(self) -> str:
        """Return RocketMQ's name of the strategy, which requests to brokers have."""

    def assign(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the queues of *member*; *queues* and *members* are sorted."""


def check_strategy(strategy: object) -> None:
    """Refuse what would fail at each rebalance: its member would count in the group, and leave its share to nobody.

    Raises:
        SettingError: It is no strategy; its name or its class is none.
    """
    name, divide = getattr(strategy, "name", None), getattr(strategy, "assign", None)
    if isinstance(strategy, type) or not (isinstance(name, str) and callable(divide)):
        raise SettingError(
            f"allocate_message_queue_strategy is {strategy!r}; it must be an object such as Averagely() of "
            "orderlymq.consumer.assignment"
        )


def assign(
    strategy: AssignmentStrategy,
    group: str,
    member: str,
    queues: Sequence[MessageQueue],
    members: Sequence[str],
) -> list[MessageQueue]:
    """Sort both lists and let *strategy* assign; nothing for a member that is not in the list.

    A member missing from the list is normal right after its first heartbeat; the caller asks again.
    """
    if member not in members:
        return []
    return strategy.assign(group, member, sorted(queues), sorted(members))


def uneven_shares(members: int, topics: Iterable[str]) -> str:
    """Say how queues, each given by its topic, do not divide evenly among members; empty where they do."""
    queues = sum(not is_retry_topic(topic) for topic in topics)
    if members > queues > 0:
        return f"{members} members share {counted(queues, 'queue')}; idle: {members - queues}"
    if members and queues % members:
        return f"{queues} queues do not divide evenly among {members} members"
    return ""


@dataclass(frozen=True, slots=True)
class Averagely:
    """Contiguous shares, the first members one more: 8 queues over 3 members are 3, 3, 2."""

    name: str = "AVG"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the contiguous share."""
        return averagely(queues, members.index(member), len(members))


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Queues dealt out like cards."""

    name: str = "AVG_BY_CIRCLE"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every n-th queue."""
        return by_circle(queues, members.index(member), len(members))


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Few queues move when a member joins or leaves; MD5 ring as in RocketMQ.

    Attributes:
        virtual_nodes: points of each member on the ring; the same number in every member.
    """

    virtual_nodes: int = VIRTUAL_NODES
    name: str = "CONSISTENT_HASH"

    def __post_init__(self) -> None:
        if self.virtual_nodes < 0:
            raise SettingError(f"virtual_nodes is {self.virtual_nodes}; it must be 0 or more")

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the queues whose point on the ring is followed by a point of *member*."""
        # A later member overwrites an earlier one at the same point, as in a Java map.
        ring = {
            _point(f"{node}-{number}"): node
            for node in members
            for number in range(self.virtual_nodes)
        }
        if not ring:
            return []
        points = sorted(ring)
        return [queue for queue in queues if ring[_next(points, _queue_point(queue))] == member]


@dataclass(frozen=True, slots=True)
class ByConfig:
    """The queues that the user names, whatever the others take."""

    queues: tuple[MessageQueue, ...]
    name: str = "CONFIG"

    def assign(
        self, _group: str, _member: str, queues: Sequence[MessageQueue], _members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the named queues as far as the topic has them."""
        present = set(queues)
        return [queue for queue in self.queues if queue in present]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Only queues of some machine rooms, divided evenly; broker names are `room@name`.

    The remainder goes to the first members one each, from the end of the list, as in RocketMQ.
    """

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the queues in the rooms."""
        near = [queue for queue in queues if self._is_near(queue)]
        index = members.index(member)
        share, rest = divmod(len(near), len(members))
        found = near[share * index : share * (index + 1)]
        if rest > index:
            found.append(near[index + share * len(members)])
        return found

    def _is_near(self, queue: MessageQueue) -> bool:
        room, separator, name = queue.broker_name.partition("@")
        # Java splits at every `@` and wants exactly two parts.
        return bool(separator) and "@" not in name and room in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Each room's queues to the members of that room; rooms without members to everybody.

    Attributes:
        inner: how a share is divided.
        broker_room: the room of a queue.
        member_room: the room of a client id.
    """

    inner: AssignmentStrategy
    broker_room: Callable[[MessageQueue], str]
    member_room: Callable[[str], str]

    @property
    def name(self) -> str:
        """Return RocketMQ's name, which contains the inner strategy's."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def assign(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the own room and of every room that has no member."""
        queues_by_room = _grouped(queues, self.broker_room)
        members_by_room = _grouped(members, self.member_room)
        own = self.member_room(member)
        near = queues_by_room.pop(own, [])

        found = self.inner.assign(group, member, near, members_by_room[own]) if near else []
        for room in sorted(queues_by_room):
            if room not in members_by_room:
                found += self.inner.assign(group, member, queues_by_room[room], members)
        return found


STRATEGIES: Final[Mapping[str, AssignmentStrategy]] = {
    strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle(), ConsistentHash())
}
"""Strategies that need no argument, by RocketMQ's names."""


def _grouped(items: Sequence[_T], room: Callable[[_T], str]) -> dict[str, list[_T]]:
    groups: dict[str, list[_T]] = {}
    for item in items:
        name = room(item)
        if not name:
            raise SettingError(f"the machine room of {item} is empty; the resolver must name one")
        groups.setdefault(name, []).append(item)
    return groups


def _queue_point(queue: MessageQueue) -> int:
    # The text is `MessageQueue.toString()`: RocketMQ hashes just that.
    return _point(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _point(key: str) -> int:
    # A place on a ring, not a secret; RocketMQ takes the first four bytes of MD5.
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _next(points: Sequence[int], point: int) -> int:
    return points[bisect_left(points, point) % len(points)]
