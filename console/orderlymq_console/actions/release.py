"""
Release what is parked: retry or skip the message of a lane, or let a key behind a dead letter go on.

Rules: the plan names the message at which the lane stands. If the lane has moved since, the broker's comparison fails and nothing is done.
A key should be released when all of its messages are among the letters; a release before that needs a second consent.
"""

import asyncio
from typing import Final

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import AdminClient
from orderlymq.admin.operations import ParkedKey
from orderlymq_console.actions.backlog import Backlog, backlog_of
from orderlymq_console.actions.plan import Changed, Done, Plan, Stand, amount
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.pages.messages import following_rows
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_protocol.body.lanes import BY_KEY, LaneShown, LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import SHARDING_KEY

WAYS: Final = ("retry", "skip", "release")
_RELEASABLE: Final = ("held", "parked")


async def plan_release(reader: ClusterReader, parameters: Parameters) -> Plan:
    """Return what a release of a key will do.

    Raises:
        NotThere: The group has not parked the key.
        BadParameter: A parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    group, topic = parameters.name("group"), parameters.name("topic")
    key, how = parameters.raw("key"), parameters.choice("how", WAYS)
    if not key:
        raise BadParameter("key must name the key that is released")
    await reader.check_whole(topic)
    # A plan must use no answer that is a second old and none that is cut, so every broker group is asked now, for this key only.
    tables = await _tables(reader.admin, group, topic, key)
    by_key = {name: table for name, table in tables.items() if table.concurrency == BY_KEY}
    parked = [
        each
        for each in await reader.admin.parked_keys(group)
        if each.key == key
        and each.queue.topic == topic
        # At a broker group that hands out keys, these are its held lanes.
        and each.queue.broker_name not in by_key
    ]
    found = [
        lane
        for table in by_key.values()
        for lane in table.lanes
        if lane.key == key and lane.state in _RELEASABLE
    ]
    if found and not (parked and how == "release"):
        is_of_keys = by_key[found[0].broker_name].lane_key_property == SHARDING_KEY
        return await _of_lanes(reader, group, found, how, is_of_keys=is_of_keys)
    if not parked:
        raise NotThere(f"group {group} has not parked key {key} of {topic}")

    backlog = await backlog_of(reader.admin, group, [each.queue for each in parked])
    return _of_key(group, parked, backlog)


async def release(reader: ClusterReader, plan: Plan, done: Done | None = None) -> int:
    """Do what *plan* says; return how many lanes or keys were released.

    Raises:
        Changed: Nothing is parked any more where it was shown.
        OrderlyMQError: A broker refused or did not answer; other brokers may have released their part.
    """
    done = done or Done()
    for each in plan.stands:
        queue = MessageQueue(plan.topic, each.broker_group, each.queue)
        done.count += len(
            await reader.admin.release_key(
                plan.group,
                plan.topic,
                plan.name,
                skip=plan.action == "skip",
                at=(queue, each.offset),
            )
        )
    if not done.count:
        raise Changed(
            f"the key {plan.name} is no longer parked at the offset that was shown; nothing was done"
        )
    return done.count


async def _tables(admin: AdminClient, group: str, topic: str, key: str) -> dict[str, LaneTable]:
    """Return the lanes of a key by broker group. One may have refused a configuration that another accepted, and hand out queues."""
    brokers = await admin.brokers()
    asked = (
        unless_foreign(admin.at(name, address).lanes(group, topic, key), LaneTable())
        for name, address in brokers.items()
    )
    return dict(zip(brokers, await asyncio.gather(*asked), strict=True))


async def _of_lanes(
    reader: ClusterReader, group: str, lanes: list[LaneShown], how: str, *, is_of_keys: bool
) -> Plan:
    """Return the plan for the lanes of one key. If it is not a sharding key, only the message at which the lane stands is shown."""
    lane = lanes[0]
    if how == "release":
        how = "retry"
    place = f"offset {lane.offset} of queue {lane.broker_name}:{lane.queue_id}"
    behind = max(0, lane.waiting - 1)
    if how == "skip":
        effects = [
            f"The message at {place} becomes a dead letter in %DLQ%{group}. No listener receives it again automatically.",
            f"Then the lane continues: {amount(behind, 'message')} of the key {'follows' if behind == 1 else 'follow'}.",
        ]
    else:
        effects = [
            f"The broker hands the lane out again now, beginning with the message at {place}, which failed "
            f"{amount(lane.tries, 'time')}.",
            f"{amount(behind, 'message').capitalize()} of the key {'follows' if behind == 1 else 'follow'} after it. "
            "If the message fails again, the lane stops again.",
        ]
    effects += [
        f"The same happens to the key's lane in queue {each.broker_name}:{each.queue_id}, at offset {each.offset}."
        for each in lanes[1:]
    ]
    if not await reader.admin.members(group):
        effects.append("No member of the group is online: nothing is consumed until one connects.")
    queue = MessageQueue(lane.topic, lane.broker_name, lane.queue_id)
    key, count = (lane.key, max(1, lane.waiting)) if is_of_keys else ("", 1)
    following = await following_rows(reader, queue, lane.offset, key=key)

    return Plan(
        action=how,
        title=f"{'Skip a message' if how == 'skip' else 'Retry'}: key {lane.key} in group {group}",
        group=group,
        topic=lane.topic,
        name=lane.key,
        effects=tuple(effects),
        stamp=";".join(
            f"{each.broker_name}:{each.queue_id}:{each.lane}:{each.offset}:{each.tries}"
            for each in lanes
        ),
        form={"key": lane.key, "how": how},
        stands=tuple(
            Stand(broker_group=each.broker_name, queue=each.queue_id, offset=each.offset)
            for each in lanes
        ),
        following=following[:count],
    )


def _of_key(group: str, parked: list[ParkedKey], backlog: Backlog) -> Plan:
    first = parked[0]
    letters = sum(each.behind for each in parked) + len(parked)
    return Plan(
        action="release",
        title=f"Release key {first.key} in group {group}",
        group=group,
        topic=first.queue.topic,
        name=first.key,
        effects=(
            "The group's listeners receive the next messages of the key again.",
            f"{amount(letters, 'dead letter').capitalize()} of the key {'stays' if letters == 1 else 'stay'} in %DLQ%{group} until a redrive, the next step. "
            "Messages that are sent meanwhile are consumed before them.",
        ),
        stamp=";".join(
            f"{each.queue.broker_name}:{each.queue.queue_id}:{each.first_offset}:{each.behind}"
            for each in parked
        )
        + f":{backlog.mark}",
        form={"key": first.key, "how": "release"},
        stands=tuple(
            Stand(
                broker_group=each.queue.broker_name,
                queue=each.queue.queue_id,
                offset=each.first_offset,
            )
            for each in parked
        ),
        consent=backlog.consent,
    )
