"""
The lite pull consumer: `poll` gives the next messages, offsets are kept and committed.

Rules: positions belong to this object until `seek` moves them; with auto-commit a later `poll` commits
what an earlier one returned, so that a crash repeats messages and never skips any; a paused queue keeps
its position. Either `subscribe` (queues are divided among the group's members) or `assign`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Self

from orderlymq.assignment import AssignmentStrategy, Averagely, assign
from orderlymq.brokercalls import BrokerCalls
from orderlymq.errors import BrokerError, OrderlyMQError, PullError, SettingError, StateError
from orderlymq.events import FindStart, StartFailed, StartFound
from orderlymq.identity import NameServers
from orderlymq.instance import ClientInstance
from orderlymq.message import ReceivedMessage
from orderlymq.offsets import NOT_FOUND
from orderlymq.pullconsumer import QueueReader
from orderlymq.settings import (
    ClientSettings,
    ConsumeFrom,
    ConsumerSettings,
    parse_consume_from,
)
from orderlymq.subscribing import Subscription, check_group, make_subscription
from orderlymq.tasks import OwnedTasks
from orderlymq.wire import PullStatus
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.command import RemotingCommand
from orderlymq_protocol.messagequeue import MessageQueue
from orderlymq_protocol.model import CLUSTERING, CONSUME_ACTIVELY, ConsumerData

# RocketMQ's lite pull consumer pulls 10 at a time and keeps at most 1000 per queue.
_PULL_COUNT: Final = 10
_CACHED_MAX: Final = 1_000
_SUSPEND_MS: Final = 20_000
_TIMEOUT_MS: Final = 30_000
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0


class _Position:
    """One queue: where it is pulled, what is buffered, what was handed out."""

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.next_offset: int | None = None
        self.consumed: int | None = None  # one past the last message that poll returned
        self.buffer: deque[ReceivedMessage] = deque()
        self.is_paused = False
        self.task: asyncio.Task[None] | None = None


class LitePullConsumer:
    """Polls messages.

    Args:
        auto_commit: `poll` commits what was returned before; else `commit` does.
        consume_from: for a group without a committed offset.
    """

    def __init__(  # noqa: PLR0913 - what a user may say about a consumer
        self,
        group: str,
        name_servers: NameServers = None,
        *,
        auto_commit: bool = True,
        auto_commit_interval_ms: int = 5_000,
        consume_from: ConsumeFrom | str = ConsumeFrom.LAST,
        pull_batch_size: int = _PULL_COUNT,
        strategy: AssignmentStrategy | None = None,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        check_group(group)
        if not 1 <= pull_batch_size <= 1024:
            raise SettingError(f"pull_batch_size is {pull_batch_size}; it must be in [1, 1024]")
        if auto_commit_interval_ms < 1_000:
            raise SettingError(
                f"auto_commit_interval_ms is {auto_commit_interval_ms}; it must be at least 1000"
            )
        self.auto_commit = auto_commit
        self._auto_commit_s = auto_commit_interval_ms / 1000
        self._consume_from = parse_consume_from(consume_from)
        self._count = pull_batch_size
        self._strategy = strategy or Averagely()
        self._instance = instance or ClientInstance(name_servers, client_settings)
        self.group = self._instance.whole(group)
        self._reader = QueueReader(self._instance, self.group)
        self._subscriptions: dict[str, Subscription] = {}
        self._assigned = False
        self._positions: dict[MessageQueue, _Position] = {}
        self._tasks = OwnedTasks()
        self._arrived = asyncio.Event()
        self._rebalance_wanted = asyncio.Event()
        self._commit_due_s = 0.0
        self._state = "CREATE_JUST"

    # -- life

    async def start(self) -> None:
        """Begin to fill the buffers.

        Raises:
            StateError: It was started before.
        """
        if self._state != "CREATE_JUST":
            raise StateError(
                f"The LitePullConsumer service state not OK, maybe started once, {self._state}"
            )
        self._instance.add_consumer(self)
        self._state = "RUNNING"
        await self._instance.start()
        for topic in self._subscriptions:
            await self._instance.route(topic)
        await self._instance.beat_all()
        if self._subscriptions:
            self._tasks.start(self._rebalance_forever(), "lite pull rebalance")
        for position in self._positions.values():
            self._start_pulling(position)

    async def close(self) -> None:
        """Commit (with auto-commit) and end."""
        if self._state != "RUNNING":
            return
        self._state = "SHUTDOWN_ALREADY"
        if self.auto_commit:
            await self.commit()
        await self._tasks.cancel()
        await self._instance.remove_consumer(self)
        await self._instance.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- what to read

    def subscribe(self, topic: str, expression: str = "*", *, kind: str = "TAG") -> None:
        """Take a share of a topic's queues; kind SQL92 selects by properties at the broker.

        Raises:
            StateError: Queues were assigned by hand before, or the consumer runs already.
        """
        if self._assigned or self._state != "CREATE_JUST":
            raise StateError("subscribe before start, and not together with assign")
        version_ms = time.time_ns() // 10**6
        topic = self._instance.whole(topic)
        self._subscriptions[topic] = make_subscription(topic, expression, kind, version_ms)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; may be called again.

        Raises:
            StateError: The consumer subscribes to topics.
        """
        if self._subscriptions:
            raise StateError("assign cannot be used together with subscribe")
        self._assigned = True
        self._take(set(queues))

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """Return the queues that are read now."""
        return tuple(sorted(self._positions))

    async def fetch_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the topic's queues."""
        return (await self._instance.route(self._instance.whole(topic))).subscribe

    # -- reading

    async def poll(self, timeout_ms: int = 5_000, count: int = 32) -> list[ReceivedMessage]:
        """Return up to *count* messages, in order per queue; an empty list after *timeout_ms*.

        Raises:
            StateError: The consumer does not run.
        """
        if self._state != "RUNNING":
            raise StateError(f"the consumer does not run (state {self._state})")
        loop = asyncio.get_running_loop()
        if self.auto_commit and loop.time() >= self._commit_due_s:
            self._commit_due_s = loop.time() + self._auto_commit_s
            await self.commit()
        deadline = loop.time() + timeout_ms / 1000
        while True:
            found = self._collect(count)
            if found or loop.time() >= deadline:
                return found
            self._arrived.clear()
            try:
                async with asyncio.timeout_at(deadline):
                    await self._arrived.wait()
            except TimeoutError:
                pass

    def _collect(self, count: int) -> list[ReceivedMessage]:
        found: list[ReceivedMessage] = []
        for position in list(self._positions.values()):
            while position.buffer and not position.is_paused and len(found) < count:
                message = position.buffer.popleft()
                position.consumed = message.queue_offset + 1
                found.append(message)
            # The next poll begins with another queue, so that a busy one does not starve the rest.
            if found:
                self._positions[position.queue] = self._positions.pop(position.queue)
        return found

    async def commit(self) -> None:
        """Commit what `poll` has returned."""
        for position in self._positions.values():
            if position.consumed is not None:
                self._reader.offsets.update(
                    position.queue, position.consumed, epoch=None, increase_only=False
                )
        await self._reader.offsets.persist(list(self._positions))

    async def committed(self, queue: MessageQueue) -> int | None:
        """Return the group's committed offset, None when it has none."""
        offset = await self._reader.offsets.fetch(queue)
        return None if offset == NOT_FOUND else offset

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at *offset*; what is buffered is forgotten.

        Raises:
            SettingError: The queue is not assigned, or the offset is negative.
        """
        position = self._positions.get(queue)
        if position is None:
            raise SettingError(f"{queue} is not assigned to this consumer; assign it first")
        if offset < 0:
            raise SettingError(f"offset {offset} is negative")
        position.next_offset = offset
        position.consumed = offset
        position.buffer.clear()
        self._restart(position)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on at the oldest message."""
        self.seek(queue, await self._reader.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message that will be stored."""
        self.seek(queue, await self._reader.max_offset(queue))

    async def offset_for_timestamp(self, queue: MessageQueue, timestamp_ms: int) -> int:
        """Return the offset nearest to a store time."""
        return await self._reader.offset_at(queue, timestamp_ms)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing of these queues out until `resume`."""
        for queue in queues:
            if queue in self._positions:
                self._positions[queue].is_paused = True

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues."""
        for queue in queues:
            if queue in self._positions:
                self._positions[queue].is_paused = False
        self._arrived.set()

    # -- pulling

    def _take(self, wanted: set[MessageQueue]) -> None:
        for queue in self._positions.keys() - wanted:
            task = self._positions.pop(queue).task
            if task is not None:
                task.cancel()
        for queue in sorted(wanted - self._positions.keys()):
            position = self._positions[queue] = _Position(queue)
            if self._state == "RUNNING":
                self._start_pulling(position)

    def _start_pulling(self, position: _Position) -> None:
        position.task = self._tasks.start(self._pull_forever(position), f"pull {position.queue}")

    def _restart(self, position: _Position) -> None:
        if position.task is not None:
            position.task.cancel()
            self._start_pulling(position)

    async def _pull_forever(self, position: _Position) -> None:
        delay_s = _RETRY_FIRST_S
        while True:
            if len(position.buffer) >= _CACHED_MAX or position.is_paused:
                await asyncio.sleep(0.05)  # RocketMQ's wait of a pull under flow control
                continue
            try:
                if position.next_offset is None:
                    position.next_offset = await self._start_offset(position.queue)
                await self._pull_once(position, position.next_offset)
            except OrderlyMQError:
                await asyncio.sleep(delay_s)
                delay_s = min(_RETRY_MAX_S, delay_s * 2)
            else:
                delay_s = _RETRY_FIRST_S

    async def _pull_once(self, position: _Position, offset: int) -> None:
        subscription = self._subscriptions.get(position.queue.topic)
        result = await self._reader.pull(
            position.queue,
            offset,
            expression=None if subscription is None else subscription.data.sub_string,
            kind="TAG" if subscription is None else subscription.data.expression_type,
            count=self._count,
            suspend_ms=_SUSPEND_MS,
            timeout_ms=_TIMEOUT_MS,
            lite=True,
        )
        position.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return
        position.buffer.extend(result.messages)
        if not position.buffer:
            # Nothing matched: the group moves on all the same.
            position.consumed = result.next_offset
        self._arrived.set()

    async def _start_offset(self, queue: MessageQueue) -> int:
        found: list[StartFound | StartFailed] = []
        calls = BrokerCalls(
            self._instance,
            self.group,
            ConsumerSettings(consume_from=self._consume_from),
            self._reader.offsets,
            ordered=False,
            subscriptions=self._subscriptions,
            post=lambda event: (
                found.append(event) if isinstance(event, StartFound | StartFailed) else None
            ),
            now_ms=lambda: 0,
        )
        await calls.find_start(FindStart(queue, 0))
        match found:
            case [StartFound(offset=offset)]:
                return offset
            case [StartFailed(reason=reason)]:
                raise PullError(reason)
            case _:
                raise AssertionError("find_start posts exactly one event")

    # -- rebalance

    async def _rebalance_forever(self) -> None:
        interval_s = self._instance.settings.rebalance_interval_ms / 1000
        while True:
            self._rebalance_wanted.clear()
            complete = await self._rebalance()
            try:
                async with asyncio.timeout(interval_s if complete else 0.5):
                    await self._rebalance_wanted.wait()
            except TimeoutError:
                pass

    async def _rebalance(self) -> bool:
        wanted: set[MessageQueue] = set()
        calls = BrokerCalls(
            self._instance,
            self.group,
            ConsumerSettings(),
            self._reader.offsets,
            ordered=False,
            subscriptions=self._subscriptions,
            post=lambda _event: None,
            now_ms=lambda: 0,
        )
        for topic in self._subscriptions:
            try:
                route = await self._instance.route(topic)
            except (OrderlyMQError, BrokerError):
                return False
            members = await calls.members(topic)
            if members is None or self._instance.client_id not in members:
                await self._instance.beat_all()
                return False
            me = self._instance.client_id
            wanted |= set(assign(self._strategy, self.group, me, route.subscribe, members))
        leaving = self._positions.keys() - wanted
        if leaving and self.auto_commit:
            await self.commit()
        self._take(wanted)
        return True

    # -- as the instance sees it

    def heartbeat(self) -> ConsumerData:
        """Return what brokers are told about this consumer."""
        return ConsumerData(
            self.group,
            CONSUME_ACTIVELY,
            CLUSTERING,
            self._consume_from.value,
            tuple(each.data for each in self._subscriptions.values()),
        )

    def on_request(
        self, command: RemotingCommand, _reply: Callable[[RemotingCommand], None]
    ) -> bool:
        """Divide again when the group's members changed."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance_wanted.set()
            return True
        return False

    def routes_changed(self, topic: str) -> None:
        """Divide again when a subscribed topic has other queues."""
        if topic in self._subscriptions:
            self._rebalance_wanted.set()
