"""
The lite pull consumer: `poll` returns the next messages; the consumer keeps and commits the offsets.

Rules: this object holds the positions, and only `seek` sets them from outside. A message counts as done when the caller
calls `poll` again, or says so by `commit`. Auto-commit commits only what is done, also when a queue goes to another
member and when the consumer is closed, so messages may be repeated but are never skipped. Queues with messages take
turns. A paused queue keeps its position. Use either `subscribe` (queues are divided among the consumer group's members)
or `assign`. Only one task or thread may poll.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from typing import Final

from orderlymq.connection.identity import NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import AssignmentStrategy, Averagely
from orderlymq.consumer.group.calls import TROUBLE, GroupCalls
from orderlymq.consumer.group.rebalance import Rebalance
from orderlymq.consumer.group.requests import PullStatus, is_sent_away
from orderlymq.consumer.group.subscriptions import Subscription, make_subscription
from orderlymq.consumer.pull.groupreader import SUSPEND_MS, SUSPENDED_TIMEOUT_S, GroupReader
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, parse_consume_from
from orderlymq.durations import Duration, seconds
from orderlymq.errors import BodyUnreadable, PullError, SettingError, StateError
from orderlymq.message import ReceivedMessage
from orderlymq.ownedtasks import RESTART_S, OwnedTasks
from orderlymq.settings import ClientSettings
from orderlymq_protocol.body.catalogue import CLUSTERING, CONSUME_ACTIVELY, ConsumerData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.process.waits import wait_for
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

# RocketMQ's lite pull consumer pulls 10 at a time and keeps at most 1000 messages or 100 MiB per queue, plus one pull.
_PULL_COUNT: Final = 10
_CACHED_MAX: Final = 1_000
_CACHED_BYTES_MAX: Final = 100 * 1024 * 1024
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0


class _Position:
    """The state of one queue: the next offset, the buffered messages, the returned messages.

    Attributes:
        handed: the offset after the last message that `poll` returned.
        done: the part of `handed` that the caller has finished; only this may be committed.
        unreadable: the error of the message after the buffer; nothing is pulled until `seek`.
        refusal: the error of the last pull, if the next pull would be refused, too.
    """

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.next_offset: int | None = None
        self.handed: int | None = None
        self.done: int | None = None
        self.buffer: deque[ReceivedMessage] = deque()
        self.unreadable: BodyUnreadable | None = None
        self.refusal: PullError | None = None
        self.is_paused = False
        self.task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether the next pull waits until the caller has taken messages."""
        size_bytes = sum(message.size_bytes for message in self.buffer)
        return len(self.buffer) >= _CACHED_MAX or size_bytes >= _CACHED_BYTES_MAX


