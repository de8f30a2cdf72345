"""
Calls of each consumer group member to brokers: start offset, members, assigned queues, messages that are handed back.

`brokercalls` adds the requests of a push consumer's core.
"""

import asyncio
import functools
import logging
import random
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.wire import check, is_stored
from orderlymq.consumer.group.offsets import NOT_FOUND, OffsetStore
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.consumer.group.requests import (
    copy_to_retry,
    read_assignment,
    send_back_request,
)
from orderlymq.consumer.group.subscriptions import Subscription
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, parse_consume_timestamp
from orderlymq.errors import BrokerUnreachable, OrderlyMQError, SettingError, TopicNotFound
from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body import fastjson
from orderlymq_protocol.body.catalogue import EXPRESSION_SQL92, CheckClientRequest, ConsumerIdList
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import ConsumerGroupHeader
from orderlymq_protocol.names import is_retry_topic, retry_topic
from orderlymq_runtime.remoting.client import RemotingError
from orderlymq_runtime.wallclock import machine_ms

T = TypeVar("T")

_log = logging.getLogger(__name__)

_START_DEFAULT_BACK_MS: Final = 30 * 60 * 1000  # RocketMQ's consumeTimestamp: half an hour ago
TROUBLE: Final = (RemotingError, OrderlyMQError, ValueError)
RETURN_TIMEOUT_S: Final = 5.0  # for a message that is handed back
_RETRY_LEVEL_BASE: Final = 3  # delay level of the first retry: 10 s

# The strategies that brokers compute if no operator has decided the assignment.
_SERVED_STRATEGIES: Final = ("AVG", "AVG_BY_CIRCLE")


class GroupCalls:
    """The calls of one member of a consumer group."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        settings: ConsumerSettings,
        offsets: OffsetStore,
        subscriptions: dict[str, Subscription],
    ) -> None:
        self._instance = instance
        self._group = group
        self._settings = settings
        self._offsets = offsets
        self._subscriptions = subscriptions
        self._reader = QueueReader(instance, group)

    # -- subscriptions

    async def find_routes(self) -> None:
        """Look up the routes of the subscribed topics; a topic that does not exist yet may be created later."""
        for topic in list(self._subscriptions):  # a program may subscribe during this loop
            try:
                await self._instance.route(topic)
            except TopicNotFound as error:
                if topic != retry_topic(self._group):
                    _log.warning("%s", error)

    async def check_sql(self) -> None:
        """Ask a broker of each topic whether it supports and understands an SQL subscription.

        Raises:
            BrokerError: The broker does not.
            BrokerUnreachable: The broker does not answer.
        """
        for topic, subscription in list(self._subscriptions.items()):
            if subscription.data.expression_type != EXPRESSION_SQL92:
                continue
            client_id = self._instance.client_id
            body = CheckClientRequest(client_id, self._group, subscription.data).to_json()
            for name in self._instance.routes.brokers(topic)[:1]:
                address = await self._instance.address(name, topic)
                if address is not None:
                    await self._instance.call(address, RequestCode.CHECK_CLIENT_CONFIG, {}, body)

    # -- the group

    async def check_by_queue(self, topics: Iterable[str]) -> None:
        """Ask the brokers of the topics whether the consumer group consumes by key, where this member would get nothing.

        A broker is skipped if it does not answer, does not know the question, or does not have the group.

        Raises:
            SettingError: The consumer group consumes by key.
        """
        addresses = sorted(self._instance.routes.addresses(topics))
        found = await asyncio.gather(*map(self._is_by_key, addresses))
        for address, is_by_key in zip(addresses, found, strict=True):
            if is_by_key:
                raise SettingError(
                    f"the group {self._group} at {address} consumes by key (concurrency: Key), but this consumer does "
                    'not: pass ordered="key" (`orderlymq consume`: --by-key). To consume by queue, stop the members and '
                    f"run `orderlymq group set {self._group} --concurrency queue`, or set concurrency: Queue in the "
                    "group's manifest"
                )

    async def _is_by_key(self, address: str) -> bool:
        command = request(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": self._group})
        try:
            answer = check(await self._instance.invoke(address, command), address)
            return SubscriptionGroupConfig.from_json(answer.body).concurrency == BY_KEY
        except TROUBLE as error:
            _log.info("%s does not report the group %s: %s", address, self._group, error)
            return False

    # -- where to begin

    async def start_offset(self, queue: MessageQueue) -> tuple[int, bool]:
        """Return the offset to start at, and whether the consumer group has no committed offset.

        The start is the committed offset, or what `consume_from` says if there is none.

        Raises:
            OrderlyMQError, RemotingError, ValueError: The offset cannot be known now; the queue must not be started.
        """
        offset = await self._offsets.fetch(queue)
        return (await self._first_offset(queue), True) if offset == NOT_FOUND else (offset, False)

    async def _first_offset(self, queue: MessageQueue) -> int:
        where = self._settings.consume_from
        # This consumer group handed these messages back, so it must get them all, wherever it began.
        if where is ConsumeFrom.FIRST or is_retry_topic(queue.topic):
            return 0
        if where is ConsumeFrom.LAST:
            # A queue that still has its first message may be newer than this consumer, which must miss none of its
            # messages.
            is_whole = await self._reader.min_offset(queue) == 0
            return 0 if is_whole else await self._reader.max_offset(queue)
        text = self._settings.consume_timestamp
        when = parse_consume_timestamp(text) if text else machine_ms() - _START_DEFAULT_BACK_MS
        return await self._reader.offset_at(queue, when)

    # -- members

    async def members(self, topic: str) -> list[str] | None:
        """Return the client ids of the consumer group that one of the topic's brokers knows; None if no broker answers."""
        brokers = list(self._instance.routes.brokers(topic))
        random.shuffle(brokers)
        ext = ConsumerGroupHeader(self._group).to_ext()
        command = functools.partial(request, RequestCode.GET_CONSUMER_LIST_BY_GROUP, ext)
        return await self._first_answer(
            brokers,
            command,
            lambda body: list(ConsumerIdList.from_json(body).consumer_id_list),
            "members",
        )

    async def assigned(self, topic: str, strategy: str) -> list[MessageQueue] | None:
        """Return the queues that a broker assigns to this member; None if no broker answers, which changes nothing."""
        body = fastjson.dumps(
            {
                "topic": topic,
                "consumerGroup": self._group,
                "clientId": self._instance.client_id,
                "strategyName": strategy if strategy in _SERVED_STRATEGIES else "AVG",
                "messageModel": "CLUSTERING",
            }
        )
        # Ask in a fixed order: every raft group learns the decision, and the first one learns it first.
        brokers = self._instance.routes.brokers(topic)
        command = functools.partial(request, RequestCode.QUERY_ASSIGNMENT, {}, body)
        return await self._first_answer(brokers, command, read_assignment, "queues")

    async def _first_answer(
        self,
        brokers: Iterable[str],
        command: Callable[[], RemotingCommand],
        read: Callable[[bytes], T],
        what: str,
    ) -> T | None:
        """Ask brokers one after the other until one returns a readable answer; None if none does."""
        for name in brokers:
            address = self._instance.routes.address(name)
            if address is None:
                continue
            try:
                answer = check(await self._instance.invoke(address, command()), address)
                return read(answer.body)
            except (*TROUBLE, KeyError, TypeError) as error:
                _log.info("the %s of %s are unknown: %s", what, self._group, error)
        return None


