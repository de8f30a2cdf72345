"""
Where a key's messages are, and for each group: who consumes them, what is ahead of the next one, what stops it.

Rule: what a broker cannot tell is None, never a zero. More waiting messages than `READ_MAX` are counted, and not read.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq.admin.client import AdminClient, QueueLock
from orderlymq.admin.operations import ParkedKey
from orderlymq.consumer.pull import QueueReader
from orderlymq.errors import BrokerError
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.selectors import by_hash
from orderlymq_protocol.body.messagequeue import MessageQueue

READ_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class GroupAndKey:
    """What one group has to do with a key.

    Attributes:
        lock: who holds the key's queue; None where nobody does.
        committed: first offset that the group has not committed; None when it has no offset.
        following: the next message of the key that waits, among the first `READ_MAX`.
        parked: what is known of the key when the group has parked it.
    """

    group: str
    lock: QueueLock | None
    committed: int | None
    following: ReceivedMessage | None
    parked: ParkedKey | None


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """Where a key is.

    Attributes:
        queues: number of queues of the topic.
        min_offset, max_offset: first offset that is kept, and the offset of the next message.
    """

    topic: str
    key: str
    is_ordered: bool
    queue: MessageQueue
    queues: int
    min_offset: int
    max_offset: int
    groups: tuple[GroupAndKey, ...]


async def explain_key(admin: AdminClient, topic: str, key: str) -> KeyExplanation:
    """Return the queue of *key* and what each group of the topic does with it.

    Raises:
        TopicNotFound: No broker has the topic.
        BrokerError: A broker refused.
        BrokerUnreachable: A broker did not answer.
    """
    route = await admin.route(topic)
    queue = by_hash(route.publish, Message(topic=topic, body=b"?", key=key), key)
    offsets = (await admin.topic_stats(topic))[queue]
    reader = QueueReader(admin.instance, "TOOLS_CONSUMER")
    groups = [
        await _of_group(admin, reader, name, queue, key, offsets.max_offset)
        for name in await admin.topic_groups(topic)
    ]

    return KeyExplanation(
        topic,
        key,
        route.is_ordered,
        queue,
        len(route.publish),
        offsets.min_offset,
        offsets.max_offset,
        tuple(groups),
    )


async def _of_group(
    admin: AdminClient,
    reader: QueueReader,
    group: str,
    queue: MessageQueue,
    key: str,
    end: int,
) -> GroupAndKey:
    progress = (await admin.progress(group)).get(queue)
    committed = None if progress is None else progress.consumer_offset
    try:
        lock = (await admin.locks(group)).get(queue)
        parked = [
            each
            for each in await admin.parked_keys(group)
            if each.queue == queue and each.key == key
        ]
    except BrokerError:
        lock, parked = None, []  # a broker of RocketMQ shows neither
    following = None if committed is None else await _next_of(reader, queue, key, committed, end)

    return GroupAndKey(group, lock, committed, following, parked[0] if parked else None)


async def _next_of(
    reader: QueueReader, queue: MessageQueue, key: str, begin: int, end: int
) -> ReceivedMessage | None:
    """Return the next waiting message of the key, among the first READ_MAX that wait."""
    offset = begin
    while offset < min(end, begin + READ_MAX):
        result = await reader.pull(queue, offset)
        for message in result.messages:
            if message.key == key:
                return message
        offset = max(result.next_offset, offset + 1)
    return None
