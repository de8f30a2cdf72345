"""
Move the offsets of a consumer group in a topic: to the earliest message, to the end, to a time, or in one queue to an offset.

Rules: the plan shows for each queue how many messages are skipped and how many are delivered again. The action sets exactly the
offsets that were shown, or none, so messages that were sent since then are not skipped.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Final

from orderlymq.admin.calls import unless_foreign
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import TopicNotFound
from orderlymq_console.actions.plan import Done, Plan, QueueMove, amount
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.messagemodels import MessageRow
from orderlymq_console.pages.messages import following_rows
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import STAMP_LENGTH_MAX, BadParameter, Parameters
from orderlymq_protocol.body.lanes import LaneTable, QueueLanes
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.body.stats import TopicOffset
from orderlymq_protocol.plurals import counted

#: A form with more queues would be longer than the console reads.
QUEUES_MAX: Final = 256


async def plan_reset(reader: ClusterReader, parameters: Parameters) -> Plan:
    """Return what a reset will do.

    Raises:
        NotThere: No broker has the topic, it has no such queue, or there is no such consumer group.
        BadParameter: A parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    group, topic, place = (
        parameters.name("group"),
        parameters.name("topic"),
        parameters.queue("queue"),
    )
    to = _wanted(parameters)
    if place is None:
        await reader.check_whole(topic)
    kept = await _queues(reader, topic, place)
    configs = await reader.admin.groups()
    if group not in configs:
        raise NotThere(f"there is no consumer group {group}")
    progress = await reader.admin.progress(group, topic)
    committed = {
        queue: progress[queue].consumer_offset if queue in progress else None for queue in kept
    }
    lanes = await _lanes(reader, group, topic)
    targets = _shown(parameters, kept, committed)
    if targets is None:
        targets = [await _target(reader.pulls, queue, each, to) for queue, each in kept.items()]
    moves = tuple(
        _move(queue, committed[queue], target, lanes.get(queue))
        for queue, target in zip(kept, targets, strict=True)
    )
    online = len(await reader.admin.members(group))
    form = {name: parameters.text(name) for name in ("to", "queue", "offset")}

    return Plan(
        action="reset",
        title=f"Reset the offsets of group {group} in {topic}"
        if place is None
        else f"Set the offset of group {group} in queue {place[0]}:{place[1]} of {topic}",
        group=group,
        topic=topic,
        name=group,
        effects=(
            _words(moves, topic, to),
            "Exactly these offsets are set. Skipped messages are not delivered to this group; they stay in the topic.",
            *_of_lanes([lanes[queue] for queue in kept if queue in lanes]),
            f"{counted(online, 'member')} online will continue there immediately."
            if online
            else "No member is online; the next member that connects begins there.",
        ),
        stamp=json.dumps(
            [[*each, target] for each, target in zip(_places(committed), targets, strict=True)]
        ),
        form={name: text for name, text in form.items() if text},
        # Most messages behind the first one that lanes owe are complete.
        following=()
        if place is None or lanes.keys() & kept.keys()
        else await _following(reader, topic, moves[0]),
        moves=moves,
    )


async def reset(reader: ClusterReader, plan: Plan, done: Done | None = None) -> int:
    """Do what *plan* says, one broker group after the other; return how many queues were set.

    Raises:
        OrderlyMQError: A broker refused or did not answer; the broker groups before it have set their offsets.
    """
    done = done or Done()
    for name in sorted({each.broker_group for each in plan.moves}):
        targets = {
            MessageQueue(plan.topic, name, each.queue): each.target
            for each in plan.moves
            if each.broker_group == name
        }
        await reader.admin.set_offsets(plan.group, plan.topic, targets)
        done.count += len(targets)
    return done.count


def _wanted(parameters: Parameters) -> int | str:
    """Return `earliest`, `latest`, a time in wall ms, or the offset of one queue as text."""
    to = parameters.text("to", length_max=40)
    if to == "offset":
        if not parameters.text("queue") or not parameters.text("offset"):
            raise BadParameter("to set an offset, give the queue and the offset")
        return str(parameters.number("offset", 0))
    if to in ("earliest", "latest"):
        return to
    moment_ms = parameters.moment("to")
    if moment_ms is None:
        raise BadParameter("to must be earliest, latest, or a time like 2026-01-31T12:00:00")
    return moment_ms


async def _queues(
    reader: ClusterReader, topic: str, place: tuple[str, int] | None
) -> dict[MessageQueue, TopicOffset]:
    """Return the queues that move, with the offsets that each one keeps."""
    try:
        found = await reader.admin.topic_stats(topic)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error
    if place is not None:
        found = {queue: each for queue, each in found.items() if queue[1:] == place}
    if not found:
        raise NotThere(f"topic {topic} has no such queue")
    if len(found) > QUEUES_MAX:
        raise BadParameter(
            f"{topic} has more than {QUEUES_MAX} queues; use `orderlymq group reset`"
        )

    return found