class LitePullConsumer(GroupReader):
    """A consumer whose caller polls for messages.

    Args:
        auto_commit: if true, `poll` commits the messages that earlier calls returned; if false, only `commit` does.
        consume_from: where to start if the consumer group has no committed offset.
    """

    def __init__(  # noqa: PLR0913 - what a user may say about a consumer
        self,
        group: str,
        name_servers: NameServers = None,
        *,
        auto_commit: bool = True,
        auto_commit_interval: Duration = 5,
        consume_from: ConsumeFrom | str = ConsumeFrom.LAST,
        pull_batch_size: int = _PULL_COUNT,
        strategy: AssignmentStrategy | None = None,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        super().__init__(group, name_servers, client_settings=client_settings, instance=instance)
        if not 1 <= pull_batch_size <= 1024:
            raise SettingError(f"pull_batch_size is {pull_batch_size}; it must be in [1, 1024]")
        self._auto_commit_s = seconds(auto_commit_interval)
        if self._auto_commit_s < 1:
            raise SettingError(
                f"auto_commit_interval is {self._auto_commit_s} seconds; it must be at least 1"
            )
        self.auto_commit = auto_commit
        self._consume_from = parse_consume_from(consume_from)
        self._count = pull_batch_size
        settings = ConsumerSettings(
            consume_from=self._consume_from,
            allocate_message_queue_strategy=strategy or Averagely(),
        )
        self._subscriptions: dict[str, Subscription] = {}
        self._calls = GroupCalls(
            self._instance, self.group, settings, self._reader.offsets, self._subscriptions
        )
        self._assigned = False
        self._positions: dict[MessageQueue, _Position] = {}
        self._rebalance = Rebalance(
            self._instance,
            self._calls,
            self.group,
            settings,
            topics=self._subscriptions,
            everything=False,
            present=lambda: self._positions,
            assigned=self._take_share,
        )
        self._tasks = OwnedTasks()
        self._arrived = asyncio.Event()
        self._commit_due_s = 0.0
        self._committing: asyncio.Task[None] | None = None

    # -- life

    async def start(self) -> None:
        """Start to fill the buffers.

        Raises:
            StateError: The consumer was started before, or was closed while it started.
            TopicNotFound: No broker has a topic.
            BrokerUnreachable: The routes or brokers cannot be reached.
        """
        await super().start()
        try:
            for topic in self._subscriptions:
                await self._instance.route(topic)
            await self._instance.heartbeats.beat_all()
            if self._state != "RUNNING":
                raise StateError(f"the consumer {self.group} was closed while it started")
        except BaseException:  # a cancellation, too: no caller closes a consumer that did not start
            await self.close()
            raise
        if self._subscriptions:
            self._tasks.keep(self._rebalance.run, f"rebalance of {self.group}")
        for position in self._positions.values():
            if position.task is None:  # `assign` may have been called while this call waited
                self._start_pulling(position)

    async def close(self) -> None:
        """Commit the done messages (with auto-commit) and end.

        Messages of the last `poll` are delivered again unless `commit` was called, because the caller of `close` may
        not be the task that works on them. If this call is cancelled, the consumer ends all the same, and a later call
        waits for that.
        """
        await super().close()

    async def _finish(self) -> None:
        self._arrived.set()  # wakes a waiting poll, so that it ends
        if self.auto_commit:
            await self._commit_done()
        await self._tasks.cancel()

    # -- what to read

    def subscribe(self, topic: str, expression: str = "*", *, kind: str = "TAG") -> None:
        """Take a share of a topic's queues; the kind SQL92 selects by properties at the broker.

        Raises:
            StateError: Queues were assigned by `assign` before, or the consumer was started already.
        """
        if self._assigned or self._state != "CREATE_JUST":
            raise StateError("subscribe before start, and not together with assign")
        topic = self._instance.whole(topic)
        self._subscriptions[topic] = make_subscription(topic, expression, kind, machine_ms())

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; may be called again.

        Raises:
            StateError: The consumer subscribes to topics.
        """
        if self._subscriptions:
            raise StateError("assign cannot be used together with subscribe")
        wanted = {self._place(queue) for queue in queues}
        self._assigned = True
        self._take(wanted)

    @property
    def assignment(self) -> tuple[MessageQueue, ...]:
        """The queues that the consumer reads now."""
        return tuple(sorted(self._positions))

    # -- reading

    async def poll(self, timeout: Duration = 5, count: int = 32) -> list[ReceivedMessage]:
        """Return up to *count* messages, in order for each queue; return an empty list after *timeout*.

        This call marks the messages of earlier calls as done.

        Raises:
            StateError: The consumer does not run, or was closed during the call.
            BodyUnreadable: The next message has a body that cannot be inflated. Its queue stands still until `seek`
                skips the message by going to the offset after its `offset`.
            PullError: There was nothing to return, and a broker refuses a queue until its configuration is changed.
        """
        if self._state != "RUNNING":
            raise StateError(f"the consumer is not running (state {self._state})")
        loop = asyncio.get_running_loop()
        self._mark_done()
        self._auto_commit(loop.time())
        deadline = loop.time() + seconds(timeout)
        while True:
            found = self._collect(count)
            if found:
                return found
            if loop.time() >= deadline:
                self._check_refused()
                return []
            self._arrived.clear()
            await wait_for(self._arrived, deadline - loop.time())
            if self._state != "RUNNING":
                raise StateError(f"the consumer {self.group} was closed while this call ran")

    def _check_refused(self) -> None:
        for position in self._positions.values():
            if position.refusal is not None and not position.is_paused:
                raise position.refusal.with_traceback(None)

    def _collect(self, count: int) -> list[ReceivedMessage]:
        """Take one message from each queue in turn, so that a busy queue does not starve the others."""
        found: list[ReceivedMessage] = []
        ready = deque(
            p for p in self._positions.values() if (p.buffer or p.unreadable) and not p.is_paused
        )
        while ready and len(found) < count:
            position = ready.popleft()
            if not position.buffer and found:
                continue  # the next poll raises its error first
            # This queue is now the last in line, in the next poll too.
            self._positions[position.queue] = self._positions.pop(position.queue)
            if not position.buffer and position.unreadable is not None:
                raise position.unreadable.with_traceback(None)
            message = position.buffer.popleft()
            position.handed = message.queue_offset + 1
            found.append(message)
            if position.buffer:
                ready.append(position)
            elif position.next_offset is not None:
                # No message that was pulled after this one matched the subscription.
                position.handed = max(position.handed, position.next_offset)
        return found

    def take_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Return these messages again by the next `poll`: the last call returned them, but the application did not see them."""
        for message in reversed(messages):
            position = self._positions.get(message.queue)
            if position is not None:
                position.buffer.appendleft(message)
                position.handed = position.done

    def _mark_done(self) -> None:
        for position in self._positions.values():
            position.done = position.handed

    async def commit(self) -> None:
        """Commit the offsets of all messages that `poll` has returned; the caller has finished them.

        Raises:
            BrokerUnreachable, BrokerError: A queue could not be committed; the others are committed, and the next call
                tries again.
        """
        self._mark_done()
        self._remember_done()
        offsets = self._reader.offsets
        commits = map(offsets.commit, offsets.changed(self._positions))
        for outcome in await asyncio.gather(*commits, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _auto_commit(self, now_s: float) -> None:
        """Start to commit the done messages at the interval, unless the last commit still runs; `poll` does not wait for it."""
        if not self.auto_commit or now_s < self._commit_due_s:
            return
        if self._committing is None or self._committing.done():
            self._commit_due_s = now_s + self._auto_commit_s
            self._committing = self._tasks.start(self._commit_done(), f"commit of {self.group}")

    async def _commit_done(self) -> None:
        self._remember_done()
        await self._reader.offsets.persist(list(self._positions))

    def _remember_done(self) -> None:
        for position in self._positions.values():
            if position.done is not None:
                self._reader.offsets.update(
                    position.queue, position.done, epoch=None, increase_only=False
                )

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Continue at *offset* and drop the buffered messages.

        Raises:
            SettingError: The queue is not assigned, or the offset is negative.
        """
        position = self._positions.get(self._place(queue, offset))
        if position is None:
            raise SettingError(f"{queue} is not assigned to this consumer; assign it first")
        if offset < 0:
            raise SettingError(f"offset {offset} is negative")
        position.next_offset = offset
        position.handed = position.done = offset
        position.buffer.clear()
        position.unreadable = None
        self._restart(position)

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue at the oldest message."""
        self.seek(queue, await self._reader.min_offset(self._place(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue at the next message that is stored."""
        self.seek(queue, await self._reader.max_offset(self._place(queue)))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`."""
        self._pause(queues, is_paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Continue with paused queues."""
        self._pause(queues, is_paused=False)
        self._arrived.set()

    def _pause(self, queues: Iterable[MessageQueue], *, is_paused: bool) -> None:
        for queue in queues:
            if position := self._positions.get(self._place(queue)):
                position.is_paused = is_paused

    # -- pulling

    def _take(self, wanted: Set[MessageQueue]) -> None:
        for queue in self._positions.keys() - wanted:
            task = self._positions.pop(queue).task
            # Another member may commit from now on; an offset remembered here must not overwrite it.
            self._reader.offsets.remove(queue)
            if task is not None:
                self._tasks.stop(task)
        for queue in sorted(wanted - self._positions.keys()):
            position = self._positions[queue] = _Position(queue)
            if self._state == "RUNNING":
                self._start_pulling(position)

    def _start_pulling(self, position: _Position) -> None:
        def lost(_error: BaseException) -> None:
            asyncio.get_running_loop().call_later(RESTART_S, self._pull_again, position, task)

        work = self._pull_forever(position)
        task = position.task = self._tasks.start(work, f"pull {position.queue}", lost)

    def _pull_again(self, position: _Position, ended: asyncio.Task[None]) -> None:
        current = self._positions.get(position.queue) is position and position.task is ended
        if self._state == "RUNNING" and current:
            self._start_pulling(position)

    def _restart(self, position: _Position) -> None:
        if position.task is not None:
            self._tasks.stop(position.task)
            self._start_pulling(position)

    async def _pull_forever(self, position: _Position) -> None:
        delay_s = _RETRY_FIRST_S
        while True:
            if position.is_full or position.is_paused or position.unreadable is not None:
                await asyncio.sleep(0.05)  # how long RocketMQ delays a pull under flow control
                continue
            try:
                if position.next_offset is None:
                    position.next_offset, _ = await self._calls.start_offset(position.queue)
                await self._pull_once(position, position.next_offset)
            except BodyUnreadable as error:
                position.unreadable = error
                self._arrived.set()
            except Exception as error:
                # An unreadable answer is no trouble of the cluster: the same answer would come again.
                if isinstance(error, ValueError) or not isinstance(error, TROUBLE):
                    _log.exception("the pull of %s failed and is tried again", position.queue)
                else:
                    position.refusal = self._not_pulled(position.queue, error)
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
            suspend_ms=SUSPEND_MS,
            timeout_s=SUSPENDED_TIMEOUT_S,
            lite=True,
        )
        position.refusal = None
        self._pulled(position.queue)
        if is_sent_away(result, offset):
            raise PullError(f"the broker ended a pull of {position.queue} early")
        position.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return
        position.buffer.extend(result.messages)
        if not position.buffer:
            # No message matched: the offset still advances after the messages handed out are done.
            position.handed = result.next_offset
        self._arrived.set()

    # -- rebalance

    async def _take_share(self, wanted: frozenset[MessageQueue]) -> None:
        if self._positions.keys() - wanted and self.auto_commit:
            await self._commit_done()
        self._take(wanted)

    # -- as the instance sees it

    def heartbeat(self) -> ConsumerData:
        """Return the data that heartbeats send about this consumer."""
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
        """Rebalance when the members of the consumer group have changed."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance.soon()
            return True
        return False

    def routes_changed(self, topic: str) -> None:
        """Rebalance when a subscribed topic has other queues."""
        if topic in self._subscriptions:
            self._rebalance.soon()
