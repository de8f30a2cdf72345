"""
Which messages a pull wants: its own subscription, or the one its group has registered.

The rules are RocketMQ's (PullMessageProcessor): a header subscription counts when bit 0x4 is set;
else the group's must be known (24), not older than the client's (25), and by tags, for this broker
does not evaluate SQL92 yet (1).
"""

from functools import lru_cache
from typing import Final

from orderlymq_broker.processors.context import Context, RequestRefused
from orderlymq_broker.processors.reading import Matches
from orderlymq_broker.state.records import GroupSet, Subscription
from orderlymq_protocol.clientbodies import EXPRESSION_SQL92, EXPRESSION_TAG
from orderlymq_protocol.codes import ResponseCode
from orderlymq_protocol.pullheader import PullMessageHeader
from orderlymq_protocol.sysflag import PULL_SUBSCRIPTION
from orderlymq_protocol.tags import TagExpressionError, TagFilter

SQL_REFUSED: Final = "The broker does not support consumer to filter message by SQL92"
_FAQ: Final = "start the consumer, or let it send its next heartbeat"
_CACHE_SIZE: Final = 4096


def choose_filter(context: Context, header: PullMessageHeader, config: GroupSet) -> Matches | None:
    """Return what decides about each message, None when all are wanted.

    Raises:
        RequestRefused: the subscription is missing (24), outdated (25), wrong (23) or SQL92 (1).
    """
    if header.sys_flag & PULL_SUBSCRIPTION:
        expression_type = header.expression_type or EXPRESSION_TAG
        if expression_type != EXPRESSION_TAG:
            raise _refuse_type(expression_type)
        try:
            return _matches_expression(header.subscription)
        except TagExpressionError as error:
            raise RequestRefused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                f"parse the consumer's subscription failed: {error}",
            ) from error
    wish = _registered(context, header, config)
    if wish.expression_type != EXPRESSION_TAG:
        raise _refuse_type(wish.expression_type)

    return _matches_codes(wish.codes)


def _registered(context: Context, header: PullMessageHeader, config: GroupSet) -> Subscription:
    members = context.state.members
    group = header.consumer_group
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
    wish = members.subscriptions(group).get(header.topic)
    if wish is None:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_EXIST,
            f"the consumer's subscription not exist: {group} does not subscribe to {header.topic}; "
            f"{_FAQ}",
        )
    if wish.version < header.sub_version:
        raise RequestRefused(
            ResponseCode.SUBSCRIPTION_NOT_LATEST,
            f"the consumer's subscription not latest: {group}, {header.topic}",
        )

    return wish


def _refuse_type(expression_type: str) -> RequestRefused:
    if expression_type == EXPRESSION_SQL92:
        return RequestRefused(ResponseCode.SYSTEM_ERROR, SQL_REFUSED)

    return RequestRefused(
        ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        f"parse the consumer's subscription failed: expression type {expression_type!r} is unknown",
    )


@lru_cache(maxsize=_CACHE_SIZE)
def _matches_expression(expression: str | None) -> Matches | None:
    parsed = TagFilter.parse(expression)

    return None if parsed.matches_all else parsed.codes.__contains__


@lru_cache(maxsize=_CACHE_SIZE)
def _matches_codes(codes: tuple[int, ...]) -> Matches | None:
    return frozenset(codes).__contains__ if codes else None
