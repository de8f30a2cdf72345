"""
The messages of a key: their queue, and for each group the consumer, the messages ahead, and the obstacle.

Rules: a value that a broker does not know is None, never zero. Beyond `READ_MAX` waiting messages are counted
but not read. Only the broker group of the key's queue is asked: other broker groups know nothing of the key, so
they may be away.
"""

from dataclasses import dataclass
from typing import Final

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import AdminClient, QueueLock
from orderlymq.admin.operations import ParkedKey
from orderlymq.connection.routes import TopicRoute
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.errors import TopicNotFound
from orderlymq.message import Message
from orderlymq.producer.selectors import by_hash
from orderlymq_protocol.body.lanes import BY_KEY, LaneShown, LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message.properties import SHARDING_KEY
from orderlymq_protocol.names import TOOLS_GROUP

READ_MAX: Final = 1_000


@dataclass(frozen=True, slots=True)
class GroupAndKey:
    """The state of a key in one consumer group.

    Attributes:
        lock: the lock of the key's queue; None if no member holds it.
        committed: first offset that the group has not committed; None if it has no offset.
        following: offset of the next message of the key that waits, among the first `READ_MAX`.
        ahead: messages that the group takes before that one; messages of other lanes do not count.
        parked: the report about the key if the group has parked it.
        by_key: the group consumes by key, so no member holds the queue.
        lane: the state of the key's lane in such a group; None while it is idle.
        lane_property: the property whose values are the lanes of such a group; empty if it is the sharding key. With
            another property only the place of a sharding key is known.
        begin: where the search for `following` began: at the committed offset, or in a group by key at the first
            message that was not scanned.
    """

    group: str
    lock: QueueLock | None
    committed: int | None
    following: int | None
    ahead: int | None
    parked: ParkedKey | None
    by_key: bool = False
    lane: LaneShown | None = None
    lane_property: str = ""
    begin: int | None = None


@dataclass(frozen=True, slots=True)
class KeyExplanation:
    """The place of a key, and its state in each consumer group.

    Attributes:
        queues: number of queues of the topic.
        min_offset, max_offset: first offset that is kept, and the offset of the next message.
        groups_left_out: groups of the topic that were not asked.
    """

    topic: str
    key: str
    is_ordered: bool
    queue: MessageQueue
    queues: int
    min_offset: int
    max_offset: int
    groups: tuple[GroupAndKey, ...]
    groups_left_out: int = 0


async def explain_key(
    admin: AdminClient, topic: str, key: str, *, groups_max: int | None = None
) -> KeyExplanation:
    """Return the queue of *key* and its state in at most *groups_max* consumer groups of the topic.

    Raises:
        TopicNotFound: No broker has the topic, or it has no writable queue.
        BrokerError: A broker refused.
        BrokerUnreachable: The broker group of the key did not answer.
    """
    route = await admin.route(topic)
    queue = queue_of(route, topic, key)
    admin = admin.at(queue.broker_name, await admin.instance.leader(queue.broker_name, topic))
    offsets = (await admin.topic_stats(topic))[queue]
    reader = QueueReader(admin.instance, TOOLS_GROUP)
    names = await admin.topic_groups(topic)
    groups = [
        await _of_group(admin, reader, name, queue, key, offsets.max_offset)
        for name in names[:groups_max]
    ]
    # The groups were asked later, so they may have committed messages that came after the offsets were read.
    end = max([offsets.max_offset, *(each.committed or 0 for each in groups)])

    return KeyExplanation(
        topic,
        key,
        route.is_ordered,
        queue,
        len(route.publish),
        offsets.min_offset,
        end,
        tuple(groups),
        len(names) - len(groups),
    )


def queue_of(route: TopicRoute, topic: str, key: str) -> MessageQueue:
    """Return the queue to which a client that hashes keys sends a key.

    Raises:
        TopicNotFound: The topic has no writable queue, so its keys have no queue.
    """
    if not route.publish:
        raise TopicNotFound(f"the topic {topic} has no writable queue", topic=topic)
    return by_hash(route.publish, Message(topic=topic, body=b"?", key=key), key)


async def _of_group(
    admin: AdminClient,
    reader: QueueReader,
    group: str,
    queue: MessageQueue,
    key: str,
    end: int,
) -> GroupAndKey:
    progress = (await admin.progress(group, queue.topic)).get(queue)
    committed = None if progress is None else progress.consumer_offset
    table = await unless_foreign(admin.lanes(group, queue.topic, key), LaneTable())
    if table.concurrency == BY_KEY and table.lane_key_property != SHARDING_KEY:
        name = table.lane_key_property
        return GroupAndKey(group, None, committed, None, None, None, True, lane_property=name)
    if table.concurrency == BY_KEY:
        return await _of_lane(reader, group, table, queue, key, committed, end)
    lock = (await unless_foreign(admin.locks(group), {})).get(queue)
    parked = [
        each
        for each in await unless_foreign(admin.parked_keys(group), [])
        if each.queue == queue and each.key == key
    ]
    following = None if committed is None else await _next_of(reader, queue, key, committed, end)
    ahead = None if following is None or committed is None else following - committed

    return GroupAndKey(
        group,
        lock,
        committed,
        following,
        ahead,
        parked[0] if parked else None,
        begin=committed,
    )


async def _of_lane(
    reader: QueueReader,
    group: str,
    table: LaneTable,
    queue: MessageQueue,
    key: str,
    committed: int | None,
    end: int,
) -> GroupAndKey:
    """Return the lane of a key in a group by key, or the result of the search for its next message."""
    place = (queue.broker_name, queue.queue_id)
    for lane in table.lanes:
        if (lane.broker_name, lane.queue_id) == place and lane.offset >= 0:
            return GroupAndKey(group, None, committed, lane.offset, 0, None, True, lane)
    scanned = [row.scanned for row in table.queues if (row.broker_name, row.queue_id) == place]
    # No message of the key is pending: all scanned messages of it are complete.
    begin = scanned[0] if scanned else committed
    following = None if begin is None else await _next_of(reader, queue, key, begin, end)
    ahead = None if following is None or begin is None else following - begin

    return GroupAndKey(group, None, committed, following, ahead, None, by_key=True, begin=begin)


async def _next_of(
    reader: QueueReader, queue: MessageQueue, key: str, begin: int, end: int
) -> int | None:
    """Return the offset of the key's next message from *begin* on, among the first READ_MAX messages there."""
    async for message in reader.messages(queue, begin, min(end, begin + READ_MAX)):
        if message.key == key:
            return message.queue_offset
    return None
