"""
The consumer group that a request names; with auto-creation, the first pull, lock or commit that names it creates it.

The name of a group may be longer than that of a topic, so the topics of some groups cannot be created:
``check_own_topic``.
"""

from typing import Final

from orderlymq_broker.core.requestcontext import Context, CreateFirst, RequestRefused, check_name
from orderlymq_broker.state.records import GroupSet
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.names import TOPIC_LENGTH_MAX, check_group_name

_MISSING: Final = "subscription group [{}] does not exist; create it first"


def find_group(context: Context, name: str) -> GroupSet:
    """Return an existing group.

    Raises:
        RequestRefused: the group does not exist (26).
    """
    config = context.state.groups.get(name)
    if config is None:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, _MISSING.format(name))
    return config


def known_group(context: Context, name: str) -> GroupSet:
    """Return an existing group; if it does not exist, it may be created before the request is served.

    Raises:
        RequestRefused: it does not exist and is not created.
        CreateFirst: it has to be created first.
    """
    config = context.state.groups.by_name.get(name)
    if config is None:
        raise CreateFirst(missing_group(context, name))
    return config


def missing_group(context: Context, name: str) -> GroupSet:
    """Return the record that creates a group which does not exist.

    Raises:
        RequestRefused: the name is invalid (1), or groups are not created automatically (26).
    """
    check_name(check_group_name, name)
    if not context.settings.auto_create_group:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, _MISSING.format(name))
    return GroupSet(name, only_if_absent=True)


def check_own_topic(topic: str) -> None:
    """Refuse a group's retry or dead-letter topic whose name is too long.

    Java up to 4.9, Go and others read the length of a topic's name from one byte, but a record of such a topic has
    two. They read an empty name, drop the rest of the pull, and commit past it.

    Raises:
        RequestRefused: the name is too long (1).
    """
    if len(topic) > TOPIC_LENGTH_MAX:
        raise RequestRefused(
            ResponseCode.SYSTEM_ERROR,
            f"topic {topic} cannot be created: its name has {len(topic)} characters, but "
            f"{TOPIC_LENGTH_MAX} are allowed; give the consumer group a shorter name",
        )
