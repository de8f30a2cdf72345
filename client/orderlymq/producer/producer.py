"""
The producer: sends that keep the order of a key, and report whether a message is stored.

Rules: a send with a key, a selector or a queue goes to that one queue or fails; it is tried again on the
same queue under the same unique key until its time is over, and a broker recognises the repeat. A plain
send may be tried on other brokers. `SendRefused` only when no try can have been stored, else `SendUnknown`.
Sends of one key by `send_nowait` leave one after the other (`sendqueue`), so the order of calls is the order
in the queue.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Self, TypeAlias

from orderlymq.connection.identity import NameServers, make_unique_keys
from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.routes import TopicRoute
from orderlymq.connection.wire import is_stored
from orderlymq.durations import Duration, seconds
from orderlymq.errors import (
    SendRefused,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.message import Message, ReceivedMessage, SendResult, SendStatus
from orderlymq.producer.commands import SendOptions, batch_request, read_send_result, send_request
from orderlymq.producer.expansion import chosen_from, through_changes
from orderlymq.producer.outcome import (
    Attempts,
    as_message,
    check_batch,
    check_choice,
    check_message,
    leading_message,
)
from orderlymq.producer.recalls import recall_message
from orderlymq.producer.requestreply import DEFAULT_TIMEOUT_S, OpenRequests, Reply, reply_message
from orderlymq.producer.selectors import RoundRobin, Selector, by_hash, by_selector, pick
from orderlymq.producer.sendqueue import SendQueue, SendQueueKey
from orderlymq.producer.tracer import make_tracer
from orderlymq.settings import ClientSettings, ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import InvalidName, check_group_name
from orderlymq_runtime.client import RemotingError

_log = logging.getLogger(__name__)

# RocketMQ's client allows as many unanswered asynchronous requests.
PENDING_MAX: Final = 65_535
_RETRY_FIRST_S: Final = 0.01
_RETRY_MAX_S: Final = 0.05  # a new leader is found this late at most

Build: TypeAlias = Callable[[MessageQueue], RemotingCommand]


class Producer:
    """Sends messages.

    Life cycle: `start`, any number of sends, `close`, which waits for what is pending; or `async with`.

    Args:
        group: names the application; shown in listings.
        name_servers: "host:port;host:port"; else the environment says (ORDERLYMQ_NAME_SERVER,
            NAMESRV_ADDR), else it is this machine.
        settings: of the producer.
        client_settings: of the connection.
        instance: share connections with other producers and consumers.
        trace: tell the trace topic (or the topic named here) what becomes of each send.
    """

    def __init__(
        self,
        group: str = "orderlymq-producer",
        name_servers: NameServers = None,
        *,
        settings: ProducerSettings | None = None,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        trace: bool | str = False,
    ) -> None:
        try:
            check_group_name(group)
        except InvalidName as error:
            raise SettingError(str(error)) from error
        if group == "DEFAULT_PRODUCER":
            raise SettingError("the producer group DEFAULT_PRODUCER is reserved; choose another")
        self.settings = settings or ProducerSettings()
        self._instance = instance or ClientInstance(name_servers, client_settings)
        self.group = self._instance.whole(group)
        self._options = SendOptions(
            group=self.group,
            create_topic=self.settings.create_topic_key,
            topic_queues=self.settings.default_topic_queue_nums,
            compress_over_bytes=self.settings.compress_message_body_over_bytes,
            compress_level=self.settings.compress_level,
        )
        self._unique_keys = make_unique_keys(self._instance.ip)
        self._round_robin: dict[str, RoundRobin] = {}
        self._send_queues: dict[SendQueueKey, SendQueue] = {}
        self._pending: set[asyncio.Future[SendResult]] = set()
        self._requests: OpenRequests | None = None
        self._tracer = make_tracer(trace, self._instance, f"{group}-PRODUCE", group)
        self._state = "CREATE_JUST"

    @property
    def client_id(self) -> str:
        """Return the id brokers know this client by."""
        return self._instance.client_id

    async def start(self) -> None:
        """Open for sends.

        Raises:
            StateError: It was started before.
        """
        if self._state != "CREATE_JUST":
            raise StateError(
                f"The producer service state not OK, maybe started once, {self._state}"
            )
        self._state = "RUNNING"
        await self._instance.start()
        if self._tracer is not None:
            await self._tracer.start()
        self._instance.add_producer(self.group)
        _log.info("the producer [%s] start OK. clientId=%s", self.group, self.client_id)

    async def close(self) -> None:
        """Wait for every pending send, then end; closing again does nothing."""
        if self._state == "CREATE_JUST":
            self._state = "SHUTDOWN_ALREADY"
            return
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        # Each of them ends within its own time-out.
        await asyncio.gather(*self._pending, return_exceptions=True)
        if self._requests is not None:
            self._requests.close()
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.remove_producer(self.group)
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- sends

    async def send(  # noqa: PLR0913 - what a user may say about a message
        self,
        topic: str | Message,
        body: bytes | str = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        selector: Selector | None = None,
        argument: object = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> SendResult:
        """Send one message and wait until it is stored.

        Args:
            topic: where to, or a whole `Message`, which says the rest itself, but for *key*.
            body: bytes, or text that becomes UTF-8.
            tags: one tag.
            keys: index keys for queries.
            properties: the user's own.
            delay_level: 1 to 18; 0 delivers at once.
            key: sharding key: messages of one key lie in one queue, in the order of their sends.
            queue: this queue and no other, or its number in the sorted list of the topic's queues.
            selector: chooses the queue.
            argument: for the selector; the key when there is none.
            timeout: covers all tries.

        Raises:
            SendRefused: The message is not stored.
            SendUnknown: It may be stored; sending the same `Message` again is safe on ordered topics.
            TopicNotFound: No broker has the topic.
            NameServersUnreachable: Nobody can be asked where the topic is.
            SettingError: The message or an argument is not allowed; nothing was sent.
        """
        message = as_message(topic, body, tags, keys, properties, delay_level, key)
        self._check_running()
        waiting = self._send_queues.get(self._send_queue_key(message, queue))
        if waiting is not None and selector is None and argument is None:
            # Calls of `send_nowait` came first; this one stays behind them.
            return await self._enqueue(message, queue, timeout)
        return await self._send(
            message,
            queue,
            selector,
            argument,
            timeout,
            self.settings.retry_times_when_send_failed,
        )

    def send_nowait(  # noqa: PLR0913 - the same
        self,
        topic: str | Message,
        body: bytes | str = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send without waiting; the future tells the outcome.

        The order of calls with one key (or one queue) is the order in the queue. When one of them fails,
        those that wait behind it are refused, unsent: the caller decides how to go on.

        Raises:
            SendRefused: Too many sends are pending.
            StateError, SettingError: As `send`.
        """
        message = as_message(topic, body, tags, keys, properties, delay_level, key)
        self._check_running()
        check_message(message, self.settings.max_message_size_bytes)
        if len(self._pending) >= PENDING_MAX:
            raise SendRefused(f"{PENDING_MAX} sends are pending; await some of their futures first")
        if message.key is None and queue is None:
            retries = self.settings.retry_times_when_send_async_failed
            task = asyncio.create_task(
                self._send(message, None, None, None, timeout, retries), name="send_nowait"
            )
            return self._track(task)
        return self._track(self._enqueue(message, queue, timeout))

    async def send_oneway(  # noqa: PLR0913 - the same
        self,
        topic: str | Message,
        body: bytes | str = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        selector: Selector | None = None,
        argument: object = None,
    ) -> None:
        """Send one message without an answer: it may be lost, and no error says so.

        Raises:
            SettingError, TopicNotFound: Before anything is sent.
        """
        message = as_message(topic, body, tags, keys, properties, 0, key)
        self._check_running()
        self._prepare(message)
        route = await self._route(message.topic)
        chosen = self._choose(route, message, queue, selector, argument)
        chosen = chosen or self._spread(route, message.topic, None)
        address = await self._instance.address(chosen.broker_name, chosen.topic)
        if address is None:
            return
        command = send_request(message, chosen, self._options, _wall_ms())
        chosen_from(route, command)
        try:
            await self._instance.send_oneway(address, command)
        except RemotingError as error:
            _log.debug("a one-way send was lost: %s", error)

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        key: str | int | None = None,
        queue: MessageQueue | int | None = None,
        selector: Selector | None = None,
        argument: object = None,
        timeout: Duration | None = None,
    ) -> SendResult:
        """Send messages of one topic as one: all are stored, with consecutive offsets, or none.

        `split_batch` cuts a list that is too large.

        Raises:
            SettingError: Several topics or keys, a delay level, a retry topic, or too large together.
            SendRefused, SendUnknown, TopicNotFound: As `send`.
        """
        self._check_running()
        check_batch(messages, self.settings.max_message_size_bytes)
        for message in messages:
            message.key = message.key if key is None else key
            self._prepare(message)
        fixed = queue is not None or selector is not None
        leading = messages[0] if fixed else leading_message(messages)
        ids = ",".join(message.unique_key for message in messages)
        retries = self.settings.retry_times_when_send_failed

        async def once(route: TopicRoute) -> SendResult:
            def build(target: MessageQueue) -> RemotingCommand:
                command = batch_request(messages, target, self._options, _wall_ms())
                return chosen_from(route, command)

            chosen = self._choose(route, leading, queue, selector, argument)
            return await self._send_by(route, chosen, build, ids, timeout, retries)

        return await self._through_changes(messages[0].topic, once, timeout)

    async def recall(self, topic: str, handle: str, *, timeout: Duration | None = None) -> str:
        """Take a message with a time of its own back, by the handle of its `SendResult`.

        Returns:
            Its unique key; from now on it is not delivered.

        Raises:
            SettingError, BrokerError, BrokerUnreachable: As `recalls.recall_message`.
        """
        self._check_running()
        wanted_s = seconds(self.settings.send_message_timeout if timeout is None else timeout)
        whole = self._instance.whole(topic)
        return await recall_message(self._instance, self.group, whole, handle, wanted_s)

    # -- requests

    async def request(
        self,
        topic: str | Message,
        body: bytes | str = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout: Duration = DEFAULT_TIMEOUT_S,
    ) -> Reply:
        """Send a message and wait for the reply of its consumer.

        Raises:
            ReplyTimeout: There is no reply within *timeout*, which covers the send too.
            SendRefused, SendUnknown, TopicNotFound, SettingError: As `send`.
        """
        message = as_message(topic, body, tags, "", properties, 0, key)
        self._check_running()
        if self._requests is None:
            self._requests = OpenRequests(self._instance)
        timeout_s = seconds(timeout)
        end_s = _now_s() + timeout_s
        number = self._requests.open(message, timeout_s)
        try:
            await self._route(message.topic)
            await self._requests.identify()
            retries = self.settings.retry_times_when_send_failed
            await self._send(message, None, None, None, timeout, retries)
            return await self._requests.answer(number, end_s - _now_s(), timeout_s)
        finally:
            self._requests.forget(number)
            message.marks = {}

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes | str,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> SendResult:
        """Answer a request that was consumed.

        Raises:
            SendRefused: Who asked is gone or has stopped waiting.
            SendUnknown: The broker did not say whether the reply arrived.
            SettingError: The message is no request.
        """
        message = reply_message(request, body, properties)
        self._check_running()
        self._prepare(message)
        # Through the broker that carried the request: who asked is surely known there.
        queue = MessageQueue(message.topic, request.queue.broker_name, 0)
        await self._route_of(message.topic)
        attempts = Attempts(self._deadline(timeout), message.topic)
        command = send_request(message, queue, self._options, _wall_ms())
        answer = await self._try(queue, command, attempts)
        if answer is None or not is_stored(answer.code):
            raise attempts.error()
        return read_send_result(answer, message.unique_key, queue)

    # -- one send

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | int | None,
        selector: Selector | None,
        argument: object,
        timeout: Duration | None,
        retries: int,
    ) -> SendResult:
        self._prepare(message)

        async def once(route: TopicRoute) -> SendResult:
            def build(target: MessageQueue) -> RemotingCommand:
                command = send_request(message, target, self._options, _wall_ms())
                return chosen_from(route, command)

            chosen = self._choose(route, message, queue, selector, argument)
            key = message.unique_key
            return await self._send_by(route, chosen, build, key, timeout, retries)

        work = self._through_changes(message.topic, once, timeout)
        return await work if self._tracer is None else await self._tracer.follow(message, work)

    async def _through_changes(
        self,
        topic: str,
        send: Callable[[TopicRoute], Awaitable[SendResult]],
        timeout: Duration | None,
    ) -> SendResult:
        patience_s = seconds(self.settings.queue_change_patience if timeout is None else timeout)
        whole = self._instance.whole(topic)
        return await through_changes(
            self._instance, whole, lambda: self._route_of(whole), send, patience_s=patience_s
        )

    async def _send_by(
        self,
        route: TopicRoute,
        chosen: MessageQueue | None,
        build: Build,
        message_id: str,
        timeout: Duration | None,
        retries: int,
    ) -> SendResult:
        attempts = Attempts(self._deadline(timeout), route.publish[0].topic)
        if chosen is not None:
            return await self._send_to(chosen, build, message_id, attempts)
        return await self._send_anywhere(route, build, message_id, attempts, retries)

    async def _send_to(
        self, queue: MessageQueue, build: Build, message_id: str, attempts: Attempts
    ) -> SendResult:
        """Send to this very queue until it is stored, refused for good, or the time is over."""
        if self.settings.retry_another_broker_when_not_store_ok:
            raise SettingError(
                "retry_another_broker_when_not_store_ok cannot be used with key, selector or queue: "
                "another broker means another queue, which breaks the order"
            )
        # One command for all tries: the same born time and key, so that a repeat is a repeat.
        command = build(queue)
        delay_s = _RETRY_FIRST_S
        while True:
            answer = await self._try(queue, command, attempts)
            if answer is not None and is_stored(answer.code):
                return read_send_result(answer, message_id, queue)
            attempts.raise_if_final()
            remaining_s = attempts.remaining_s(_now_s())
            if remaining_s <= delay_s:
                raise attempts.error()
            await asyncio.sleep(delay_s)
            delay_s = min(_RETRY_MAX_S, delay_s * 2)

    async def _send_anywhere(
        self, route: TopicRoute, build: Build, message_id: str, attempts: Attempts, retries: int
    ) -> SendResult:
        """Send to a queue of the round robin; after a failure to one of another broker."""
        topic = route.publish[0].topic
        failed: str | None = None
        for left in range(retries, -1, -1):
            queue = self._spread(route, topic, failed)
            answer = await self._try(queue, build(queue), attempts)
            if answer is not None and is_stored(answer.code):
                result = read_send_result(answer, message_id, queue)
                again = self.settings.retry_another_broker_when_not_store_ok and left
                if result.status is SendStatus.OK or not again:
                    return result
            else:
                attempts.raise_if_final(plain=True)
            failed = queue.broker_name
            if attempts.remaining_s(_now_s()) <= 0:
                break
        raise attempts.error()

    async def _try(
        self, queue: MessageQueue, command: RemotingCommand, attempts: Attempts
    ) -> RemotingCommand | None:
        """Make one try; what went wrong is noted in *attempts*."""
        remaining_s = attempts.remaining_s(_now_s())
        address = await self._instance.address(queue.broker_name, queue.topic)
        if address is None:
            attempts.note_no_address(queue.broker_name)
            return None
        try:
            answer = await self._instance.invoke(address, command, max(0.001, remaining_s))
        except RemotingError as error:
            attempts.note_failure(address, error)
            return None
        if not is_stored(answer.code):
            attempts.note_refusal(address, answer)
        return answer

    # -- choosing

    def _choose(
        self,
        route: TopicRoute,
        message: Message,
        queue: MessageQueue | int | None,
        selector: Selector | None,
        argument: object,
    ) -> MessageQueue | None:
        """Return the one queue that the arguments ask for; None when any will do."""
        check_choice(queue, selector, argument)
        queues = route.publish
        if queue is not None:
            number = queue if isinstance(queue, int) else self._instance.whole_queue(queue)
            return pick(number, queues, route.publish[0].topic)
        if selector is not None:
            wanted = message.key if argument is None else argument
            return by_selector(selector, queues, message, wanted)
        if message.key is not None:
            return by_hash(queues, message, message.key)
        return None

    def _spread(self, route: TopicRoute, topic: str, failed: str | None) -> MessageQueue:
        turn = self._round_robin.get(topic)
        if turn is None:
            turn = self._round_robin[topic] = RoundRobin()
        reachable = [
            queue
            for queue in route.publish
            if self._instance.routes.address(queue.broker_name) is not None
        ]
        return turn.select(reachable or route.publish, failed)

    async def _route(self, topic: str) -> TopicRoute:
        return await self._route_of(self._instance.whole(topic))

    async def _route_of(self, topic: str) -> TopicRoute:
        route = await self._instance.route_or_template(
            topic, self.settings.create_topic_key, self.settings.default_topic_queue_nums
        )
        if not route.publish:
            raise TopicNotFound(f"the topic {topic} has no queue that may be written")
        return route

    def _enqueue(
        self, message: Message, queue: MessageQueue | int | None, timeout: Duration | None
    ) -> "asyncio.Future[SendResult]":
        name = self._send_queue_key(message, queue)
        waiting = self._send_queues.get(name)
        if waiting is None:

            async def send(each: Message, within: Duration | None) -> SendResult:
                return await self._send(each, queue, None, None, within, 0)

            waiting = self._send_queues[name] = SendQueue(
                send, lambda: self._send_queues.pop(name, None)
            )
        return waiting.enter(message, timeout)

    def _send_queue_key(self, message: Message, queue: MessageQueue | int | None) -> SendQueueKey:
        key = None if queue is not None else message.key
        return self._instance.whole(message.topic), queue, key

    def _track(self, future: "asyncio.Future[SendResult]") -> "asyncio.Future[SendResult]":
        self._pending.add(future)
        future.add_done_callback(self._pending.discard)
        return future

    def _prepare(self, message: Message) -> None:
        check_message(message, self.settings.max_message_size_bytes)
        if not message.unique_key:
            message.unique_key = self._unique_keys.next(_wall_ms())

    def _check_running(self) -> None:
        if self._state == "CREATE_JUST":
            raise StateError("the producer is not started: call start() or use `async with`")
        if self._state != "RUNNING":
            raise StateError(f"the producer is closed (state {self._state})")

    def _deadline(self, timeout: Duration | None) -> float:
        wanted = self.settings.send_message_timeout if timeout is None else timeout
        return _now_s() + seconds(wanted)

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic in the order that selectors see."""
        return (await self._route(topic)).publish


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _now_s() -> float:
    return time.monotonic()
