"""
Tending the consumer groups of one cluster: look at each, ask its tender, carry out what it says.

Rule: what fails is tried again at the next look; a group that cannot be seen whole is left alone, because half of its
members would get all of its queues. What is decided stands in `tending` and `assignment`.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from orderlymq_operator.assignment import Member
from orderlymq_operator.brokeradmin import Admin, AdminError, GroupSeen, Lock
from orderlymq_operator.models import ConsumerGroup, Desired
from orderlymq_operator.tending import GroupTender, GroupView, SetDivision
from orderlymq_protocol.body.messagequeue import MessageQueue

_log = logging.getLogger(__name__)

# Members that ask learn of a decision by a notice; looking more often would find nothing earlier.
LOOK_PAUSE_MS: Final = 1_000


class GroupTending:
    """Tends all consumer groups of a cluster; lives as long as its operator.

    Args:
        zone_of: the zone of a member by its address (`host:port`), empty where it is not known.
    """

    def __init__(self, admin: Admin, zone_of: Callable[[str], str] = lambda _: "") -> None:
        self._admin = admin
        self._zone_of = zone_of
        self._tenders: dict[str, GroupTender] = {}
        self._looked_ms: int | None = None

    async def tend(
        self,
        desired: Desired,
        addresses: Mapping[str, str],
        queues: Mapping[str, Mapping[str, int]],
        now_ms: int,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        """Look at every group, unless the last look was just now.

        Args:
            desired: whose consumer groups.
            addresses: where the leader of each raft group answers.
            queues: number of queues by raft group and topic.
            now_ms: a monotonic clock.
            zones: zone of each raft group's leader, where known.
        """
        if self._looked_ms is not None and now_ms - self._looked_ms < LOOK_PAUSE_MS:
            return
        self._looked_ms = now_ms
        known = {group.group_name for group in desired.groups}
        for name in self._tenders.keys() - known:
            del self._tenders[name]
        if not desired.groups:
            return
        try:
            # One table holds the locks of all groups.
            tables = {place: await self._admin.locks(at) for place, at in addresses.items()}
        except AdminError as error:
            _log.debug("no group is tended now: %s", error)
            return
        locks: dict[str, dict[MessageQueue, Lock]] = {}
        for place, table in tables.items():
            for lock in table:
                queue = MessageQueue(lock.topic, place, lock.queue)
                locks.setdefault(lock.group, {})[queue] = lock
        for group in desired.groups:
            held = locks.get(group.group_name, {})
            try:
                await self._tend_one(group, addresses, queues, held, now_ms, zones or {})
            except AdminError as error:
                _log.debug("the group %s is not tended now: %s", group.group_name, error)

    async def _tend_one(
        self,
        group: ConsumerGroup,
        addresses: Mapping[str, str],
        queues: Mapping[str, Mapping[str, int]],
        locks: Mapping[MessageQueue, Lock],
        now_ms: int,
        zones: Mapping[str, str],
    ) -> None:
        name = group.group_name
        places = list(addresses.items())
        sights = await asyncio.gather(*(self._admin.group_sight(a, name) for _, a in places))
        seen = {
            place: replace(sight, members=self._placed(sight))
            for (place, _), sight in zip(places, sights, strict=True)
        }
        tender = self._tenders.setdefault(name, GroupTender(name))
        view = _view(group, seen, locks, queues, zones)
        for step in tender.look(group.spec.assignment, view, now_ms):
            for address in addresses.values():
                if isinstance(step, SetDivision):
                    await self._admin.set_division(address, step)
                else:
                    await self._admin.notify_members(address, step.consumer_group)

    def _placed(self, sight: GroupSeen) -> tuple[Member, ...]:
        return tuple(
            replace(member, zone=self._zone_of(member.address)) for member in sight.members
        )


def _view(
    group: ConsumerGroup,
    seen: Mapping[str, GroupSeen],
    locks: Mapping[MessageQueue, Lock],
    queues: Mapping[str, Mapping[str, int]],
    zones: Mapping[str, str],
) -> GroupView:
    wanted = {topic.name for topic in group.spec.topics} or {
        topic
        for found in seen.values()
        for member in found.members
        for topic, _ in member.subscriptions
    }
    return GroupView(
        group.spec.ordering == "Ordered" or any(found.ordered for found in seen.values()),
        {place: found.members for place, found in seen.items()},
        sorted(
            MessageQueue(topic, place, number)
            for place, counts in queues.items()
            for topic, count in counts.items()
            if topic in wanted
            for number in range(count)
        ),
        {queue: lock.client_id for queue, lock in locks.items()},
        {place: found.decisions for place, found in seen.items()},
        zones,
        {queue: lock.wanted_by for queue, lock in locks.items() if lock.wanted_by},
    )
