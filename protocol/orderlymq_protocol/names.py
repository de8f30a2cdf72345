"""
Names of topics and groups: which are allowed, which belong to the system, and which derive from a group.

Rule: a name that passes the checks here is safe in a key, a path and a label: letters, digits, `%`, `|`, `_`, `-`.
Lengths and the alphabet are RocketMQ's (`TopicValidator`, `Validators`).
"""

import re
from collections.abc import Container
from hashlib import blake2b
from typing import Final

TOPIC_LENGTH_MAX: Final = 127
GROUP_LENGTH_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

# The topic whose configuration an automatically created topic inherits.
AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
TRANS_HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
TRANS_OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"

# The namespace in which name servers keep the queue lists of ordered topics, by topic.
ORDER_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"

# The account of a cluster's own operator, which is in no table of accounts.
OPERATOR_ACCOUNT: Final = "orderlymq-operator"

SYSTEM_TOPICS: Final = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        BENCHMARK_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

# A client that could write to these would make the broker deliver or commit messages that nobody sent.
UNSENDABLE_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        TRANS_HALF_TOPIC,
        TRANS_OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

# Tools that only read use this group. Every broker knows it, and it never holds a lock.
TOOLS_GROUP: Final = "TOOLS_CONSUMER"

SYSTEM_GROUPS: Final = frozenset(
    {
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
    }
)

# Producer group of every client that re-sends messages on behalf of a consumer.
CLIENT_INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"

_ALLOWED: Final = re.compile(r"[%|a-zA-Z0-9_-]+")


class InvalidName(ValueError):  # noqa: N818 - the error says what the thing is, as its users read it
    """The name of a topic or group is not allowed; the text says which rule it breaks."""


def check_topic_name(name: str) -> None:
    """Refuse a topic name that is empty, too long or has characters that are not allowed.

    Raises:
        InvalidName: The name breaks a rule; the text says which.
    """
    _check("topic", name, TOPIC_LENGTH_MAX)


def check_group_name(name: str) -> None:
    """Refuse a group name by the rules of topic names, with the longer limit.

    Raises:
        InvalidName: The name breaks a rule; the text says which.
    """
    _check("group", name, GROUP_LENGTH_MAX)


def retry_topic(group: str) -> str:
    """Return the topic with the messages that a consumer group tries again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic with the messages that a consumer group has given up."""
    return DLQ_PREFIX + group


def redrive_key(letter: tuple[str, str, int], offset: int, *, message_id: str, target: str) -> str:
    """Return the unique key of the message as which a dead letter is redriven; it is the same for every program that redrives.

    With it the brokers' index shows whether the letter was sent. *letter* is its queue: topic, broker, number.
    """
    place = "\x00".join(map(str, (*letter, offset, message_id, target)))
    return blake2b(place.encode(), digest_size=16).hexdigest().upper()


def reply_topic(cluster: str) -> str:
    """Return the topic that carries the answers of request-reply calls in a cluster."""
    return cluster + "_REPLY_TOPIC"


def is_retry_topic(topic: str) -> bool:
    """Return whether *topic* is the retry topic of a consumer group."""
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    """Return whether *topic* is the dead-letter topic of a consumer group."""
    return topic.startswith(DLQ_PREFIX)


def is_system_topic(topic: str) -> bool:
    """Return whether *topic* belongs to the broker. Topics named after clusters and brokers are not included."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_hidden_topic(topic: str, brokers: Container[str]) -> bool:
    """Return whether lists leave a topic out: a system, retry, dead-letter or reply topic, or one named like one of *brokers*."""
    return (
        is_system_topic(topic)
        or is_retry_topic(topic)
        or is_dlq_topic(topic)
        or topic.endswith("_REPLY_TOPIC")
        or topic in brokers
    )


def is_system_group(group: str) -> bool:
    """Return whether *group* belongs to the broker or its tools."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def _check(kind: str, name: object, length_max: int) -> None:
    if not isinstance(name, str | None):
        raise InvalidName(f"the {kind} name is {name!r}, which is not a text")
    if not name:
        raise InvalidName(f"the {kind} name is empty")
    if len(name) > length_max:
        raise InvalidName(f"the {kind} name has {len(name)} characters, the limit is {length_max}")
    if _ALLOWED.fullmatch(name) is None:
        raise InvalidName(
            f"the {kind} name {name!r} has characters outside ^[%|a-zA-Z0-9_-]+$; use only these"
        )
