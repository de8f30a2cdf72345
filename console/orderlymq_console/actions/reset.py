"""
Move the offsets of a group in a topic: to the earliest message, to the end, or to a time.

Rule: the plan shows for each queue how many messages are passed over and how many are delivered again.
"""

from datetime import datetime
from typing import Final

from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import TopicNotFound
from orderlymq_console.actions.plan import Plan, QueueMove
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue

#: Each queue costs a request or two when the plan is made.
QUEUES_MAX: Final = 256


async def plan_reset(reader: ClusterReader, parameters: Parameters) -> Plan:
    """Return what a reset will do.

    Raises:
        NotThere: No broker has the topic.
        BadParameter: A parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    group, topic = parameters.name("group"), parameters.name("topic")
    to = target(parameters.text("to", "latest", length_max=40))
    try:
        route = await reader.admin.route(topic)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error
    if len(route.subscribe) > QUEUES_MAX:
        raise BadParameter(
            f"{topic} has more than {QUEUES_MAX} queues; use `orderlymq group reset`"
        )
    configs = await reader.admin.groups()
    if group not in configs:
        raise NotThere(f"there is no consumer group {group}")
    progress = await reader.admin.progress(group, topic)
    pulls = QueueReader(reader.admin.instance, "TOOLS_CONSUMER")
    moves = [
        _move(
            queue,
            None if queue not in progress else progress[queue].consumer_offset,
            await _offset(pulls, queue, to),
        )
        for queue in route.subscribe
    ]
    online = len(await reader.admin.members(group))
    lanes = "What waits in its lanes ends; a lane in hand ends with its attempt."
    by_key = configs[group].concurrency == BY_KEY

    return Plan(
        action="reset",
        title=f"Reset the offsets of group {group} in {topic}",
        group=group,
        topic=topic,
        name=group,
        effects=(
            f"The group goes on at {_words(to)} in every queue of {topic}.",
            "Messages that are passed over are not delivered to this group again; they stay in the topic.",
            *([lanes] if by_key else []),
            f"{online} members are online and go on there immediately."
            if online
            else "No member is online; the next one begins there.",
        ),
        stamp="reset",
        moves=tuple(moves),
    )


async def reset(reader: ClusterReader, plan: Plan, to: int | str) -> int:
    """Do what *plan* says; return how many queues were moved.

    Raises:
        OrderlyMQError: A broker refused or did not answer; some may have done it.
    """
    return len(await reader.admin.reset_offsets(plan.group, plan.topic, to))


def target(text: str) -> int | str:
    """Read `earliest`, `latest` or a time; a time is wall ms."""
    if text in ("earliest", "latest"):
        return text
    try:
        moment_ms = int(datetime.fromisoformat(text).astimezone().timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        moment_ms = -1
    if not 0 < moment_ms < 2**53:
        raise BadParameter("to must be earliest, latest or a time like 2026-01-31T12:00:00")
    return moment_ms


async def _offset(pulls: QueueReader, queue: MessageQueue, to: int | str) -> int:
    if to == "earliest":
        return await pulls.min_offset(queue)
    if to == "latest":
        return await pulls.max_offset(queue)
    return await pulls.offset_at(queue, int(to))


def _move(queue: MessageQueue, committed: int | None, offset: int) -> QueueMove:
    if committed is None:
        effect = "begins here"
    elif offset > committed:
        effect = f"passes {offset - committed:,} messages over"
    elif offset < committed:
        effect = f"delivers {committed - offset:,} messages again"
    else:
        effect = "stays"
    return QueueMove(
        broker_group=queue.broker_name,
        queue=queue.queue_id,
        committed=committed,
        target=offset,
        effect=effect,
    )


def _words(to: int | str) -> str:
    match to:
        case "earliest":
            return "the earliest message that is kept"
        case "latest":
            return "the end"
        case _:
            return f"the first message that was stored since {datetime.fromtimestamp(int(to) / 1000).astimezone().isoformat()}"
