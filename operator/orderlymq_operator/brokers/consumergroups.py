"""
The reconcile of a cluster's consumer groups: read each consumer group, ask its assigner, send the steps.

Rule: a failed step is tried again at the next reconcile. A consumer group that cannot be read from every raft group
is left alone, because half of its members would get all of its queues. If a raft group does not answer, the reconcile
ends. `plan.consumergroups` and `plan.assignment` decide.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from orderlymq_operator.brokers.admin import Admin, AdminError, SilentError
from orderlymq_operator.brokers.answers import Lock, MembershipView
from orderlymq_operator.plan.actions import TopicConfig
from orderlymq_operator.plan.consumergroups import AssignmentView, GroupAssigner, SetAssignment
from orderlymq_operator.resources.kinds import ConsumerGroup, Desired
from orderlymq_protocol.body.messagequeue import MessageQueue

_log = logging.getLogger(__name__)

# A notice tells members of a decision; a shorter pause would find nothing earlier.
RECONCILE_PAUSE_MS: Final = 1_000


class GroupReconciler:
    """Reconciles all consumer groups of a cluster; lives as long as its operator.

    Args:
        zone_of: returns the zone of a member from its address (`host:port`); empty if not known.
    """

    def __init__(self, admin: Admin, zone_of: Callable[[str], str] = lambda _: "") -> None:
        self._admin = admin
        self._zone_of = zone_of
        self._assigners: dict[str, GroupAssigner] = {}
        self._reconciled_ms: int | None = None

    async def reconcile(
        self,
        desired: Desired,
        addresses: Mapping[str, str],
        topics: Mapping[str, Mapping[str, TopicConfig]],
        now_ms: int,
        zones: Mapping[str, str] | None = None,
    ) -> None:
        """Reconcile every consumer group, unless the last reconcile was very recent.

        Args:
            desired: the desired state with the consumer groups.
            addresses: address of each raft group's leader.
            topics: topics of each raft group.
            now_ms: a monotonic clock.
            zones: zone of each raft group's leader, if known.
        """
        if self._reconciled_ms is not None and now_ms - self._reconciled_ms < RECONCILE_PAUSE_MS:
            return
        self._reconciled_ms = now_ms
        known = {group.group_name for group in desired.consumer_groups}
        for name in self._assigners.keys() - known:
            del self._assigners[name]
        if not desired.consumer_groups:
            return
        try:
            # One table holds the locks of all consumer groups.
            tables = {place: await self._admin.locks(at) for place, at in addresses.items()}
        except AdminError as error:
            _log.debug("consumer groups cannot be reconciled now: %s", error)
            return
        locks: dict[str, dict[MessageQueue, Lock]] = {}
        for place, table in tables.items():
            for lock in table:
                queue = MessageQueue(lock.topic, place, lock.queue)
                locks.setdefault(lock.group, {})[queue] = lock
        for group in desired.consumer_groups:
            held = locks.get(group.group_name, {})
            try:
                await self._reconcile_one(group, addresses, topics, held, now_ms, zones or {})
            except SilentError as error:
                # Each further consumer group would wait as long, and another leader may be elected meanwhile.
                _log.debug("consumer groups cannot be reconciled now: %s", error)
                return
            except AdminError as error:
                _log.debug(
                    "consumer group %s cannot be reconciled now: %s", group.group_name, error
                )

    async def _reconcile_one(
        self,
        group: ConsumerGroup,
        addresses: Mapping[str, str],
        topics: Mapping[str, Mapping[str, TopicConfig]],
        locks: Mapping[MessageQueue, Lock],
        now_ms: int,
        zones: Mapping[str, str],
    ) -> None:
        name = group.group_name
        places = list(addresses.items())
        views = await asyncio.gather(*(self._admin.membership(a, name) for _, a in places))
        seen = {
            place: replace(
                view,
                members=tuple(
                    replace(member, zone=self._zone_of(member.address)) for member in view.members
                ),
            )
            for (place, _), view in zip(places, views, strict=True)
        }
        assigner = self._assigners.setdefault(name, GroupAssigner(name))
        view = _view(group, seen, locks, topics, zones)
        for step in assigner.decide(group.spec.assignment, view, now_ms):
            for address in addresses.values():
                if isinstance(step, SetAssignment):
                    await self._admin.set_assignment(address, step)
                else:
                    await self._admin.notify_members(address, step.consumer_group)


def _view(
    group: ConsumerGroup,
    seen: Mapping[str, MembershipView],
    locks: Mapping[MessageQueue, Lock],
    topics: Mapping[str, Mapping[str, TopicConfig]],
    zones: Mapping[str, str],
) -> AssignmentView:
    # Leave out topics that the manifest names but no member reads: no member could take their queues.
    wanted = {
        topic
        for found in seen.values()
        for member in found.members
        for topic, _ in member.subscriptions
    }
    if declared := {topic.name for topic in group.spec.topics}:
        wanted &= declared
    return AssignmentView(
        group.spec.ordering == "Ordered" or any(found.ordered for found in seen.values()),
        {place: found.members for place, found in seen.items()},
        sorted(
            MessageQueue(topic, place, number)
            for place, table in topics.items()
            # With concurrency by key, members own no queues.
            for topic in (wanted if group.spec.concurrency == "Queue" else ())
            if topic in table
            for number in range(table[topic].queues)
        ),
        {queue: lock.client_id for queue, lock in locks.items()},
        {place: found.decisions for place, found in seen.items()},
        zones,
        {queue: lock.wanted_by for queue, lock in locks.items() if lock.wanted_by},
        topics,
    )
