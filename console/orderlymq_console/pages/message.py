"""
One message: its place, properties and body, and where it stands for each consumer group of its topic.

Rule: a state claims only what brokers can prove. If a group consumes by key, or has skipped a message, it says no more than that.
"""

import asyncio
from typing import Final

from orderlymq.admin.client import AdminClient
from orderlymq.connection.instance import unless_missing
from orderlymq.errors import OrderlyMQError, SettingError, TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_console.cluster import Answers, ClusterReader
from orderlymq_console.collector import Reading
from orderlymq_console.links import group_link, message_link
from orderlymq_console.messagemodels import MessageGroup, MessagePage
from orderlymq_console.models import Figure, Source, Standstill
from orderlymq_console.pages import bodies
from orderlymq_console.pages.blocked import Parts, group_parts, standing
from orderlymq_console.pages.messages import message_row
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import BadParameter, Parameters
from orderlymq_console.status import StatusReport
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import dlq_topic, retry_topic
from orderlymq_protocol.plurals import counted

#: Each consumer group costs some requests to every broker group.
GROUPS_MAX: Final = 20
_TIMEOUT_S: Final = 5.0
ANY_LANE: Final = "The group consumes by key. The message is not committed; its lane may have consumed it already."


async def message(reader: ClusterReader, parameters: Parameters) -> MessagePage:
    """Return one message, found by its place or by its id in a topic.

    Raises:
        NotThere: It is not kept, or never existed.
        BadParameter: A parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    topic, form = parameters.name("topic"), parameters.choice("form", bodies.FORMS)
    place, message_id = parameters.queue("queue"), parameters.text("id", length_max=255)
    if place is None and not message_id:
        raise BadParameter("give the queue and offset of the message, or its id")
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            if place is not None:
                queue = MessageQueue(topic, *place)
                found = await _at(reader, queue, parameters.number("offset", 0))
            else:
                found = await _with_id(reader.admin, topic, message_id)
            head = await reader.pulls.min_offset(found.queue)
            end = await reader.pulls.max_offset(found.queue)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error
    except TimeoutError as error:
        raise OrderlyMQError(f"the broker did not answer within {_TIMEOUT_S:g} s") from error
    statuses = await reader.statuses()
    names = await reader.of_each(("groups of", topic), lambda client: client.topic_groups(topic))
    groups = sorted({name for _, each in names.known() for name in each})
    rows = await asyncio.gather(
        *(of_group(reader, statuses, name, found) for name in groups[:GROUPS_MAX])
    )

    return MessagePage(
        sources=(
            Source(name=found.queue.broker_name, age_seconds=0.0),
            *reader.sources(statuses),
        ),
        row=message_row(found, form, bodies.WHOLE_MAX),
        form=form,
        head=head,
        end=end,
        groups=rows,
        groups_left_out=max(0, len(groups) - GROUPS_MAX),
        groups_unknown=names.unknown,
    )


async def _at(reader: ClusterReader, queue: MessageQueue, offset: int) -> ReceivedMessage:
    route, pulls = await reader.admin.route(queue.topic), reader.pulls
    if queue not in {*route.subscribe, *route.publish}:
        raise NotThere(f"topic {queue.topic} has no queue {queue.broker_name}:{queue.queue_id}")
    head, end = await pulls.min_offset(queue), await pulls.max_offset(queue)
    if head <= offset < end:
        pulled = await pulls.pull(queue, offset, count=1, unreadable=True, body_max=bodies.READ_MAX)
        for found in pulled.messages:
            if found.queue_offset == offset:
                return found
    raise NotThere(
        f"there is no message at offset {offset} of {queue.broker_name}:{queue.queue_id} in {queue.topic}; "
        f"offsets {head} to {end} are kept"
    )


async def _with_id(admin: AdminClient, topic: str, message_id: str) -> ReceivedMessage:
    """Return the message with an id: the id that its producer gave it, or its offset message id."""

    async def find(unique_key: str) -> list[ReceivedMessage]:
        return await admin.find_messages(
            topic, unique_key, unique=True, unreadable=True, body_max=bodies.READ_MAX
        )

    found = await find(message_id)
    if found:
        return found[0]
    try:
        place = await admin.view_message(message_id, unreadable=True, body_max=0)
    except (SettingError, OrderlyMQError) as error:
        raise NotThere(f"there is no message {message_id} in {topic}") from error
    again = await find(place.message_id) if place.topic == topic else []
    if not again:
        raise NotThere(f"there is no message {message_id} in {topic}")
    return again[0]


async def of_group(
    reader: ClusterReader,
    statuses: Answers[StatusReport],
    group: str,
    found: ReceivedMessage,
    lane: str = ANY_LANE,
) -> MessageGroup:
    """Return where a message stands for one consumer group; *lane* is the sentence for a message that a by-key group has not committed."""
    parts = await group_parts(reader, group)
    committed = _committed(parts, found.queue)
    link = group_link(group)
    parked, lane_key = "", _lane_key(parts, found)
    for row in standing(statuses, group, parts):
        here = (row.topic, row.broker_group, row.queue)
        if here != (found.topic, found.queue.broker_name, found.queue.queue_id):
            continue
        if row.kind == "key":
            # The messages of a parked key are dead letters, or become dead letters.
            if row.key == found.key and _begins(row, found):
                parked = f" Its key is parked since offset {row.offset}."
        elif row.offset == found.queue_offset:
            return MessageGroup(
                group=group,
                state=f"A {row.kind} is blocked at it: {row.state}.",
                committed=committed,
                tries=row.tries,
                last_error=row.last_error,
                since_ms=row.since_ms,
                link=link,
            )
        elif row.kind == "lane" and lane_key and row.key == lane_key and _begins(row, found):
            state = (
                f"Its key is {row.state} since offset {row.offset}; it waits behind that message."
            )
            return MessageGroup(
                group=group, state=state, committed=committed, since_ms=row.since_ms, link=link
            )
    letters = await _copies(reader, dlq_topic(group), found.message_id)
    if letters.value:
        letter = letters.value[-1]
        place = message_link(
            letter.topic, letter.queue.broker_name, letter.queue.queue_id, letter.queue_offset
        )
        return MessageGroup(
            group=group,
            state=f"It is a dead letter of the group.{parked}",
            committed=committed,
            tries=letter.reconsume_times,
            since_ms=letter.store_timestamp,
            event="became a dead letter",
            link=place,
        )
    retries = await _copies(reader, retry_topic(group), found.message_id)
    last = retries.value[-1] if retries.value else None

    return MessageGroup(
        group=group,
        state=_state(found, committed, parts, letters.unknown, retries, lane) + parked,
        committed=committed,
        tries=None if last is None else last.reconsume_times,
        since_ms=None if last is None else last.store_timestamp,
        event="" if last is None else f"came back for try {last.reconsume_times + 1}",
        link=link,
    )


def _lane_key(parts: Parts, found: ReceivedMessage) -> str:
    """Return the key of a message's lane; empty if the message is its own lane, or if the consumer group consumes by queue."""
    names = {
        table.lane_key_property for _, table in parts.lanes.known() if table.concurrency == BY_KEY
    }
    return next((found.properties.get(name, "") for name in names), "")


