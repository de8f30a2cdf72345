"""
Decides when a message becomes a dead letter: when a consumer group has tried it often enough.

The rules are RocketMQ's. A message is sent back (36, ``retries.py``), or a client sends it to the retry topic itself
(``send/sends.py``). When its tries are used up, it goes to the group's dead-letter topic instead. A send asks the
group's ``onDeadLetter`` first (``groups/parkedkeys.py``); a send-back does not. Java's client removes the count of
tries from its message with the first try of such a send, so further tries lack it. Therefore a message without it
from an ordered group is always a dead letter; for others, the delay shows the count.
"""

from typing import Final

from orderlymq_broker.core.messagedraft import Properties
from orderlymq_broker.core.requestcontext import Context, CreateFirst
from orderlymq_broker.core.responses import check_unchanging
from orderlymq_broker.processors.groups.fence import refuse_by_key
from orderlymq_broker.processors.groups.groupcreation import check_own_topic, find_group
from orderlymq_broker.processors.groups.parkedkeys import check_hand_over
from orderlymq_broker.processors.schedule.delays import delay_level
from orderlymq_broker.state.records import GroupSet, TopicSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.header.send import SendMessageHeader
from orderlymq_protocol.message.properties import RECONSUME_TIME, RETRY_TOPIC
from orderlymq_protocol.names import RETRY_PREFIX, dlq_topic

# Below this version, a client's own maximum of deliveries is not reliable (MQVersion V3_4_9).
VERSION_WITH_MAX_RECONSUME: Final = 121
# Java's delay level of a letter and of a retry, less the tries that the first try of its send counts.
_LETTER_LEVEL: Final = 3
_RETRY_LEVEL: Final = 2


def tries_max(config: GroupSet, asked: int | None, version: int) -> int:
    """Return after how many tries a message is a dead letter; *asked* is its client's maximum."""
    if asked is not None and version >= VERSION_WITH_MAX_RECONSUME:
        return asked

    return config.retry_max_times


def check_failed(context: Context, group: str) -> None:
    """Refuse the copy of a failed message, a retry or a dead letter, if lanes of its group still owe the message.

    Raises:
        RequestRefused: the group consumes by key (16), or may do so before the copy is stored (1).
    """
    refuse_by_key(context.state.groups.get(group))
    check_unchanging(context, "group", [group])


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
    context: Context,
    header: SendMessageHeader,
    retry: Topic,
    properties: Properties,
    version: int,
) -> Topic:
    """Return the topic for a message sent to a retry topic: that topic, or the dead-letter topic.

    Set the count of tries in the header if a second try lacks it; without it, a repeat would be another message.
    """
    group, said = retry.name[len(RETRY_PREFIX) :], properties.by_name
    config = find_group(context, group)
    is_letter = False
    if _lacks_tries(header, said):
        is_letter = context.state.is_ordered(group)
        added = _LETTER_LEVEL if is_letter else _RETRY_LEVEL
        header.reconsume_times = max(0, delay_level(properties) - added)
    if not is_letter and header.reconsume_times < tries_max(
        config, header.max_reconsume_times, version
    ):
        return retry
    check_hand_over(context, group, said)
    name = dlq_topic(group)
    if name not in context.state.topics.by_name:
        refuse_by_key(config)  # before it is created

    return target_topic(context, name)


def _lacks_tries(header: SendMessageHeader, said: dict[str, str]) -> bool:
    """Return whether a failed message lacks both the count of its tries and their maximum; a first try has both."""
    return (
        not header.reconsume_times
        and header.max_reconsume_times is None
        and RETRY_TOPIC in said
        and RECONSUME_TIME not in said
    )