def _shown(
    parameters: Parameters,
    kept: Mapping[MessageQueue, TopicOffset],
    committed: Mapping[MessageQueue, int | None],
) -> list[int] | None:
    """Return the targets that were shown; None if one is not kept any more, or if the group stands elsewhere."""
    try:
        rows = json.loads(parameters.text("stamp", length_max=STAMP_LENGTH_MAX))
        targets = [int(row.pop()) for row in rows]
    except (ValueError, TypeError, AttributeError, IndexError, OverflowError, RecursionError):
        return None
    if rows != _places(committed):
        return None
    ranges = zip(targets, kept.values(), strict=True)
    is_kept = all(each.min_offset <= target <= each.max_offset for target, each in ranges)

    return targets if is_kept else None


def _places(committed: Mapping[MessageQueue, int | None]) -> list[list[object]]:
    return [[queue.broker_name, queue.queue_id, offset] for queue, offset in committed.items()]


async def _target(pulls: QueueReader, queue: MessageQueue, kept: TopicOffset, to: int | str) -> int:
    match to:
        case "earliest":
            return kept.min_offset
        case "latest":
            return kept.max_offset
        case int():
            return await pulls.offset_at(queue, to)
    if not kept.min_offset <= int(to) <= kept.max_offset:
        raise BadParameter(
            f"offset is {to}; the queue holds offsets {kept.min_offset} to {kept.max_offset}"
        )
    return int(to)


async def _lanes(reader: ClusterReader, group: str, topic: str) -> dict[MessageQueue, QueueLanes]:
    """Return the lanes of a topic's queues in figures; empty if the group takes whole queues."""
    table = await unless_foreign(reader.admin.lanes(group, topic), LaneTable())
    return {MessageQueue(row.topic, row.broker_name, row.queue_id): row for row in table.queues}


def _of_lanes(rows: list[QueueLanes]) -> Iterator[str]:
    """Say what happens to the lanes of the queues that move."""
    if not rows:
        return
    owed = amount(sum(row.owed for row in rows), "message")
    yield (
        f"The lanes of these queues end. They owe {owed}; those before the new offset will not be delivered. "
        "A lane in hand ends when its attempt ends."
    )


def _move(
    queue: MessageQueue, committed: int | None, offset: int, lanes: QueueLanes | None
) -> QueueMove:
    if lanes is not None:
        effect = _lanes_effect(lanes, offset)
    elif committed is None:
        effect = "begins here"
    elif offset > committed:
        effect = f"skips {amount(offset - committed, 'message')}"
    elif offset < committed:
        effect = f"delivers {amount(committed - offset, 'message')} again"
    else:
        effect = "stays"
    return QueueMove(
        broker_group=queue.broker_name,
        queue=queue.queue_id,
        committed=committed,
        target=offset,
        effect=effect,
    )


def _lanes_effect(lanes: QueueLanes, offset: int) -> str:
    """Return the effect of a reset on a queue of a by-key group; of the scanned messages, all but the owed ones are complete."""
    if offset >= lanes.scanned:
        passed = lanes.owed + offset - lanes.scanned
        return f"skips {amount(passed, 'message')}" if passed else "stays"
    again = f"delivers {amount(lanes.scanned - offset, 'message')} again"
    if offset <= lanes.committed or not lanes.owed:
        return again
    return (
        f"skips up to {amount(min(lanes.owed, offset - lanes.committed), 'message')}, and {again}"
    )


async def _following(reader: ClusterReader, topic: str, move: QueueMove) -> tuple[MessageRow, ...]:
    """Return the messages from the offset where one queue stands, or from the offset to which it goes back."""
    begin = move.target if move.committed is None else min(move.committed, move.target)
    queue = MessageQueue(topic, move.broker_group, move.queue)
    return await following_rows(reader, queue, begin)


def _words(moves: tuple[QueueMove, ...], topic: str, to: int | str) -> str:
    match to:
        case "earliest":
            where = "the earliest stored message"
        case "latest":
            where = "the end as it is shown here"
        case int():
            time = datetime.fromtimestamp(to / 1000, UTC)
            where = f"the first message that was stored since {time.isoformat()}"
        case _:
            where = f"offset {int(to):,}"
    if len(moves) == 1:
        queue = f"queue {moves[0].broker_group}:{moves[0].queue} of {topic}"
        return f"The group continues at {where} in {queue}: it {moves[0].effect}. Other queues do not change."

    return f"The group continues at {where} in every queue of {topic}."