def _begins(row: Standstill, found: ReceivedMessage) -> bool:
    """Return whether a key has stood still since this message or an earlier one."""
    return (row.offset or 0) <= found.queue_offset


def _committed(parts: Parts, queue: MessageQueue) -> Figure:
    for _, table in parts.progress.known():
        if queue in table:
            return Figure(value=table[queue].consumer_offset)

    return Figure(unknown=parts.progress.unknown)


def _state(
    found: ReceivedMessage,
    committed: Figure,
    parts: Parts,
    letters_unknown: str,
    retries: Reading[list[ReceivedMessage]],
    lane: str,
) -> str:
    if committed.value is None:
        return committed.unknown or "The group has no offset in this queue."
    ahead = found.queue_offset - int(committed.value)
    if ahead < 0 and retries.value:
        times = retries.value[-1].reconsume_times
        return f"It failed {counted(times, 'time')} and was delivered again through the group's retry topic."
    unknown = letters_unknown or retries.unknown
    unsure = f"Whether it is a dead letter or is tried again is unknown: {unknown}."
    if ahead < 0 and unknown:
        return f"The group has committed it. {unsure}"
    if ahead < 0:
        return "The group has committed it: it was consumed or skipped."
    if parts.lanes.reason(found.queue.broker_name):
        return f"The message is not committed. The state of its lane is unknown: {parts.lanes.reason(found.queue.broker_name)}."
    if any(table.concurrency == BY_KEY for _, table in parts.lanes.known()):
        return f"{lane} {unsure}" if unknown else lane
    if not ahead:
        return "It is the first message that the group has not committed: its listener has it, or gets it next."

    return f"It waits: {'1 message of the queue is' if ahead == 1 else f'{ahead:,} messages of the queue are'} ahead of it."


async def _copies(
    reader: ClusterReader, topic: str, message_id: str
) -> Reading[list[ReceivedMessage]]:
    if (await reader.queues(topic)).value == set():
        return Reading([], "", reader.collector.now_s())

    async def ask() -> list[ReceivedMessage]:
        # The collector remembers the answer, so it holds no body.
        asked = reader.admin.find_messages(
            topic, message_id, unique=True, unreadable=True, body_max=0
        )
        return await unless_missing(asked, [])

    return await reader.collector.read(("copies", topic, message_id), ask)
