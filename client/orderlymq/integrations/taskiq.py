"""
A taskiq broker: the tasks of one key run one after the other, in the order in which they were kicked.

    broker = OrderlyMQBroker("tasks", "workers")

    @broker.task
    async def charge(order: str) -> None: ...

    await charge.kicker().with_labels(key=order).kiq(order)

Rules: a task is a message; it is done when taskiq acknowledges it, so a task whose worker dies comes again. What
taskiq never acknowledges holds its queue, or its key, until the worker ends, and then until the lease ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, Literal

try:
    from taskiq import AckableMessage, AsyncBroker, BrokerMessage, TaskiqMiddleware
    from taskiq.exceptions import NoResultError
    from taskiq.message import TaskiqMessage
    from taskiq.result import TaskiqResult
except ImportError as error:
    raise ImportError(f"{error}; install it with: pip install 'orderlymq[taskiq]'") from error

from orderlymq.connection.identity import NameServers
from orderlymq.consumer.listeners.context import ConcurrentContext, NotBegun, OrderedContext
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import StateError
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer
from orderlymq.settings import ClientSettings

KEY: Final = "key"
"""The label that is the sharding key of a task; tasks without it have no order."""
DELAY: Final = "delay"
"""The label that delays a task, in seconds; a delayed task does not wait for its key, nor its key for it."""


class TaskAgain(Exception):  # noqa: N818 - says what happens next
    """A task is to run again before the next one of its key."""


class _Delivery:
    """A task on its way: `done` ends the listener call that brought it; once taskiq has taken it, only its acknowledgement does."""

    def __init__(
        self, message: ReceivedMessage, context: OrderedContext | ConcurrentContext
    ) -> None:
        self.message = message
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_taken = False
        self._context = context

    @property
    def is_ours(self) -> bool:
        """Whether the lock of its queue, or of its key, is still held."""
        return isinstance(self._context, ConcurrentContext) or self._context.still_holds()

    def end(self, error: Exception | None = None) -> None:
        """Let the listener return, or raise *error*."""
        if self.done.done():
            return
        if error is None:
            self.done.set_result(None)
        else:
            self.done.set_exception(error)

    def give_back(self, why: str) -> None:
        """Have a task come again that has not begun; no try is counted for it."""
        self.end(NotBegun(why))


class OrderlyMQBroker(AsyncBroker):
    """Tasks in a topic, for the workers of a consumer group.

    Args:
        topic: where tasks go; an ordered topic, or repeated sends are stored twice.
        group: the consumer group of the workers.
        name_servers: as of `orderlymq.Producer`.
        ordered: as of `orderlymq.Consumer`: by queue, "key" by key, False without order.
        concurrency: tasks at the same time in one worker process, beside taskiq's own limit.
        retry_failed: a task that raises runs again before the next one of its key, and its result is stored when
            it succeeds; else it is done, as with taskiq's other brokers. It takes a task's `ack_type` that is not
            `when_received`.
        settings: of the consumer; `max_reconsume_times` limits the tries of a failed task.
        client_settings: of both connections.
    """

    def __init__(
        self,
        topic: str,
        group: str,
        name_servers: NameServers = None,
        *,
        ordered: bool | Literal["key"] = True,
        concurrency: int | None = None,
        retry_failed: bool = False,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
    ) -> None:
        super().__init__()
        self._topic = topic
        self._group = group
        self._name_servers = name_servers
        self._ordered = ordered
        self._concurrency = concurrency
        # One task per call: taskiq acknowledges each alone.
        self._settings = replace(settings or ConsumerSettings(), consume_message_batch_max_size=1)
        self._client_settings = client_settings
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._deliveries: asyncio.Queue[_Delivery] = asyncio.Queue()
        self._failed: set[str] = set()
        if retry_failed:
            self.add_middlewares(_RetryInPlace(self._failed))

    async def startup(self) -> None:
        """Connect for sends; workers join the group when they listen."""
        await super().startup()
        self._producer = Producer(
            self._group, self._name_servers, client_settings=self._client_settings
        )
        await self._producer.start()

    async def shutdown(self) -> None:
        """Wait for the tasks that run, give their queues back, disconnect."""
        self._give_back()
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            await consumer.close()
        producer, self._producer = self._producer, None
        if producer is not None:
            await producer.close()
        await super().shutdown()

    async def kick(self, message: BrokerMessage) -> None:
        """Send a task; return when it is stored.

        Raises:
            StateError: `startup` was not called.
            SendRefused, SendUnknown, TopicNotFound: As `Producer.send`; taskiq wraps them in `SendTaskError`.
        """
        if self._producer is None:
            raise StateError("the broker is not started: await broker.startup()")
        await self._producer.send(
            Message(
                topic=self._topic,
                body=message.message,
                key=message.labels.get(KEY),
                keys=message.task_id,
                delay=float(message.labels.get(DELAY, 0)),
            )
        )

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Join the group and yield tasks, until the generator is closed."""
        if self._consumer is None:
            self._consumer = Consumer(
                self._group,
                self._name_servers,
                topics=self._topic,
                listener=self._offer,
                ordered=self._ordered,
                concurrency=self._concurrency,
                consume_from="first",
                settings=self._settings,
                client_settings=self._client_settings,
            )
            try:
                await self._consumer.start()
            except BaseException:
                self._consumer = None  # one that did not start never will
                raise
            assert self._consumer.listeners is not None
            self._consumer.listeners.cancels = (
                False  # taskiq has the task, whatever becomes of the offer
            )
        else:
            self._consumer.resume()
        try:
            while True:
                delivery = await self._deliveries.get()
                if delivery.is_ours:
                    delivery.is_taken = True
                    yield AckableMessage(data=delivery.message.body, ack=self._ack(delivery))
                else:
                    delivery.give_back("the lock ended before the task began")
        finally:
            if self._consumer is not None:
                self._consumer.suspend()
            self._give_back()

    async def _offer(
        self,
        messages: Sequence[ReceivedMessage],
        context: OrderedContext | ConcurrentContext,
    ) -> None:
        """Be the listener: return when taskiq has acknowledged the task."""
        delivery = _Delivery(messages[0], context)
        self._deliveries.put_nowait(delivery)
        try:
            try:
                await asyncio.shield(delivery.done)
            except asyncio.CancelledError:
                if not delivery.is_taken:
                    raise
                await delivery.done  # the broker is shut down, and taskiq still has the task
        finally:
            delivery.done.cancel()  # when the call itself was cancelled, nobody is to begin the task
            self._failed.discard(" ".join(messages[0].keys))

    def _ack(self, delivery: _Delivery) -> Callable[[], None]:
        task_id = " ".join(delivery.message.keys)

        def ack() -> None:
            if task_id in self._failed:
                delivery.end(TaskAgain(f"the task {task_id} failed"))
            else:
                delivery.end()

        return ack

    def _give_back(self) -> None:
        """Have the tasks come again that taskiq has not taken."""
        while not self._deliveries.empty():
            self._deliveries.get_nowait().give_back("the worker stops listening")


class _RetryInPlace(TaskiqMiddleware):
    """Notes the tasks that failed, before they are acknowledged."""

    def __init__(self, failed: set[str]) -> None:
        super().__init__()
        self._failed = failed

    def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException
    ) -> None:
        """Have the task come again, and keep this try's error from its result."""
        if isinstance(result.error, NoResultError):
            return  # another middleware has taken it over
        self._failed.add(message.task_id)
        result.error = NoResultError()
