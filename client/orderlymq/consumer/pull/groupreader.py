"""A member of a consumer group that reads queues only when its program asks; the base of both pull consumers."""

from collections.abc import Callable
from typing import Final

from orderlymq.connection.identity import NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.troubles import passes
from orderlymq.consumer.group.offsets import NOT_FOUND
from orderlymq.consumer.group.queuereader import QueueReader, check_place
from orderlymq.consumer.group.subscriptions import check_group
from orderlymq.errors import BrokerError, PullError, cannot_start
from orderlymq.ownedtasks import Lifecycle, Shutdown
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import CLUSTERING, CONSUME_ACTIVELY, ConsumerData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand

SUSPEND_MS: Final = 20_000  # RocketMQ's brokerSuspendMaxTimeMillis of pull consumers
SUSPENDED_TIMEOUT_S: Final = 30.0  # RocketMQ's consumerTimeoutMillisWhenSuspend


class GroupReader(Lifecycle):
    """Reads the queues of a consumer group and keeps its offsets; life cycle: `start`, `close`; or `async with`."""

    def __init__(
        self,
        group: str,
        name_servers: NameServers = None,
        *,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        check_group(group)
        self._instance = instance or ClientInstance(name_servers, client_settings)
        self.group = self._instance.whole(group)
        self._reader = QueueReader(self._instance, self.group)
        self._state = "CREATE_JUST"
        self._shutdown = Shutdown()

    async def start(self) -> None:
        """Open the consumer for pulls.

        Raises:
            StateError: The consumer was started before.
        """
        if self._state != "CREATE_JUST":
            raise cannot_start(f"the consumer {self.group}", self._state)
        self._instance.heartbeats.add_consumer(self)
        self._state = "RUNNING"
        await self._instance.start()

    async def close(self) -> None:
        """Commit for the last time and end; if the call is cancelled, the consumer still ends, and a later call waits for that."""
        if self._state == "RUNNING":
            self._instance.check_caller()
            self._state = "SHUTDOWN_ALREADY"
            self._shutdown.begin(self._shut_down(), f"shutdown of {self.group}")
        await self._shutdown.wait()

    async def _shut_down(self) -> None:
        try:
            await self._finish()
        finally:
            await self._instance.heartbeats.remove_consumer(self)
            await self._instance.close()

    async def _finish(self) -> None:
        raise NotImplementedError

    # -- troubles

    def _pulled(self, queue: MessageQueue) -> None:
        """Record that a broker answered a pull."""
        self._instance.troubles.answered(queue.broker_name, f"pulls of {queue.topic}")

    def _not_pulled(self, queue: MessageQueue, error: Exception) -> PullError | None:
        """Record that a pull, or the query for the start offset, was refused or not answered.

        Returns:
            The refusal, if a retry gets the same answer until the configuration is changed; otherwise None.
        """
        cause = error.__cause__ if isinstance(error, PullError) else error
        if cause is None:
            return None  # the broker answered, and sent the pull away
        self._instance.troubles.failed(queue.broker_name, f"pulls of {queue.topic}", cause)
        if not isinstance(cause, BrokerError) or passes(cause):
            return None
        if not isinstance(error, PullError):
            error = PullError(
                f"the offset at which {self.group} begins in {queue} is unknown: {cause}"
            )
            error.__cause__ = cause
        return error

    # -- queues and offsets

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the readable queues of the topic.

        Raises:
            TopicNotFound: No broker has the topic.
        """
        return (await self._instance.route(self._instance.whole(topic))).subscribe

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time in milliseconds."""
        return await self._reader.offset_at(self._place(queue), timestamp_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the consumer group's committed offset, None if it has none."""
        offset = await self._reader.offsets.fetch(self._place(queue))
        return None if offset == NOT_FOUND else offset

    def _place(self, queue: MessageQueue, offset: int = 0) -> MessageQueue:
        """Return a queue with the topic name that brokers know; a queue that a program has built may have the bare topic.

        Raises:
            SettingError: The queue is no MessageQueue, or the offset is no integer.
        """
        check_place(queue, offset)
        return self._instance.whole_queue(queue)

    # -- as the instance sees it

    def heartbeat(self) -> ConsumerData:
        """Return the data that heartbeats send about this consumer."""
        return ConsumerData(self.group, CONSUME_ACTIVELY, CLUSTERING)

    def on_request(
        self, _command: RemotingCommand, _reply: Callable[[RemotingCommand], None]
    ) -> bool:
        """Serve nothing: brokers ask nothing of a member that takes no part in a rebalance."""
        return False

    def routes_changed(self, _topic: str) -> None:
        """Do nothing: the program asks for queues when it wants to know them."""
