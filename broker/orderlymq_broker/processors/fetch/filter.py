"""
The filter of a pull: its own subscription, or the one that its group has registered.

The rules are RocketMQ's (PullMessageProcessor). A subscription in the header counts if bit 0x4 is set. Otherwise the
group's subscription must be known (24) and not older than the client's (25). Tags are matched by their codes, which
are in the queue; SQL92 is matched against the properties of the stored message (``sql.py``). Class filters are
refused, because RocketMQ itself has dropped them.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from sys import getsizeof
from typing import Final, TypeAlias

from orderlymq_broker.core.requestcontext import Context, RequestRefused
from orderlymq_broker.processors.fetch.read import Matches, PropertyTest
from orderlymq_broker.processors.fetch.sql import SqlError, compile_sql
from orderlymq_broker.state.records import GroupSet, Subscription
from orderlymq_protocol.body.clients import EXPRESSION_TAG
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.header.pull import PullMessageHeader
from orderlymq_protocol.message.sysflag import PULL_CLASS_FILTER, PULL_SUBSCRIPTION
from orderlymq_protocol.message.tags import TagExpressionError, TagFilter

SQL_REFUSED: Final = "The broker does not support consumer to filter message by SQL92"
CLASS_FILTER_REFUSED: Final = (
    "class filters are not served, because RocketMQ removed them in 4.3.0; subscribe by tags or "
    "SQL92"
)
_FAQ: Final = "start the consumer, or let it send its next heartbeat"
# The bytes of filters kept for the next pulls. Common ones take a few hundred bytes each, the largest of SQL92 0.8 MB.
KEPT_BYTES_MAX: Final = 32 << 20
# Measured: the bytes that a filter keeps for each comparison or code in addition to its text, and those of an entry.
_COMPARISON_BYTES: Final = 1_700
_CODE_BYTES: Final = 32
_ENTRY_BYTES: Final = 300
# The most tags of a subscription. Programs name only a few; each takes a few hundred bytes.
TAGS_MAX: Final = 1_024
TAGS_SIZE_MAX: Final = 16_384

# Kind and expression, or the codes of tags.
_Key: TypeAlias = tuple[str, str] | tuple[int, ...]


def choose_filter(context: Context, header: PullMessageHeader, config: GroupSet) -> Matches | None:
    """Return the filter that decides about each message, or None if all are wanted.

    Raises:
        RequestRefused: the subscription is missing (24), outdated (25), wrong (23), or by SQL92 although
            that is switched off (1).
    """
    if header.sys_flag & PULL_CLASS_FILTER:
        raise RequestRefused(ResponseCode.SUBSCRIPTION_PARSE_FAILED, CLASS_FILTER_REFUSED)
    if header.sys_flag & PULL_SUBSCRIPTION:
        return _matches(
            context, header.expression_type or EXPRESSION_TAG, header.subscription, None
        )

    return registered_filter(
        context, header.consumer_group, header.topic, header.sub_version, config
    )


def registered_filter(
    context: Context, group: str, topic: str, version: int, config: GroupSet
) -> Matches | None:
    """Return the filter of a group for a topic, for a member whose subscription has this version.

    Raises:
        RequestRefused: as in `choose_filter`.
    """
    subscription = _registered(context, group, topic, version, config)

    return _matches(
        context, subscription.expression_type, subscription.expression, subscription.codes
    )


def check_tags(expression: str, count: int = 0) -> None:
    """Refuse a subscription with too many tags in its expression, or in lists with *count* tags.

    Raises:
        RequestRefused: there are too many (23).
    """
    count = max(count, expression.count("||") + 1)
    if count > TAGS_MAX or len(expression) > TAGS_SIZE_MAX:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"the subscription has {count} tags and its expression has {len(expression)} "
            f"characters; the limits are {TAGS_MAX} and {TAGS_SIZE_MAX}: subscribe to all tags, "
            "or give related messages one common tag",
        )


def check_expression(context: Context, expression_type: str, expression: str | None) -> None:
    """Refuse a subscription that cannot be applied to pulls.

    Raises:
        RequestRefused: it is wrong (23), or by SQL92 although that is switched off (1).
    """
    _matches(context, expression_type, expression, None)


def _matches(
    context: Context, kind: str, expression: str | None, codes: tuple[int, ...] | None
) -> Matches | None:
    try:
        match kind:
            case "TAG":
                if codes:
                    return _kept.get(codes, partial(_of_codes, codes))
                check_tags(expression or "")
                return _kept.get((kind, expression or ""), partial(_of_tags, expression))
            case "SQL92" if context.settings.enable_property_filter:
                return _kept.get((kind, expression or ""), partial(_of_sql, expression or ""))
            case "SQL92":
                raise RequestRefused(ResponseCode.SYSTEM_ERROR, SQL_REFUSED)
    except (TagExpressionError, SqlError) as error:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            f"parse the consumer's subscription failed: {error}",
        ) from error
    raise RequestRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"parse the consumer's subscription failed: expression type {kind!r} is unknown",
    )


def _registered(
    context: Context, group: str, topic: str, version: int, config: GroupSet
) -> Subscription:
    members = context.state.members
    if not members.of_group(group):
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's group info not exist: {group}; {_FAQ}",
        )
    if not config.consume_broadcast_enable and members.is_broadcasting(group):
        raise RequestRefused(
            ResponseCode.NO_PERMISSION,
            f"the consumer group[{group}] can not consume by broadcast way",
        )
    subscription = members.subscriptions(group).get(topic)
    if subscription is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: {group} does not subscribe to {topic}; {_FAQ}",
        )
    if subscription.version < version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: {group}, {topic}",
        )

    return subscription


class FilterCache:
    """Filters by their expressions, the most recently used last. Equal expressions share one filter."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Key, tuple[Matches | None, int]] = OrderedDict()
        self.size = 0

    def get(self, key: _Key, make: Callable[[], Matches | None]) -> Matches | None:
        """Return the filter kept under *key*, or the one that *make* returns."""
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found[0]
        matches = make()
        size = _ENTRY_BYTES + getsizeof(key) + sum(map(getsizeof, key)) + memory_of(matches)
        self._kept[key] = matches, size
        self.size += size
        while self.size > KEPT_BYTES_MAX:
            _, (_, gone) = self._kept.popitem(last=False)
            self.size -= gone

        return matches


def memory_of(matches: Matches | None) -> int:
    """Return the approximate bytes of a filter, without its expression."""
    if matches is None:
        return 0
    if isinstance(matches, PropertyTest):
        return matches.cost * _COMPARISON_BYTES
    codes: frozenset[int] = getattr(matches, "__self__", frozenset())

    return getsizeof(codes) + _CODE_BYTES * len(codes)


def _of_tags(expression: str | None) -> Matches | None:
    parsed = TagFilter.parse(expression)

    return None if parsed.matches_all else parsed.codes.__contains__


def _of_sql(expression: str) -> Matches:
    compiled = compile_sql(expression)

    return PropertyTest(compiled.matches, compiled.cost)


def _of_codes(codes: tuple[int, ...]) -> Matches:
    return frozenset(codes).__contains__


_kept: Final = FilterCache()
