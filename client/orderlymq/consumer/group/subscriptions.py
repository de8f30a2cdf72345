"""Checks of consumer groups and subscriptions, before any socket is opened. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orderlymq.errors import SettingError
from orderlymq.settings import check_name, check_text
from orderlymq_protocol.body.catalogue import EXPRESSION_SQL92, EXPRESSION_TAG, SubscriptionData
from orderlymq_protocol.message.tags import TagExpressionError, TagFilter
from orderlymq_protocol.names import check_group_name, check_topic_name


@dataclass(slots=True)
class Subscription:
    """The subscription to one topic."""

    data: SubscriptionData
    tags: TagFilter


def check_group(group: str) -> None:
    """Refuse a name of a consumer group that brokers would refuse.

    Raises:
        SettingError: The name breaks a rule; the text states the rule.
    """
    check_name(check_group_name, group)
    if group == "DEFAULT_CONSUMER":
        raise SettingError("the consumer group DEFAULT_CONSUMER is reserved; choose another name")


def check_ordered(ordered: object) -> None:
    """Refuse an invalid *ordered*, so that nothing consumes by queue where keys were meant, or the other way round.

    Raises:
        SettingError: It is not False, True or "key".
    """
    if ordered not in (False, True, "key"):
        raise SettingError(
            f"ordered is {ordered!r}; it must be False, True for whole queues, or 'key' for key lanes"
        )


def expressions(topics: str | Iterable[str] | Mapping[str, str]) -> Mapping[str, str]:
    """Return the expression of each topic; `*`, which selects all messages, for topics without one.

    Raises:
        SettingError: *topics* has another type.
    """
    named: object = [topics] if isinstance(topics, str) else topics
    if not isinstance(named, Iterable):
        raise SettingError(f"topics is {topics!r}; give a topic, several, or tags by topic")
    return named if isinstance(named, Mapping) else dict.fromkeys(named, "*")


def make_subscription(topic: str, expression: str, kind: str, version_ms: int) -> Subscription:
    """Return the subscription for a tag expression (TAG) or a condition on properties (SQL92).

    Raises:
        SettingError: The topic or the expression is not allowed, or the kind is neither TAG nor SQL92.
    """
    check_name(check_topic_name, topic)
    if not isinstance(expression, str | None):
        raise SettingError(f"the subscription of {topic} is {expression!r}, which is not text")
    check_text(f"the subscription of {topic}", expression or "")
    if kind == EXPRESSION_SQL92:
        # The broker selects the messages; the client does not check them again.
        data = SubscriptionData(
            topic, expression, sub_version=version_ms, expression_type=EXPRESSION_SQL92
        )
        return Subscription(data, TagFilter.parse(None))
    if kind != EXPRESSION_TAG:
        raise SettingError(
            f"the subscription kind {kind!r} is not served; use TAG or SQL92 "
            "(class filters left RocketMQ with 4.3.0)"
        )
    try:
        data = SubscriptionData.of_tags(topic, expression, version_ms)
    except TagExpressionError as error:
        raise SettingError(str(error)) from error
    return Subscription(data, TagFilter.parse(expression))
