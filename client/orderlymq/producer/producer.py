"""
The producer: sends that keep the order of a key, and report whether a message is stored.

Rules: a send with a key, a selector or a queue goes to that one queue or fails. It is retried on the same queue under
the same unique key until its time is over, and a broker recognises the repeat. A plain send may be tried on other
brokers. `SendRefused` is raised only if no try can have stored the message, else `SendUnknown`. Sends of one key by
`send_nowait` leave one after the other (`sendorder`), so the order of calls is the order in the queue. Awaited sends,
batches and requests of this key stay behind them.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from orderlymq.connection.identity import NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.routes import TopicRoute
from orderlymq.connection.wire import is_stored
from orderlymq.durations import Duration, seconds
from orderlymq.errors import (
    ReplyTimeout,
    SendRefused,
    SettingError,
    StateError,
    cannot_start,
)
from orderlymq.message import BodyLike, Message, ReceivedMessage, SendResult
from orderlymq.observers import observed, observed_future
from orderlymq.ownedtasks import Lifecycle, Shutdown
from orderlymq.producer.delivery import Delivery
from orderlymq.producer.queuechanges import chosen_from
from orderlymq.producer.recalls import recall_message
from orderlymq.producer.requestreply import DEFAULT_TIMEOUT_S, OpenRequests, Reply, reply_message
from orderlymq.producer.requests import SendOptions, batch_request, read_send_result, send_request
from orderlymq.producer.selectors import Selector
from orderlymq.producer.sendorder import SendOrder
from orderlymq.producer.sendoutcome import (
    Attempts,
    as_message,
    check_batch,
    check_batch_size,
    check_choice,
    check_message,
    heard,
    leading_message,
    noted,
    refusals_of,
)
from orderlymq.producer.tracer import make_tracer
from orderlymq.settings import ClientSettings, ProducerSettings, check_name, settings_of
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import check_group_name
from orderlymq_runtime.remoting.client import RemotingError
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

# RocketMQ's client allows the same number of unanswered asynchronous requests.
PENDING_MAX: Final = 65_535


class Producer(Lifecycle):
    """Sends messages.

    Life cycle: `start`, any number of sends, `close`, which waits for pending sends; or `async with`.

    Args:
        group: names the application; shown in listings.
        name_servers: "host:port;host:port"; by default from the environment (ORDERLYMQ_NAME_SERVER,
            NAMESRV_ADDR), else this machine.
        settings: of the producer.
        client_settings: of the connection.
        instance: share connections with other producers and consumers.
        trace: report the outcome of each send to the trace topic (or the topic named here).
        linger: how long a send may wait for others to the same topic, to leave with them as one batch per
            queue; 0 sends immediately. For `send` and `send_nowait` without a selector; order stays per key.
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
        linger: Duration = 0,
    ) -> None:
        check_name(check_group_name, group)
        if group == "DEFAULT_PRODUCER":
            raise SettingError("the producer group DEFAULT_PRODUCER is reserved; choose another")
        self.settings = settings_of(ProducerSettings, settings)
        self._instance = instance or ClientInstance(name_servers, client_settings)
        self.group = self._instance.whole(group)
        self._options = SendOptions(self.group, self.settings)
        self._delivery = Delivery(self._instance, self.settings)
        self._order = SendOrder(
            self._instance, self.settings, self._delivery, linger, self._send_together
        )
        self._pending: set[asyncio.Future[SendResult]] = set()
        self._pending_bytes = 0
        self._awaited = 0
        self._idle = asyncio.Event()
        self._requests: OpenRequests | None = None
        self._tracer = make_tracer(trace, self._instance, f"{group}-PRODUCE", group)
        self._state = "CREATE_JUST"
        self._shutdown = Shutdown()

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client."""
        return self._instance.client_id

    async def start(self) -> None:
        """Open for sends.

        Raises:
            StateError: It was started before, or the instance runs on another event loop.
        """
        if self._state != "CREATE_JUST":
            raise cannot_start(f"the producer {self.group}", self._state)
        await self._instance.start()
        self._state = "RUNNING"
        self._instance.heartbeats.add_producer(self.group)
        if self._tracer is not None:
            await self._tracer.start()
        _log.info("the producer [%s] start OK. clientId=%s", self.group, self.client_id)

    async def close(self) -> None:
        """Wait for every send under way, then end. A cancelled call still ends it; a later call waits for that.

        A request that waits for its reply ends with `StateError`.
        """
        if self._state == "RUNNING":
            self._instance.check_caller()
            self._shutdown.begin(self._shut_down(), f"shutdown of {self.group}")
        self._state = "SHUTDOWN_ALREADY"
        await self._shutdown.wait()

    async def _shut_down(self) -> None:
        # Each of these sends ends within its own time-out.
        await asyncio.gather(*self._pending, return_exceptions=True)
        if self._awaited:
            await self._idle.wait()
        if self._requests is not None:
            self._requests.close()
        try:
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            await self._instance.heartbeats.remove_producer(self.group)
            await self._instance.close()

    # -- sends

    async def send(  # noqa: PLR0913 - what a user may say about a message
        self,
        topic: str | Message,
        body: BodyLike = b"",
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
            topic: the topic, or a whole `Message`, which then holds the rest except *key*.
            body: bytes, or text that becomes UTF-8.
            tags: one tag.
            keys: index keys for queries.
            properties: the user's own.
            delay_level: 1 to 18; 0 delivers immediately.
            key: sharding key: messages of one key lie in one queue, in the order of their sends. Its text is
                hashed; for the hash of a Java Integer pass `selector=by_hash` and the number as *argument*.
            queue: exactly this queue, or its number in the sorted list of the topic's queues. Not together with
                *key*; it replaces the queue of a `Message`'s own key. An expansion of the topic does not change it,
                so if it was computed from a key, use `key` or *selector* instead to keep that key's order.
            selector: chooses the queue; it is asked again when the topic gets more queues.
            argument: for the selector; the key if there is none.
            timeout: covers all tries and the requests for the route, but not the wait behind earlier sends.

        Raises:
            SendRefused: The message is not stored.
            SendUnknown: It may be stored; on ordered topics the same `Message` may be sent again, with the
                same key or queue.
            TopicNotFound: No broker has the topic.
            NameServersUnreachable: No name server answers the request for the route.
            SettingError: The message or an argument is not allowed; nothing was sent.
        """
        message = as_message(topic, body, tags, keys, properties, delay_level, key)
        self._check_running()
        check_choice(queue, selector, argument, key)
        self._prepare(message)
        retries = self.settings.retry_times_when_send_failed

        async def leave() -> SendResult:
            return await self._send(message, queue, selector, argument, timeout, retries)

        async def enter() -> SendResult:
            with refusals_of([message]):
                if self._order.lingers and selector is None:
                    return await heard([message], self._linger(message, queue, timeout))
                return await self._order.in_turn([message], message, queue, argument, leave)

        with self._under_way():
            return await observed(self.group, self._instance.whole, [message], enter)

    def send_nowait(  # noqa: PLR0913 - the same
        self,
        topic: str | Message,
        body: BodyLike = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        delay_level: int = 0,
        timeout: Duration | None = None,
    ) -> "asyncio.Future[SendResult]":
        """Send without waiting; the future has the outcome.

        The order of calls with one key (or one queue) is the order in the queue. When one of them fails, the sends
        that wait behind it are refused without being sent: the caller decides how to go on.

        Raises:
            SendRefused: Too many sends are pending, or more bytes than `send_buffer_bytes`.
            StateError, SettingError: As `send`.
        """
        message = as_message(topic, body, tags, keys, properties, delay_level, key)
        self._check_running()
        check_choice(queue, key=key)
        is_repeat = bool(message.unique_key)
        self._prepare(message)
        with refusals_of([message]):
            self._check_room(len(message.body))

        def enter() -> "asyncio.Future[SendResult]":
            if self._order.lingers:
                return self._linger(message, queue, timeout)
            if message.key is not None or queue is not None:
                return self._order.enter(
                    message, queue, lambda: self._send(message, queue, None, None, timeout, 0)
                )
            retries = self.settings.retry_times_when_send_async_failed
            work = self._send(message, None, None, None, timeout, retries)
            return asyncio.create_task(work, name="send_nowait")

        async def repeat(entered: "asyncio.Future[SendResult]") -> SendResult:
            with refusals_of([message]):
                return await heard([message], entered)

        def begin() -> "asyncio.Future[SendResult]":
            # A repeat takes its place now too, so that the next call stands behind it.
            entered = enter()
            if not is_repeat:
                return entered
            outcome = asyncio.create_task(repeat(entered), name="repeat")
            # A task that is cancelled before it starts cannot cancel *entered* itself.
            outcome.add_done_callback(lambda _: entered.cancel())
            return outcome

        future = observed_future(self.group, self._instance.whole, message, begin)
        return self._track(future, len(message.body))

    async def send_oneway(  # noqa: PLR0913 - the same
        self,
        topic: str | Message,
        body: BodyLike = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        keys: str | tuple[str, ...] = "",
        properties: Mapping[str, str] | None = None,
        queue: MessageQueue | int | None = None,
        selector: Selector | None = None,
        argument: object = None,
    ) -> None:
        """Send one message without an answer: it may be lost without an error.

        Raises:
            SettingError, TopicNotFound: Before anything is sent.
            NameServersUnreachable: No name server returns the route within `send_message_timeout`.
        """
        message = as_message(topic, body, tags, keys, properties, 0, key)
        self._check_running()
        check_choice(queue, selector, argument, key)
        self._prepare(message)
        with self._under_way():
            deadline_s = self._delivery.deadline(None)
            route = await self._delivery.route_by(self._instance.whole(message.topic), deadline_s)
            chosen = self._delivery.choose(route, message, queue, selector, argument)
            chosen = chosen or self._delivery.spread(route, message.topic)
            within_s = deadline_s - time.monotonic()
            address = await self._instance.address(
                chosen.broker_name, chosen.topic, within_s=within_s
            )
            if address is None:
                return
            command = send_request(message, chosen, self._options, machine_ms())
            chosen_from(route, command)
            message.maybe_stored = True
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
        """Send messages of one topic as one, to one queue.

        Up to 1,024 messages are stored with consecutive offsets, all or none. If a leader fails during a larger
        batch, only its first messages may be stored. The outcome is then `SendUnknown`, and sending the same messages
        again to an ordered topic stores the rest. `split_batch` cuts a list that is too large.

        Raises:
            SettingError: Several topics or keys, a delay level, a retry topic, or too large together.
            SendRefused, SendUnknown, TopicNotFound: As `send`.
        """
        self._check_running()
        check_choice(queue, selector, argument, key)
        check_batch(messages, self.settings.max_message_size_bytes)
        for message in messages:
            message.key = message.key if key is None else key
            self._prepare(message)
        fixed = queue is not None or selector is not None
        leading = messages[0] if fixed else leading_message(messages)
        retries = self.settings.retry_times_when_send_failed

        async def once(route: TopicRoute, deadline_s: float) -> SendResult:
            chosen = self._delivery.choose(route, leading, queue, selector, argument)
            return await self._send_together(
                messages, route, chosen, deadline_s, retries, as_batch=True
            )

        async def leave() -> SendResult:
            return await self._traced(
                messages, self._delivery.through_changes(messages[0].topic, once, timeout)
            )

        async def enter() -> SendResult:
            with refusals_of(messages):
                return await self._order.in_turn(messages, leading, queue, argument, leave)

        with self._under_way():
            return await observed(self.group, self._instance.whole, messages, enter)

    async def recall(self, topic: str, handle: str, *, timeout: Duration | None = None) -> str:
        """Take back a timer message by the handle of its `SendResult`.

        Returns:
            Its unique key; from now on it is not delivered.

        Raises:
            SettingError, BrokerError, BrokerUnreachable: As `recalls.recall_message`.
        """
        self._check_running()
        wanted_s = seconds(self.settings.send_message_timeout if timeout is None else timeout)
        whole = self._instance.whole(topic)
        with self._under_way():
            return await recall_message(self._instance, self.group, whole, handle, wanted_s)

    # -- requests

    async def request(
        self,
        topic: str | Message,
        body: BodyLike = b"",
        *,
        key: str | int | None = None,
        tags: str = "",
        properties: Mapping[str, str] | None = None,
        timeout: Duration = DEFAULT_TIMEOUT_S,
    ) -> Reply:
        """Send a message and wait for the reply of its consumer.

        Raises:
            ReplyTimeout: No reply arrived within *timeout*, which covers the send too.
            StateError: The producer was closed before the reply arrived.
            NameServersUnreachable: No name server answers the request for the route.
            SendRefused, SendUnknown, TopicNotFound, SettingError: As `send`.
        """
        message = as_message(topic, body, tags, "", properties, 0, key)
        self._check_running()
        if self._requests is None:
            self._requests = OpenRequests(self._instance)
        timeout_s = seconds(timeout)
        end_s = time.monotonic() + timeout_s
        retries = self.settings.retry_times_when_send_failed

        async def leave() -> SendResult:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise ReplyTimeout(f"not sent: earlier sends took all {timeout_s} s")
            return await self._send(message, None, None, None, left_s, retries)

        number = self._requests.open(message, timeout_s)
        try:
            with self._under_way(), refusals_of([message]):
                try:
                    async with asyncio.timeout(timeout_s):
                        await self._delivery.route(message.topic)
                except TimeoutError:
                    raise ReplyTimeout(
                        f"not sent: no name server answered within {timeout_s} s"
                    ) from None
                await self._requests.identify((end_s - time.monotonic()) / 2)
                self._prepare(message)
                await self._order.in_turn([message], message, None, None, leave)
            return await self._requests.answer(number, end_s - time.monotonic(), timeout_s)
        finally:
            self._requests.forget(number)
            message.marks = {}

    async def reply(
        self,
        request: ReceivedMessage,
        body: BodyLike,
        *,
        properties: Mapping[str, str] | None = None,
        timeout: Duration | None = None,
    ) -> SendResult:
        """Answer a request that was consumed.

        Raises:
            SendRefused: The requester is gone or has stopped waiting.
            SendUnknown: The broker did not say whether the reply arrived.
            NameServersUnreachable: No name server returns the broker's address within *timeout*.
            SettingError: The message is not a request.
        """
        message = reply_message(request, body, properties)
        self._check_running()
        self._prepare(message)
        # The reply goes through the broker that carried the request, which surely knows the requester.
        queue = MessageQueue(message.topic, request.queue.broker_name, 0)
        with self._under_way():
            deadline_s = self._delivery.deadline(timeout)
            await self._delivery.route_by(message.topic, deadline_s)
            attempts = Attempts(deadline_s, message.topic)
            command = send_request(message, queue, self._options, machine_ms())
            answer = await self._delivery.attempt(queue, command, attempts)
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
        async def once(route: TopicRoute, deadline_s: float) -> SendResult:
            chosen = self._delivery.choose(route, message, queue, selector, argument)
            return await self._send_together([message], route, chosen, deadline_s, retries)

        work = self._delivery.through_changes(message.topic, once, timeout)
        return await self._traced([message], work)

    async def _traced(
        self, messages: Sequence[Message], work: Coroutine[None, None, SendResult]
    ) -> SendResult:
        return await work if self._tracer is None else await self._tracer.follow(messages, work)

    def _linger(
        self, message: Message, queue: MessageQueue | int | None, timeout: Duration | None
    ) -> "asyncio.Future[SendResult]":
        sent = self._order.linger(message, queue, timeout)
        if self._tracer is not None:
            self._tracer.note(message, sent)
        return sent

    async def _send_together(
        self,
        messages: Sequence[Message],
        route: TopicRoute,
        chosen: MessageQueue | None,
        deadline_s: float,
        retries: int,
        *,
        as_batch: bool = False,
    ) -> SendResult:
        """Send prepared messages as one command; a single message is sent as such unless *as_batch* is true."""

        def build(target: MessageQueue) -> RemotingCommand:
            if as_batch or len(messages) > 1:
                command = batch_request(messages, target, self._options, machine_ms())
                check_batch_size(len(command.body), self.settings.max_message_size_bytes)
            else:
                command = send_request(messages[0], target, self._options, machine_ms())
            return chosen_from(route, command)

        ids = ",".join(message.unique_key for message in messages)
        with noted(messages):
            return await self._delivery.send_by(route, chosen, build, ids, deadline_s, retries)

    def _check_room(self, size: int) -> None:
        """Refuse a send without waiting if too much is pending."""
        if len(self._pending) >= PENDING_MAX:
            raise SendRefused(f"{PENDING_MAX} sends are pending; await some of their futures first")
        limit = self.settings.send_buffer_bytes
        if self._pending and self._pending_bytes + size > limit:
            raise SendRefused(
                f"{self._pending_bytes} bytes of sends are pending and {size} more pass "
                f"send_buffer_bytes ({limit}); await some of their futures first"
            )

    def _track(
        self, future: "asyncio.Future[SendResult]", size: int
    ) -> "asyncio.Future[SendResult]":
        def done(ended: "asyncio.Future[SendResult]") -> None:
            self._pending.discard(ended)
            self._pending_bytes -= size

        self._pending.add(future)
        self._pending_bytes += size
        future.add_done_callback(done)
        return future

    @contextmanager
    def _under_way(self) -> Iterator[None]:
        """Let `close` wait for the work inside."""
        self._awaited += 1
        try:
            yield
        finally:
            self._awaited -= 1
            if not self._awaited and self._state != "RUNNING":
                self._idle.set()

    def _prepare(self, message: Message) -> None:
        check_message(message, self.settings.max_message_size_bytes, self.settings.compresses)
        if not message.unique_key:
            message.unique_key = self._instance.unique_keys.next(machine_ms())

    def _check_running(self) -> None:
        if self._state == "CREATE_JUST":
            raise StateError("the producer is not started: call start() or use `async with`")
        if self._state != "RUNNING":
            raise StateError(f"the producer is closed (state {self._state})")
        self._instance.check_caller()

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic in the order that selectors see."""
        return (await self._delivery.route(topic)).publish
