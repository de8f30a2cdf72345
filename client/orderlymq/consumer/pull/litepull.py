"""
The lite pull consumer: `poll` gives the next messages, offsets are kept and committed.

Rules: positions belong to this object until `seek` moves them; a message counts as done when the caller comes
back for the next `poll`, or says so by `commit`. Auto-commit commits what is done and nothing else, also when a
queue goes to another member and when the consumer is closed, so that messages are repeated and never skipped.
Queues with messages take turns. A paused queue keeps its position. Either `subscribe` (queues are divided among the
group's members) or `assign`. One task or thread polls.
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

# RocketMQ's lite pull consumer pulls 10 at a time and keeps at most 1000 or 100 MiB per queue, one pull more at the worst.
_PULL_COUNT: Final = 10
_CACHED_MAX: Final = 1_000
_CACHED_BYTES_MAX: Final = 100 * 1024 * 1024
_RETRY_FIRST_S: Final = 0.02
_RETRY_MAX_S: Final = 1.0


class _Position:
    """One queue: the next offset, the buffered messages, the returned messages.

    Attributes:
        handed: one past the last message that `poll` returned.
        done: what of it the caller has come back from; only this may be committed.
        unreadable: the message behind the buffer; nothing is pulled until `seek`.
        refusal: why its last pull was refused, if the next one will be, too.
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
        """Whether the next pull waits until the caller has taken something."""
        size_bytes = sum(message.size_bytes for message in self.buffer)
        return len(self.buffer) >= _CACHED_MAX or size_bytes >= _CACHED_BYTES_MAX


class LitePullConsumer(GroupReader):
    """Polls messages.

    Args:
        auto_commit: `poll` commits the messages returned before; else `commit` does.
        consume_from: for a group without a committed offset.
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
        """Begin to fill the buffers.

        Raises:
            StateError: It was started before, or is closed meanwhile.
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
        except BaseException:  # a cancellation, too: nobody closes what did not start
            await self.close()
            raise
        if self._subscriptions:
            self._tasks.keep(self._rebalance.run, f"rebalance of {self.group}")
        for position in self._positions.values():
            if position.task is None:  # `assign` may have been called meanwhile
                self._start_pulling(position)

    async def close(self) -> None:
        """Commit (with auto-commit) the done messages, and end.

        Messages of the last `poll` are delivered again unless `commit` was called: the caller that closes may not be
        the one that works on it. A cancelled call ends it all the same, a later one waits for that.
        """
        await super().close()

    async def _finish(self) -> None:
        self._arrived.set()  # a poll that waits ends
        if self.auto_commit:
            await self._commit_done()
        await self._tasks.cancel()

    # -- what to read

    def subscribe(self, topic: str, expression: str = "*", *, kind: str = "TAG") -> None:
        """Take a share of a topic's queues; kind SQL92 selects by properties at the broker.

        Raises:
            StateError: Queues were assigned by hand before, or the consumer runs already.
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
        """Return the queues that are read now."""
        return tuple(sorted(self._positions))

    # -- reading

    async def poll(self, timeout: Duration = 5, count: int = 32) -> list[ReceivedMessage]:
        """Return up to *count* messages, in order per queue; an empty list after *timeout*.

        Messages of earlier calls are done from now on.

        Raises:
            StateError: The consumer does not run, or was closed meanwhile.
            BodyUnreadable: It is the turn of a message whose body cannot be inflated. `seek` to behind its `offset`
                leaves it out; until then its queue stands still.
            PullError: A broker refuses a queue until somebody changes something, and there was nothing to return.
        """
        if self._state != "RUNNING":
            raise StateError(f"the consumer does not run (state {self._state})")
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
        """Take one message of each queue in turn, so that a busy one does not starve the rest."""
        found: list[ReceivedMessage] = []
        ready = deque(
            p for p in self._positions.values() if (p.buffer or p.unreadable) and not p.is_paused
        )
        while ready and len(found) < count:
            position = ready.popleft()
            if not position.buffer and found:
                continue  # the next poll begins with its error
            # Last in line from here on, in the next poll too.
            self._positions[position.queue] = self._positions.pop(position.queue)
            if not position.buffer and position.unreadable is not None:
                raise position.unreadable.with_traceback(None)
            message = position.buffer.popleft()
            position.handed = message.queue_offset + 1
            found.append(message)
            if position.buffer:
                ready.append(position)
            elif position.next_offset is not None:
                # What was pulled behind it matched nothing.
                position.handed = max(position.handed, position.next_offset)
        return found

    def take_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Return these again by the next `poll`: they were returned by the last one, and nobody has seen them."""
        for message in reversed(messages):
            position = self._positions.get(message.queue)
            if position is not None:
                position.buffer.appendleft(message)
                position.handed = position.done

    def _mark_done(self) -> None:
        for position in self._positions.values():
            position.done = position.handed

    async def commit(self) -> None:
        """Commit everything that `poll` has returned: the caller says that it is done.

        Raises:
            BrokerUnreachable, BrokerError: A queue could not be committed; the others are, and the next call tries again.
        """
        self._mark_done()
        self._remember_done()
        offsets = self._reader.offsets
        commits = map(offsets.commit, offsets.changed(self._positions))
        for outcome in await asyncio.gather(*commits, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    def _auto_commit(self, now_s: float) -> None:
        """Begin to commit the done messages, at the interval; one that a broker does not answer is waited for, and not by `poll`."""
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
        """Go on at *offset* and forget buffered messages.

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
        """Go on at the oldest message."""
        self.seek(queue, await self._reader.min_offset(self._place(queue)))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on at the next message that will be stored."""
        self.seek(queue, await self._reader.max_offset(self._place(queue)))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing of these queues out until `resume`."""
        self._pause(queues, is_paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with paused queues."""
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
            # Another member may commit meanwhile; what was remembered here must not come back.
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
                await asyncio.sleep(0.05)  # RocketMQ's wait of a pull under flow control
                continue
            try:
                if position.next_offset is None:
                    position.next_offset, _ = await self._calls.start_offset(position.queue)
                await self._pull_once(position, position.next_offset)
            except BodyUnreadable as error:
                position.unreadable = error
                self._arrived.set()
            except Exception as error:
                # An answer that cannot be read is no trouble of the cluster: it comes again and again.
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
            raise PullError(f"a pull of {position.queue} was sent away")
        position.next_offset = result.next_offset
        if result.status is PullStatus.OFFSET_ILLEGAL:
            return
        position.buffer.extend(result.messages)
        if not position.buffer:
            # Nothing matched: the group moves on all the same, once what was handed out is done.
            position.handed = result.next_offset
        self._arrived.set()

    # -- rebalance

    async def _take_share(self, wanted: frozenset[MessageQueue]) -> None:
        if self._positions.keys() - wanted and self.auto_commit:
            await self._commit_done()
        self._take(wanted)

    # -- as the instance sees it

    def heartbeat(self) -> ConsumerData:
        """Return what heartbeats say about this consumer."""
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
        """Rebalance when the group's members changed."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._rebalance.soon()
            return True
        return False

    def routes_changed(self, topic: str) -> None:
        """Rebalance when a subscribed topic has other queues."""
        if topic in self._subscriptions:
            self._rebalance.soon()
