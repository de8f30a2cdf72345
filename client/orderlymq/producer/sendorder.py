"""
The order of one producer's sends: which sends wait for which others.

Rules: sends of one key, or to one queue, by `send_nowait` leave one after the other (`sendqueue`). Lingering
sends leave in batches of their topic (`linger`). An awaited send enters neither, but waits for the earlier sends
of its key or queue.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.routes import TopicRoute
from orderlymq.durations import Duration, seconds
from orderlymq.errors import SettingError
from orderlymq.message import Message, SendResult
from orderlymq.producer.delivery import Delivery
from orderlymq.producer.linger import Linger
from orderlymq.producer.sendoutcome import heard
from orderlymq.producer.sendqueue import Send, SendQueue, SendQueueKey
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue

# A longer linger time is surely a mistake.
_LINGER_MAX_S: Final = 60

SendTogether: TypeAlias = Callable[
    [list[Message], TopicRoute, MessageQueue | None, float, int], Awaitable[SendResult]
]


class SendOrder:
    """The sends of one producer that wait for earlier ones.

    Args:
        linger: how long a send may wait for others to the same topic; 0 for not at all.
        send_together: sends messages by a route to a queue, until a time on the monotonic clock, with
            a number of retries.

    Attributes:
        lingers: whether sends wait for others to the same topic.
    """

    def __init__(
        self,
        instance: ClientInstance,
        settings: ProducerSettings,
        delivery: Delivery,
        linger: Duration,
        send_together: SendTogether,
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._delivery = delivery
        self._linger_s = seconds(linger)
        if not 0 <= self._linger_s <= _LINGER_MAX_S:
            raise SettingError(
                f"linger is {self._linger_s} seconds; it must be in [0, {_LINGER_MAX_S}]"
            )
        self.lingers = bool(self._linger_s)
        self._send_together = send_together
        self._send_queues: dict[SendQueueKey, SendQueue] = {}
        self._lingers: dict[str, Linger] = {}

    def linger(
        self, message: Message, queue: MessageQueue | int | None, timeout: Duration | None
    ) -> "asyncio.Future[SendResult]":
        """Send a message together with others to its topic."""
        topic, queue, _ = self._key(message, queue)
        return self._linger(topic).enter(message, queue, timeout)

    def enter(
        self, message: Message, queue: MessageQueue | int | None, send: Send
    ) -> "asyncio.Future[SendResult]":
        """Send behind every earlier send of the same key or queue."""
        name = self._key(message, queue)
        waiting = self._send_queues.get(name)
        if waiting is None:
            waiting = self._send_queues[name] = SendQueue(lambda: self._send_queues.pop(name, None))
        return waiting.enter([message], send)

    async def in_turn(
        self,
        messages: Sequence[Message],
        leading: Message,
        queue: MessageQueue | int | None,
        argument: object,
        send: Send,
    ) -> SendResult:
        """Send behind the unfinished sends by `send_nowait` of the leading message's key, or of the queue."""
        name = self._key(leading, queue, argument)
        waiting = self._send_queues.get(name)
        if waiting is not None:
            return await heard(messages, waiting.enter(messages, send))
        linger = self._lingers.get(name[0])
        order = name[2] if queue is None else name[1]
        if linger is not None and order is not None:
            await linger.behind(order)
        return await send()

    def _key(
        self, message: Message, queue: MessageQueue | int | None, argument: object = None
    ) -> SendQueueKey:
        """Return the order that a send belongs to: topic and queue by their whole names, and the key.

        If there is no key, the argument of a selector stands for it.
        """
        key = None if queue is not None else message.stored_key
        if key is None and isinstance(argument, str | int):
            key = str(argument)
        if isinstance(queue, MessageQueue):
            queue = self._instance.whole_queue(queue)
        return self._instance.whole(message.topic), queue, key

    def _linger(self, topic: str) -> Linger:
        """Return the sends that wait for each other on a topic, given by its whole name."""
        found = self._lingers.get(topic)
        if found is None:

            async def send(
                messages: list[Message],
                chosen: MessageQueue | None,
                route: TopicRoute,
                deadline_s: float,
            ) -> SendResult:
                retries = 0 if chosen else self._settings.retry_times_when_send_async_failed
                return await self._send_together(messages, route, chosen, deadline_s, retries)

            found = self._lingers[topic] = Linger(
                self._linger_s,
                self._settings.max_message_size_bytes,
                patience_s=seconds(self._settings.queue_change_patience),
                deadline=self._delivery.deadline,
                choose=lambda route, message, queue: self._delivery.choose(
                    route, message, queue, None, None
                ),
                send=send,
                through_changes=lambda once: self._delivery.through_changes(
                    topic, lambda route, _: once(route), None, patience_s=math.inf
                ),
                ended=lambda: self._lingers.pop(topic, None),
            )
        return found
