"""
Strategies that assign the queues of a topic to the members of a consumer group.

Rule: every member computes alone, and all must come to the same assignment. Members in Java are included, so each
strategy returns RocketMQ's result for the same sorted input. The assignment does not decide about order: two members
that see different lists may both want a queue, and then the queue lock decides.
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
    """Divides the queues of one topic among the members of a consumer group; pure."""

    @property
    def name(self) -> str:
        """RocketMQ's name of the strategy, which requests to brokers carry."""

    def assign(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str], /
    ) -> list[MessageQueue]:
        """Return the queues of *member*; *queues* and *members* are sorted."""


def check_strategy(strategy: object) -> None:
    """Refuse an object that is not a strategy.

    It would fail at each rebalance, while its member still counts in the consumer group, so no member would take its
    share.

    Raises:
        SettingError: The object is a class, or it lacks `name` or `assign`.
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
    """Sort both lists and let *strategy* assign; return an empty list if *member* is not in *members*.

    A member is normally missing from the list right after its first heartbeat; the caller asks again.
    """
    if member not in members:
        return []
    return strategy.assign(group, member, sorted(queues), sorted(members))


def uneven_shares(members: int, topics: Iterable[str]) -> str:
    """Describe how queues divide unevenly among members; empty if they divide evenly. *topics* has the topic of each queue."""
    queues = sum(not is_retry_topic(topic) for topic in topics)
    if members > queues > 0:
        return f"{members} members share {counted(queues, 'queue')}; idle: {members - queues}"
    if members and queues % members:
        return f"{queues} queues do not divide evenly among {members} members"
    return ""


@dataclass(frozen=True, slots=True)
class Averagely:
    """Contiguous shares; the first members get one more: 8 queues over 3 members are 3, 3, 2."""

    name: str = "AVG"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the contiguous share of *member*."""
        return averagely(queues, members.index(member), len(members))


@dataclass(frozen=True, slots=True)
class AveragelyByCircle:
    """Queues dealt out in turn, like cards."""

    name: str = "AVG_BY_CIRCLE"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return every n-th queue, where n is the number of members."""
        return by_circle(queues, members.index(member), len(members))


@dataclass(frozen=True, slots=True)
class ConsistentHash:
    """Shares from an MD5 ring as in RocketMQ; few queues move when a member joins or leaves.

    Attributes:
        virtual_nodes: points of each member on the ring; the number must be the same in every member.
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
    """The queues that the user names, regardless of what other members take."""

    queues: tuple[MessageQueue, ...]
    name: str = "CONFIG"

    def assign(
        self, _group: str, _member: str, queues: Sequence[MessageQueue], _members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return those of the named queues that the topic has."""
        present = set(queues)
        return [queue for queue in self.queues if queue in present]


@dataclass(frozen=True, slots=True)
class ByMachineRoom:
    """Only the queues of some machine rooms, divided evenly; broker names are `room@name`.

    Each of the first members gets one queue of the remainder, from the end of the list, as in RocketMQ.
    """

    rooms: frozenset[str]
    name: str = "MACHINE_ROOM"

    def assign(
        self, _group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of *member* in the queues of the rooms."""
        near = [queue for queue in queues if self._is_near(queue)]
        index = members.index(member)
        share, rest = divmod(len(near), len(members))
        found = near[share * index : share * (index + 1)]
        if rest > index:
            found.append(near[index + share * len(members)])
        return found

    def _is_near(self, queue: MessageQueue) -> bool:
        room, separator, name = queue.broker_name.partition("@")
        # Java splits at every `@` and expects exactly two parts.
        return bool(separator) and "@" not in name and room in self.rooms


@dataclass(frozen=True, slots=True)
class MachineRoomNearby:
    """Queues go to the members of the same room; queues of a room without members go to all members.

    Attributes:
        inner: strategy that divides the queues of a room.
        broker_room: returns the room of a queue.
        member_room: returns the room of a client id.
    """

    inner: AssignmentStrategy
    broker_room: Callable[[MessageQueue], str]
    member_room: Callable[[str], str]

    @property
    def name(self) -> str:
        """RocketMQ's name, which contains the name of the inner strategy."""
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def assign(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        """Return the share of the member's own room and of every room that has no member."""
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
    # RocketMQ hashes exactly this text, which is `MessageQueue.toString()`.
    return _point(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _point(key: str) -> int:
    # RocketMQ takes the first four bytes of MD5. The result is a place on a ring, not a secret.
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4], "big")


def _next(points: Sequence[int], point: int) -> int:
    return points[bisect_left(points, point) % len(points)]
