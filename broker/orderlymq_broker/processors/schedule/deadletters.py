"""
Where a message becomes a dead letter: when a consumer group has tried it often enough.

The rules are RocketMQ's: a message that is handed back (36, ``retries.py``), or that a client sends to the retry
topic itself (``send/sends.py``), goes to the group's dead-letter topic instead when its tries are used up. A send
asks the group's ``onDeadLetter`` first (``groups/parkedkeys.py``); a message that is handed back does not.
"""

from typing import Final

from orderlymq_broker.core.requestcontext import Context, CreateFirst, RequestRefused
from orderlymq_broker.processors.groups.fence import refuse_by_key
from orderlymq_broker.processors.groups.groupcreation import check_own_topic, find_group
from orderlymq_broker.processors.groups.parkedkeys import check_hand_over
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.names import RETRY_PREFIX, dlq_topic

# Below this version a client's own maximum of deliveries is not to be trusted (MQVersion V3_4_9).
VERSION_WITH_MAX_RECONSUME: Final = 121


def tries_max(config: GroupSet, asked: int | None, version: int) -> int:
    """Return after how many tries a message is a dead letter; *asked* is what its client says."""
    if asked is not None and version >= VERSION_WITH_MAX_RECONSUME:
        return asked

    return config.retry_max_times


def check_retry(context: Context, retry: Topic) -> None:
    """Refuse a retry that nobody of the group would get.

    Raises:
        RequestRefused: the group consumes by key (16), or may do so before the retry is stored (1).
    """
    group = retry.name[len(RETRY_PREFIX) :]
    refuse_by_key(context.state.groups.get(group))
    if context.view.changing[group]:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR, f"group[{group}] is being changed; send it again"
        )


def target_topic(context: Context, name: str, queues: int = 1) -> Topic:
    """Return a retry or dead-letter topic.

    Raises:
        RequestRefused: its name is too long (1).
        CreateFirst: it does not exist yet.
    """
    check_own_topic(name)
    topic = context.state.topics.get(name)
    if topic is None:
        raise CreateFirst(TopicSet(name, queues, queues, only_if_absent=True))

    return topic


def target_of_send(
    context: Context, header: SendMessageHeader, retry: Topic, said: dict[str, str], version: int
) -> Topic:
    """Return where a message goes that is sent to a retry topic: there, or to the dead letters."""
    group = retry.name[len(RETRY_PREFIX) :]
    config = find_group(context, group)
    if header.reconsume_times < tries_max(config, header.max_reconsume_times, version):
        return retry
    check_hand_over(context, group, said)

    return target_topic(context, dlq_topic(group))
