"""Checks that refuse a read, by queue or by lane: of the broker, the group and the topic."""

from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.state.records import GroupSet
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.body.config import PERM_READ
from orderlymq_protocol.codes import ResponseCode


def check_broker(context: Context) -> None:
    """Refuse to read from a broker that is write-only.

    Raises:
        RequestRefused: the broker may not be read (16).
    """
    settings = context.settings
    if not settings.permission & PERM_READ:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the broker[{settings.group}] pulling message is forbidden: "
            f"brokerPermission is {settings.permission}; an administrator can set it to 6",
        )


def readable_topic(context: Context, name: str, config: GroupSet) -> Topic:
    """Return a topic that a group may read.

    Raises:
        RequestRefused: the group may not consume (16), the topic does not exist (17), or it may not be read (16).
    """
    if not config.consume_enable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"subscription group no permission, {config.name}: consuming is disabled",
        )
    topic = context.state.topics.by_name.get(name)
    if topic is None:
        raise RequestRefused(
            ResponseCode.TOPIC_NOT_EXIST, f"topic[{name}] not exist, apply first please!"
        )
    if not topic.readable:
        raise RequestRefused(
            ResponseCode.NO_PERMISSION, f"the topic[{name}] pulling message is forbidden"
        )

    return topic
