"""
Delivery of sends to queues: one fixed queue until the time is over, or any queue of the round robin.

Rules: a send with a fixed queue is retried on that queue, as the same command, until it is stored, finally refused or
out of time. Any other send may go to another broker. At each broker all its tries go to one queue, because in another
queue it would be another message. If there is no other broker, the send waits for a leader as long as no try can have
stored it. `sendoutcome` keeps what is known about the tries.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.routes import TopicRoute
from orderlymq.connection.wire import is_stored
from orderlymq.durations import Duration, seconds
from orderlymq.errors import NameServersUnreachable, SendUnknown, SettingError, TopicNotFound
from orderlymq.message import Message, SendResult, SendStatus
from orderlymq.producer.queuechanges import through_changes
from orderlymq.producer.requests import read_send_result
from orderlymq.producer.selectors import RoundRobin, Selector, by_hash, by_selector, pick
from orderlymq.producer.sendoutcome import Attempts, check_choice
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.client import RemotingError

_RETRY_FIRST_S: Final = 0.01
# A try with less time than this proves nothing: it would hide why the others failed, or make a refusal unknown.
_TRY_MIN_S: Final = 0.01
_RETRY_MAX_S: Final = 0.05  # a new leader is found at most this late

Build: TypeAlias = Callable[[MessageQueue], RemotingCommand]
T = TypeVar("T")


class Delivery:
    """Sends the commands of one producer to brokers."""

    def __init__(self, instance: ClientInstance, settings: ProducerSettings) -> None:
        self._instance = instance
        self._settings = settings
        self._round_robin: dict[str, RoundRobin] = {}

    async def through_changes(
        self,
        topic: str,
        send: Callable[[TopicRoute, float], Awaitable[T]],
        timeout: Duration | None,
        patience_s: float | None = None,
    ) -> T:
        """Send by the current route, and again while the topic's queues change; raises as `queuechanges`.

        *send* gets the route and its deadline on the monotonic clock. A *timeout* covers everything together. Without
        one, each route and each send has the usual time, and a change has *patience_s*, or the time in the settings.
        """
        end_s = None if timeout is None else self.deadline(timeout)
        whole = self._instance.whole(topic)

        def deadline_s() -> float:
            return self.deadline(None) if end_s is None else end_s

        async def once() -> T:
            route = await self.route_by(whole, deadline_s())
            return await send(route, deadline_s())

        if patience_s is None:
            patience_s = seconds(self._settings.queue_change_patience)
        return await through_changes(
            self._instance, whole, once, patience_s=patience_s, end_s=end_s
        )

    async def send_by(
        self,
        route: TopicRoute,
        chosen: MessageQueue | None,
        build: Build,
        message_id: str,
        deadline_s: float,
        retries: int,
    ) -> SendResult:
        """Send to the chosen queue, or to any queue if it is None, until *deadline_s* on the monotonic clock."""
        attempts = Attempts(deadline_s, route.publish[0].topic)
        if chosen is not None:
            return await self._send_to(chosen, build, message_id, attempts)
        return await self._send_anywhere(route, build, message_id, attempts, retries)

    async def _send_to(
        self, queue: MessageQueue, build: Build, message_id: str, attempts: Attempts
    ) -> SendResult:
        """Send to exactly this queue until the message is stored, finally refused, or out of time."""
        if self._settings.retry_another_broker_when_not_store_ok:
            raise SettingError(
                "retry_another_broker_when_not_store_ok cannot be used with key, selector or queue: "
                "another broker means another queue, which breaks the order"
            )
        # All tries send one command with the same born time and key, so that the broker recognises a repeat.
        command = build(queue)
        delay_s = _RETRY_FIRST_S
        while True:
            answer = await self.attempt(queue, command, attempts)
            if answer is not None and is_stored(answer.code):
                return read_send_result(answer, message_id, queue)
            attempts.raise_if_final()
            remaining_s = attempts.remaining_s(time.monotonic())
            if remaining_s <= delay_s:
                raise attempts.error()
            await asyncio.sleep(delay_s)
            delay_s = min(_RETRY_MAX_S, delay_s * 2)

    async def _send_anywhere(
        self, route: TopicRoute, build: Build, message_id: str, attempts: Attempts, retries: int
    ) -> SendResult:
        """Send to a queue of the round robin; after a failure to another broker, or else to the same queue."""
        topic = route.publish[0].topic
        queue = self.spread(route, topic)
        tried = {queue.broker_name: queue}
        left = retries
        delay_s = _RETRY_FIRST_S
        while True:
            answer = await self.attempt(queue, build(queue), attempts)
            if answer is not None and is_stored(answer.code):
                result = read_send_result(answer, message_id, queue)
                if not self._settings.retry_another_broker_when_not_store_ok:
                    return result
                return await self._send_elsewhere(
                    route, build, result, attempts, tried=tried, left=left
                )
            attempts.raise_if_final(plain=True)
            failed = queue.broker_name
            queue = self.spread(route, topic, {failed})
            queue = tried.setdefault(queue.broker_name, queue)
            stays = queue.broker_name == failed
            # A broker group without a leader would use up all tries within milliseconds.
            if not (stays and attempts.is_early and retries):
                left -= 1
            remaining_s = attempts.remaining_s(time.monotonic())
            if left < 0 or remaining_s <= (delay_s if stays else 0):
                raise attempts.error()
            if stays:
                await asyncio.sleep(delay_s)
                delay_s = min(_RETRY_MAX_S, delay_s * 2)

    async def _send_elsewhere(
        self,
        route: TopicRoute,
        build: Build,
        result: SendResult,
        attempts: Attempts,
        *,
        tried: dict[str, MessageQueue],
        left: int,
    ) -> SendResult:
        """Send to other brokers while the status is not OK. The message is stored even if these tries fail."""
        asked = {result.queue.broker_name}
        while result.status is not SendStatus.OK and left > 0:
            queue = self.spread(route, result.queue.topic, asked)
            if queue.broker_name in asked:
                break
            queue = tried.setdefault(queue.broker_name, queue)
            asked.add(queue.broker_name)
            answer = await self.attempt(queue, build(queue), attempts)
            if answer is not None and is_stored(answer.code):
                with suppress(SendUnknown):
                    result = read_send_result(answer, result.message_id, queue)
            left -= 1
        return result

    async def attempt(
        self, queue: MessageQueue, command: RemotingCommand, attempts: Attempts
    ) -> RemotingCommand | None:
        """Make one try if there is time for it; failures are noted in *attempts*."""
        remaining_s = attempts.remaining_s(time.monotonic())
        if attempts.tries and remaining_s < _TRY_MIN_S:
            return None
        address = await self._instance.address(queue.broker_name, queue.topic, within_s=remaining_s)
        if address is None:
            attempts.note_no_address(queue.broker_name)
            return None
        remaining_s = attempts.remaining_s(time.monotonic())
        if remaining_s <= 0:
            return None
        try:
            answer = await self._instance.invoke(address, command, remaining_s)
        except RemotingError as error:
            attempts.note_failure(address, error)
            return None
        if not is_stored(answer.code):
            attempts.note_refusal(address, answer)
        return answer

    # -- choosing

    def choose(
        self,
        route: TopicRoute,
        message: Message,
        queue: MessageQueue | int | None,
        selector: Selector | None,
        argument: object,
    ) -> MessageQueue | None:
        """Return the one queue that the arguments ask for; None if any queue will do."""
        check_choice(queue, selector, argument)
        queues = route.publish
        if queue is not None:
            number = queue if isinstance(queue, int) else self._instance.whole_queue(queue)
            return pick(number, queues, route.publish[0].topic)
        if selector is not None:
            wanted = message.key if argument is None else argument
            return by_selector(selector, queues, message, wanted)
        if message.stored_key is not None:
            return by_hash(queues, message, message.stored_key)
        return None

    def spread(self, route: TopicRoute, topic: str, avoid: Collection[str] = ()) -> MessageQueue:
        """Return the next queue of the round robin; prefer brokers that are not in *avoid*."""
        turn = self._round_robin.get(topic)
        if turn is None:
            turn = self._round_robin[topic] = RoundRobin()
        reachable = [
            queue
            for queue in route.publish
            if self._instance.routes.address(queue.broker_name) is not None
        ]
        return turn.select(reachable or route.publish, avoid)

    async def route(self, topic: str) -> TopicRoute:
        """Return the route of a topic that a user names; raises as `route_of`."""
        return await self.route_of(self._instance.whole(topic))

    async def route_of(self, topic: str) -> TopicRoute:
        """Return the route of a topic, given by its whole name.

        Raises:
            TopicNotFound: No broker has it, or it has no queue to write to.
            NameServersUnreachable: No name server answers.
        """
        route = await self._instance.route_or_template(
            topic, self._settings.create_topic_key, self._settings.default_topic_queue_nums
        )
        if not route.publish:
            raise TopicNotFound(f"the topic {topic} has no writable queue")
        return route

    async def route_by(self, topic: str, deadline_s: float) -> TopicRoute:
        """Return the route of a topic, given by its whole name, before *deadline_s* on the monotonic clock.

        Raises:
            TopicNotFound, NameServersUnreachable: As `route_of`; the latter also when the time is over.
        """
        within_s = max(0.0, deadline_s - time.monotonic())
        try:
            async with asyncio.timeout(within_s):
                return await self.route_of(topic)
        except TimeoutError:
            raise NameServersUnreachable(
                f"no name server answered within {within_s:.3g} s with the route of {topic}"
            ) from None

    def deadline(self, timeout: Duration | None) -> float:
        """Return the deadline of a send that begins now, on the monotonic clock.

        Raises:
            SettingError: The time-out is not positive.
        """
        wanted_s = seconds(self._settings.send_message_timeout if timeout is None else timeout)
        if wanted_s <= 0:
            raise SettingError(f"timeout is {wanted_s} seconds; it must be greater than 0")
        return time.monotonic() + wanted_s
