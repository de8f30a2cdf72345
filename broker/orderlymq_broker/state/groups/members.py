"""
Members of consumer groups: what each client consumes, as soft records that survive the leader.

The rule: a new leader must know the members of the old one. A Java client that is missing in the answer to
GET_CONSUMER_LIST_BY_GROUP drops all its queues. Only the leader knows which clients are connected now, and since
when: ``processors/groups/members.py``.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from orderlymq_broker.state.records import MembersChanged, MemberSeen, Subscription
from orderlymq_broker.state.sharedroom import SharedRoom
from orderlymq_broker.state.tables import TableWrites, read_as
from orderlymq_broker.store.kv import Reader
from orderlymq_broker.store.layout import Table
from orderlymq_protocol.body.clients import BROADCASTING, CONSUME_PASSIVELY, SubscriptionData
from orderlymq_protocol.hosts import network_of
from orderlymq_protocol.names import retry_topic

# The most memory of large members on every replica. Large and small members together may use twice as much, so that
# large ones cannot keep small ones out.
MEMBERS_SIZE_MAX: Final = 48 << 20
MEMBER_SMALL: Final = 8 << 10

_NO_MEMBERS: Mapping[str, MemberSeen] = {}
# The approximate memory of a member, a subscription, a code and a tag, in addition to their texts.
_MEMBER_SIZE: Final = 500
_SUBSCRIPTION_SIZE: Final = 300
_CODE_SIZE: Final = 40
_TAG_SIZE: Final = 60


class MemberTable:
    """Members by group and client id.

    *room* counts their approximate memory by account or address (`owner_of`); *large_room* counts that of large
    members only.

    A row is removed when its member leaves, is silent too long, or is proven dead, or when its group is deleted. The
    leader decides on all of these but the last (``processors/groups/members.py``).
    """

    def __init__(self, reader: Reader) -> None:
        self._groups: dict[str, dict[str, MemberSeen]] = {}
        self._groups_of: dict[str, set[str]] = {}
        self._at_host: dict[tuple[str, str], dict[str, MemberSeen]] = {}
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        self.room = SharedRoom(2 * MEMBERS_SIZE_MAX)
        self.large_room = SharedRoom(MEMBERS_SIZE_MAX)
        for member in read_as(reader, Table.MEMBERS, MemberSeen):
            self._add(member)

    def of_group(self, group: str) -> Mapping[str, MemberSeen]:
        """Return the members of a group by client id."""
        return self._groups.get(group, _NO_MEMBERS)

    def get(self, group: str, client_id: str) -> MemberSeen | None:
        """Return one member, or None."""
        return self._groups.get(group, _NO_MEMBERS).get(client_id)

    def at_host(self, group: str, host: str) -> Collection[MemberSeen]:
        """Return the members of a group whose connections came from *host*."""
        return self._at_host.get((group, host), _NO_MEMBERS).values()

    def groups(self) -> Iterator[str]:
        """Yield the groups that have members."""
        yield from self._groups

    def groups_of(self, client_id: str) -> list[str]:
        """Return the groups of which a client is a member."""
        return sorted(self._groups_of.get(client_id, ()))

    def subscriptions(self, group: str) -> Mapping[str, Subscription]:
        """Return the subscriptions of the group by topic, the newest of each topic."""
        merged = self._subscriptions.get(group)
        if merged is None:
            merged = {}
            members = self._groups.get(group, _NO_MEMBERS)
            for client_id in sorted(members):
                for wish in members[client_id].subscriptions:
                    present = merged.get(wish.topic)
                    if present is None or wish.version > present.version:
                        merged[wish.topic] = wish
            if (
                group in self._groups
            ):  # otherwise, any name that a pull invents would stay in memory
                self._subscriptions[group] = merged

        return merged

    def may_want(self, group: str, topic: str) -> bool:
        """Return whether a topic concerns a group. Once its members have named subscriptions, other topics no longer do.

        The group's retry topic always does. While no member has subscriptions, the group may want any topic.
        """
        wanted = self.subscriptions(group)

        return not wanted or topic in wanted or topic == retry_topic(group)

    def is_broadcasting(self, group: str) -> bool:
        """Return whether a member of the group consumes in BROADCASTING; others may not."""
        return any(member.message_model == BROADCASTING for member in self.of_group(group).values())

    def all_broadcast(self, group: str) -> bool:
        """Return whether the group has members and all of them consume in BROADCASTING."""
        members = self.of_group(group).values()

        return bool(members) and all(member.message_model == BROADCASTING for member in members)

    def is_pushing(self, group: str) -> bool:
        """Return whether a member of *group* is a push consumer, whose client library chooses what to pull next."""
        return any(
            member.consume_type == CONSUME_PASSIVELY for member in self.of_group(group).values()
        )

    def see(self, record: MemberSeen, writes: TableWrites) -> MembersChanged:
        """Add a member, or update it.

        The outcome names the group only if the other members must rebalance: for a new member, or other
        topics. Another address or subscription version does not concern them.
        """
        present = self.get(record.group, record.client_id)
        self._add(record)
        self._subscriptions.pop(record.group, None)
        writes.put(Table.MEMBERS, record.group, record.client_id, value=record)
        changed = present is None or _topics(present) != _topics(record)

        return MembersChanged((record.group,) if changed else ())

    def leave(self, group: str, client_id: str, writes: TableWrites) -> MembersChanged:
        """Remove a member."""
        members = self._groups.get(group, {})
        member = members.pop(client_id, None)
        if member is None:
            return MembersChanged(())
        self._count(member, -1)
        self._leave_host(member)
        if not members:
            del self._groups[group]
        self._groups_of[client_id].discard(group)
        if not self._groups_of[client_id]:
            del self._groups_of[client_id]
        self._subscriptions.pop(group, None)
        writes.delete(Table.MEMBERS, group, client_id)

        return MembersChanged((group,))

    def rows(self) -> Iterator[tuple[Any, ...]]:
        """Yield members for the digest."""
        for group in sorted(self._groups):
            for client_id in sorted(self._groups[group]):
                yield (self._groups[group][client_id],)

    def check(self) -> None:
        """Assert the invariants."""
        for group, members in self._groups.items():
            assert members, f"group {group} has no members, but is still listed"
            for client_id, member in members.items():
                assert (member.group, member.client_id) == (group, client_id), member
                assert group in self._groups_of[client_id], member
        assert self._subscriptions.keys() <= self._groups.keys(), (
            "subscriptions of a group without members are kept"
        )
        at_host: dict[tuple[str, str], dict[str, MemberSeen]] = {}
        for group, members in self._groups.items():
            for member in members.values():
                at_host.setdefault((group, host_of(member.address)), {})[member.client_id] = member
        assert self._at_host == at_host, "the index of members by host differs from the members"
        everyone = (each for members in self._groups.values() for each in members.values())
        twin = SharedRoom(0), SharedRoom(0)
        for member in everyone:
            twin[0].take(owner_of(member), size_of(member))
            twin[1].take(owner_of(member), large_part(size_of(member)))
        for room, counted in zip((self.room, self.large_room), twin, strict=True):
            assert room.parts() == counted.parts(), (
                "the used room differs from the size of the members"
            )
            assert room.used == counted.used
        assert all(self._groups_of.values()), "a client without groups is kept"
        assert sum(map(len, self._groups_of.values())) == sum(map(len, self._groups.values()))

    def _add(self, member: MemberSeen) -> None:
        former = self.get(member.group, member.client_id)
        if former is not None:
            self._leave_host(former)
            self._count(former, -1)
        self._count(member, 1)
        at_host = self._at_host.setdefault((member.group, host_of(member.address)), {})
        at_host[member.client_id] = member
        self._groups.setdefault(member.group, {})[member.client_id] = member
        self._groups_of.setdefault(member.client_id, set()).add(member.group)

    def _count(self, member: MemberSeen, sign: int) -> None:
        size, owner = size_of(member), owner_of(member)
        self.room.take(owner, sign * size)
        self.large_room.take(owner, sign * large_part(size))

    def _leave_host(self, member: MemberSeen) -> None:
        place = (member.group, host_of(member.address))
        del self._at_host[place][member.client_id]
        if not self._at_host[place]:
            del self._at_host[place]


def host_of(address: str) -> str:
    """Return the host of "host:port"."""
    return address.rpartition(":")[0]


def owner_of(member: MemberSeen) -> tuple[str, str]:
    """Return the owner to which a member's memory is attributed: its account or, without one, its address."""
    return member.account, "" if member.account else network_of(host_of(member.address))


