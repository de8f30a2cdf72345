"""
Messages of a queue: from an offset or a time on, or those of one key.

Rules: a page reads at most `LOOKED_AT_MAX` messages, and says where it stopped. It reads as much of a body as can be shown,
and keeps as much as is shown. Reading takes nothing from consumers: it pulls as an admin tool, without a queue lock and without a commit.
"""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from orderlymq.admin.explanation import queue_of
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import OrderlyMQError, TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_console.cluster import ClusterReader
from orderlymq_console.messagemodels import MessageRow, MessagesPage
from orderlymq_console.models import Source
from orderlymq_console.pages import bodies
from orderlymq_console.pages.notfound import NotThere
from orderlymq_console.parameters import Parameters
from orderlymq_protocol.body.messagequeue import MessageQueue

SHOWN: Final = 20
FOLLOWING_SHOWN: Final = 4
LOOKED_AT_MAX: Final = 1_000
_BLOCK: Final = 32
_TIMEOUT_S: Final = 5.0
# Queues that the list of choices names.
QUEUES_MAX: Final = 1_024

T = TypeVar("T")


async def messages(reader: ClusterReader, parameters: Parameters) -> MessagesPage:
    """Return messages of a topic.

    Raises:
        NotThere: No broker has the topic or the queue.
        BadParameter: A parameter cannot be used.
        OrderlyMQError: A broker refused or did not answer.
    """
    topic, key = parameters.name("topic"), parameters.raw("key")
    form = parameters.choice("form", bodies.FORMS)
    count = parameters.number("count", SHOWN, low=1, high=SHOWN)
    wanted, moment_ms = parameters.queue("queue"), parameters.moment("time")
    # Without an offset the page begins near the end of the queue.
    offset = parameters.number("offset", 0) if parameters.text("offset") else None
    try:
        route = await reader.admin.route(topic)
    except TopicNotFound as error:
        raise NotThere(f"there is no topic {topic}") from error
    queues = tuple(sorted({*route.subscribe, *route.publish}))
    if wanted is not None:
        queue = MessageQueue(topic, *wanted)
    elif key and route.publish:
        queue = queue_of(route, topic, key)
    elif queues:
        queue = queues[0]
    else:
        raise NotThere(f"topic {topic} has no queue that can be read")
    if queue not in queues:
        raise NotThere(f"topic {topic} has no queue {queue.broker_name}:{queue.queue_id}")
    pulls = reader.pulls
    limit = bodies.WHOLE_MAX if count == 1 else bodies.SHOWN_MAX

    def row(message: ReceivedMessage) -> MessageRow:
        return message_row(message, form, limit)

    try:
        async with asyncio.timeout(_TIMEOUT_S):
            head, end = await pulls.min_offset(queue), await pulls.max_offset(queue)
            begin = max(head, end - (LOOKED_AT_MAX if key else SHOWN)) if offset is None else offset
            if moment_ms is not None:
                begin = await pulls.offset_at(queue, moment_ms)
            begin = max(head, min(begin, end))
            rows, looked_at, following = await _read(
                pulls, queue, begin, end, key=key, count=count, take=row
            )
    except TimeoutError as error:
        raise OrderlyMQError(
            f"{queue.broker_name} did not answer within {_TIMEOUT_S:g} s"
        ) from error

    return MessagesPage(
        sources=(Source(name=queue.broker_name, age_seconds=0.0),),
        topic=topic,
        broker_group=queue.broker_name,
        queue=queue.queue_id,
        queues=tuple(f"{each.broker_name}:{each.queue_id}" for each in queues[:QUEUES_MAX]),
        offset=begin,
        head=head,
        end=end,
        key=key,
        form=form,
        rows=tuple(rows),
        looked_at=looked_at,
        previous=max(head, begin - (LOOKED_AT_MAX if key else count)) if begin > head else None,
        following=following if following < end else None,
    )


async def following_rows(
    reader: ClusterReader, queue: MessageQueue, offset: int, *, key: str = ""
) -> tuple[MessageRow, ...]:
    """Return the next messages of a queue from an offset on, or those of one key, for the preview of an action; raises as `messages`."""
    wanted = {
        "topic": queue.topic,
        "queue": f"{queue.broker_name}:{queue.queue_id}",
        "offset": str(offset),
        "key": key,
        "count": str(FOLLOWING_SHOWN),
    }
    return (await messages(reader, Parameters(wanted))).rows


async def newest_of(
    pulls: QueueReader, queue: MessageQueue, key: str, *, head: int, end: int, count: int
) -> tuple[list[ReceivedMessage], int]:
    """Return the newest messages of a key without their bodies, the newest first, and the offset down to which the queue was read."""
    found: list[ReceivedMessage] = []
    low, begin = max(head, end - LOOKED_AT_MAX), end
    while begin > low and len(found) < count:
        after, begin = begin, max(low, begin - _BLOCK)
        rows, _, _ = await _read(
            pulls, queue, begin, after, key=key, count=_BLOCK, body_max=0, take=lambda each: each
        )
        found += reversed([each for each in rows if each.queue_offset < after])

    shown = found[:count]

    return shown, shown[-1].queue_offset if len(shown) == count else begin


async def _read(
    pulls: QueueReader,
    queue: MessageQueue,
    begin: int,
    end: int,
    *,
    key: str,
    count: int,
    body_max: int = bodies.READ_MAX,
    take: Callable[[ReceivedMessage], T],
) -> tuple[list[T], int, int]:
    """Return the results of *take*, how many messages were read to find them, and the offset to go on from."""
    found: list[T] = []
    offset, looked_at = begin, 0
    while offset < end and len(found) < count and looked_at < LOOKED_AT_MAX:
        more, read, offset = await _block(
            pulls, queue, offset, key=key, count=count - len(found), body_max=body_max, take=take
        )
        found += more
        looked_at += read

    return found, looked_at, offset


async def _block(
    pulls: QueueReader,
    queue: MessageQueue,
    offset: int,
    *,
    key: str,
    count: int,
    body_max: int,
    take: Callable[[ReceivedMessage], T],
) -> tuple[list[T], int, int]:
    """Return for one pull what `_read` returns; its messages are freed before the next ones come."""
    found: list[T] = []
    looked_at = 0
    wanted = _BLOCK if key else count
    result = await pulls.pull(queue, offset, count=wanted, unreadable=True, body_max=body_max)
    for message in result.messages:
        looked_at += 1
        if not key or message.key == key:
            found.append(take(message))
            if len(found) == count:
                return found, looked_at, message.queue_offset + 1

    return found, looked_at, max(result.next_offset, offset + 1)


def message_row(message: ReceivedMessage, form: str, limit: int) -> MessageRow:
    """Return the row of a message, with at most *limit* characters of its body; in hex if the body is shown as it is stored."""
    return MessageRow(
        topic=message.topic,
        broker_group=message.queue.broker_name,
        queue=message.queue.queue_id,
        offset=message.queue_offset,
        key=message.key,
        tag=message.tags,
        keys=message.keys,
        message_id=message.message_id,
        offset_message_id=message.offset_message_id,
        stored_ms=message.store_timestamp,
        born_ms=message.born_timestamp,
        born_host="{}:{}".format(*message.born_host),
        reconsume_times=message.reconsume_times,
        properties=message.properties,
        unreadable=message.unreadable,
        body=bodies.show(
            message.body, "hex" if message.unreadable else form, limit, message.size_bytes
        ),
    )
