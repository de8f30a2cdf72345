"""
A taskiq broker: the tasks of one key run one after the other, in the order in which they were kicked.

    broker = OrderlyMQBroker("tasks", "workers")

    @broker.task
    async def charge(order: str) -> None: ...

    await charge.kicker().with_labels(key=order).kiq(order)

Rules: each task is a message. It is done when taskiq acknowledges it, so if a worker dies, its task is delivered again.
A task that taskiq never acknowledges holds its queue, or its key, until the worker ends, and then until the lease ends.
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
    """A task must run again before the next task of its key."""


class _Delivery:
    """A task on its way to taskiq.

    `done` ends the listener call that brought the task. Once taskiq has taken the task, only its acknowledgement ends
    the call.
    """

    def __init__(
        self, message: ReceivedMessage, context: OrderedContext | ConcurrentContext
    ) -> None:
        self.message = message
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_taken = False
        self._context = context

    @property
    def is_ours(self) -> bool:
        """Whether the lock of the task's queue, or of its key, is still held."""
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
        """Have a task that has not begun delivered again; no try is counted for it."""
        self.end(NotBegun(why))


class OrderlyMQBroker(AsyncBroker):
    """A broker whose tasks are in a topic, for the workers of a consumer group.

    Args:
        topic: topic of the tasks; it must be ordered, or repeated sends are stored twice.
        group: the consumer group of the workers.
        name_servers: as in `orderlymq.Producer`.
        ordered: as in `orderlymq.Consumer`: True by queue, "key" by key, False without order.
        concurrency: number of tasks at the same time in one worker process, in addition to taskiq's own limit.
        retry_failed: if true, a task that raises runs again before the next task of its key, and its result is stored
            when it succeeds. If false, such a task is done, as with taskiq's other brokers. True requires that the
            task's `ack_type` is not `when_received`.
        settings: settings of the consumer; `max_reconsume_times` limits the tries of a failed task.
        client_settings: settings of both connections.
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
        # One task per call, because taskiq acknowledges each task separately.
        self._settings = replace(settings or ConsumerSettings(), consume_message_batch_max_size=1)
        self._client_settings = client_settings
        self._producer: Producer | None = None
        self._consumer: Consumer | None = None
        self._deliveries: asyncio.Queue[_Delivery] = asyncio.Queue()
        self._failed: set[str] = set()
        if retry_failed:
            self.add_middlewares(_RetryInPlace(self._failed))

    async def startup(self) -> None:
        """Connect for sends; workers join the consumer group when they listen."""
        await super().startup()
        self._producer = Producer(
            self._group, self._name_servers, client_settings=self._client_settings
        )
        await self._producer.start()

    async def shutdown(self) -> None:
        """Wait for the running tasks, give their queues back, disconnect."""
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
        """Join the consumer group and yield tasks, until the generator is closed."""
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
                self._consumer = None  # a consumer whose start failed cannot be started again
                raise
            assert self._consumer.listeners is not None
            self._consumer.listeners.cancels = (
                False  # taskiq has the task, even if its offer is cancelled
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
        """Act as the listener: return when taskiq has acknowledged the task."""
        delivery = _Delivery(messages[0], context)
        self._deliveries.put_nowait(delivery)
        try:
            try:
                await asyncio.shield(delivery.done)
            except asyncio.CancelledError:
                if not delivery.is_taken:
                    raise
                await delivery.done  # the broker is shut down while taskiq still has the task
        finally:
            delivery.done.cancel()  # if the call was cancelled, taskiq must not begin the task
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
        """Have the tasks that taskiq has not taken delivered again."""
        while not self._deliveries.empty():
            self._deliveries.get_nowait().give_back("the worker stops listening")


class _RetryInPlace(TaskiqMiddleware):
    """Records the tasks that failed, before they are acknowledged."""

    def __init__(self, failed: set[str]) -> None:
        super().__init__()
        self._failed = failed

    def on_error(
        self, message: TaskiqMessage, result: TaskiqResult[Any], exception: BaseException
    ) -> None:
        """Have the task delivered again, and do not store this try's error as its result."""
        if isinstance(result.error, NoResultError):
            return  # another middleware has taken the task over
        self._failed.add(message.task_id)
        result.error = NoResultError()