def large_part(size: int) -> int:
    """Return how much a member of this size takes in the room of large ones."""
    return size if size > MEMBER_SMALL else 0


def size_of(member: MemberSeen) -> int:
    """Return the approximate memory of a member; a client chooses all its texts, including names of enumerations."""
    names = (member.group, member.client_id, member.address, member.account)
    kinds = (member.consume_type, member.message_model, member.consume_from_where)

    return (
        _MEMBER_SIZE
        + sum(map(len, names + kinds))
        + sum(
            _SUBSCRIPTION_SIZE
            + len(wish.topic)
            + len(wish.expression)
            + len(wish.expression_type)
            + _CODE_SIZE * len(wish.codes)
            + sum(_TAG_SIZE + len(tag) for tag in wish.tags)
            for wish in member.subscriptions
        )
    )


def since_ms(member: MemberSeen) -> int:
    """Return when a member made its newest subscription, by its own clock; all raft groups get the same value."""
    return max((wish.version for wish in member.subscriptions), default=0)


def subscription_data(wish: Subscription) -> SubscriptionData:
    """Return a subscription in its form on the wire."""
    return SubscriptionData(
        wish.topic,
        wish.expression,
        wish.tags,
        wish.codes,
        wish.version,
        wish.expression_type,
    )


def _topics(member: MemberSeen) -> set[str]:
    return {wish.topic for wish in member.subscriptions}
