"""
Message track: which consumer groups have consumed a message, as RocketMQ's queryMsgById reports it.

Rule: the progress of a group is its committed offset, so an answer is as recent as the last commit.
A group without online members is NOT_ONLINE, as in RocketMQ, and its offset is reported too. The
states are RocketMQ's (org.apache.rocketmq.tools.admin.api.TrackType).
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from orderlymq.admin.client import AdminClient
from orderlymq.errors import BrokerError, OrderlyMQError
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.clients import EXPRESSION_TAG, ConsumerConnection
from orderlymq_protocol.codes import ResponseCode

_ALL: Final = ("", "*")


class TrackType(Enum):
    """The state of a message in a consumer group."""

    CONSUMED = "CONSUMED"
    CONSUMED_BUT_FILTERED = "CONSUMED_BUT_FILTERED"
    PULL = "PULL"
    NOT_CONSUME_YET = "NOT_CONSUME_YET"
    NOT_ONLINE = "NOT_ONLINE"
    CONSUME_BROADCASTING = "CONSUME_BROADCASTING"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, slots=True)
class MessageTrack:
    """The state of one message in one consumer group.

    Attributes:
        offset: the group's committed offset in the message's queue, -1 if it has none.
        why: the error if the state is UNKNOWN, else empty.
    """

    group: str
    state: TrackType
    offset: int = -1
    why: str = ""


async def message_track(admin: AdminClient, message: ReceivedMessage) -> list[MessageTrack]:
    """Return the state of a message in each consumer group that has ever committed an offset in its topic.

    Raises:
        BrokerUnreachable: A broker group has no leader now.
    """
    groups = await admin.topic_groups(message.topic)

    return [await _of_group(admin, group, message) for group in sorted(groups)]


async def _of_group(admin: AdminClient, group: str, message: ReceivedMessage) -> MessageTrack:
    try:
        offset = await _offset(admin, group, message)
        connections = await admin.connections(group)
    except OrderlyMQError as error:
        if isinstance(error, BrokerError) and error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return MessageTrack(group, TrackType.NOT_ONLINE)
        return MessageTrack(group, TrackType.UNKNOWN, why=str(error))
    if not connections:
        return MessageTrack(group, TrackType.NOT_ONLINE, offset)

    return MessageTrack(group, _state(connections[0], message, offset), offset)


async def _offset(admin: AdminClient, group: str, message: ReceivedMessage) -> int:
    """Return the committed offset in the message's queue; -1 if there is none."""
    progress = await admin.progress(group, message.topic)
    for queue, each in progress.items():
        here = (message.queue.broker_name, message.queue.queue_id)
        if (queue.broker_name, queue.queue_id) == here:
            return each.consumer_offset

    return -1


def _state(connection: ConsumerConnection, message: ReceivedMessage, offset: int) -> TrackType:
    if connection.consume_type == "CONSUME_ACTIVELY":
        return TrackType.PULL
    if connection.message_model == "BROADCASTING":
        return TrackType.CONSUME_BROADCASTING
    if offset <= message.queue_offset:
        return TrackType.NOT_CONSUME_YET
    subscription = connection.subscription_table.get(message.topic)
    if subscription is None or subscription.expression_type != EXPRESSION_TAG:
        return TrackType.CONSUMED
    wanted = set(subscription.tags_set)
    if not wanted or subscription.sub_string in _ALL or message.tags in wanted:
        return TrackType.CONSUMED

    return TrackType.CONSUMED_BUT_FILTERED