async def hand_back(
    instance: ClientInstance,
    group: str,
    message: ReceivedMessage,
    *,
    delay_level: int,
    maximum: int,
) -> tuple[bool, str]:
    """Have a message delivered again later; if the broker refuses, send it a copy.

    Return whether the broker took one of them, and the reason if it did not.
    """
    command = send_back_request(message, group, delay_level=delay_level, maximum=maximum)
    try:
        address = await instance.leader(message.queue.broker_name, message.queue.topic)
        check(await instance.invoke(address, command, RETURN_TIMEOUT_S), address)
        return True, ""
    except TROUBLE as error:
        _log.error(
            "sendMessageBack exception, group: %s msg: %s %s",
            *(group, message.message_id, error),
        )
    return await send_copy(
        instance,
        group,
        message,
        times=message.reconsume_times + 1,
        maximum=maximum,
        delay_level=_RETRY_LEVEL_BASE + message.reconsume_times,
    )


async def send_copy(
    instance: ClientInstance,
    group: str,
    message: ReceivedMessage,
    *,
    times: int,
    maximum: int,
    delay_level: int,
    behind: str = "",
) -> tuple[bool, str]:
    """Send the copy that `copy_to_retry` makes; return whether the broker stored it, and the reason if it did not."""
    command = copy_to_retry(
        message,
        group,
        times=times,
        maximum=maximum,
        delay_level=delay_level,
        born_ms=machine_ms(),
        behind=behind,
    )
    try:
        address = await instance.leader(message.queue.broker_name, message.queue.topic)
        answer = await instance.invoke(address, command)
    except (RemotingError, BrokerUnreachable) as error:
        return False, str(error)
    return is_stored(answer.code), f"code {answer.code}: {answer.remark}"
