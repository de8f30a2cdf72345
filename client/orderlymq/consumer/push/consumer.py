"""
The push consumer: subscribes, takes part in its group's rebalance, calls a listener.

This is the shell around the pure cores `ordered` and `concurrent`: it turns their instructions into tasks, and the
results of the tasks into events. Rules: every change of the core happens on the loop, between two awaits. Every task
has a name and ends with the consumer. Closing finishes the running listeners, commits, gives the locks back and leaves
the consumer group, in this order.

`brokercalls` calls brokers, `listeners` calls the listener, `loops` serves `async for`, `group.rebalance` finds the
queues, `brokerrequests` answers brokers.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal

from orderlymq.connection.identity import BROADCAST_INSTANCE, NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.core.concurrent import ConcurrentConsumer
from orderlymq.consumer.core.events import Assigned, Closing, Event, Paused, Resumed, Tick
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.group.offsets import OffsetStore
from orderlymq.consumer.group.rebalance import Rebalance
from orderlymq.consumer.group.subscriptions import (
    Subscription,
    check_group,
    check_ordered,
    expressions,
    make_subscription,
)
from orderlymq.consumer.lanes.calls import LaneCalls
from orderlymq.consumer.lanes.core import LaneCore, LaneFigures
from orderlymq.consumer.lanes.executor import LaneExecutor
from orderlymq.consumer.listeners.context import ConsumeHook, Listener
from orderlymq.consumer.listeners.messageloop import Worker
from orderlymq.consumer.listeners.pool import ListenerPool, left_behind
from orderlymq.consumer.listeners.tracehook import TraceHook
from orderlymq.consumer.push.brokercalls import BrokerCalls, lease_clock_ms
from orderlymq.consumer.push.brokerrequests import InboundRequests
from orderlymq.consumer.push.coretimer import CoreTimer
from orderlymq.consumer.push.executor import Executor
from orderlymq.consumer.push.loops import LoopedConsumer
from orderlymq.consumer.push.parts import (
    check_settings,
    make_core,
    make_lane_core,
    make_listeners,
    make_offsets,
)
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, MessageModel
from orderlymq.consumer.stats import ConsumerStats, TopicCounters
from orderlymq.durations import milliseconds, seconds
from orderlymq.errors import SettingError, StateError, cannot_start
from orderlymq.message import ReceivedMessage
from orderlymq.ownedtasks import OwnedTasks, Shutdown
from orderlymq.producer.tracer import make_tracer
from orderlymq.settings import ClientSettings, settings_of
from orderlymq_protocol.body.catalogue import ConsumerData
from orderlymq_protocol.body.lanes import BY_KEY
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import retry_topic
from orderlymq_runtime.wallclock import machine_ms

_log = logging.getLogger(__name__)

# The minimum wait for cancelled listeners, which may need time to clean up.
_CANCEL_S_MIN: Final = 5.0


class Consumer(LoopedConsumer):
    """A member of a consumer group that calls a listener, or that a program loops over.

    Life cycle: CREATE_JUST, then RUNNING or START_FAILED, then SHUTDOWN_ALREADY. Use `start` and `close`, or `async
    with`, or `await consumer.run()` in a program that does nothing else.

    `async for message in consumer` gets one message at a time, each at least once. A message is done when the loop asks
    for the next one, or when the `async with` block ends without an error. If an exception leaves the block, the last
    message is delivered again. An exception that is caught inside the block counts as `break`, so catch a time-out
    outside. Only one loop can run at a time; for parallel work, give a listener or create more consumers.

    Args:
        group: the consumer group.
        name_servers: "host:port;host:port"; None takes them from the environment (ORDERLYMQ_NAME_SERVER, NAMESRV_ADDR),
            or else uses this machine.
        topics: a topic, several topics, or a mapping from topics to tag expressions (`"A || B"`).
        listener: function, async or not, that gets a sequence of messages and a context. The messages are done when it
            returns, unless it returns an `OrderedResult` or a `ConcurrentResult` that says otherwise. They are
            delivered again if it raises. Without a listener, loop over the consumer.
        ordered: True delivers one message after the other for each queue, under the queue's lock. "key" delivers one
            after the other for each key, and different keys in parallel; the group must have `concurrency: Key`. False
            delivers all messages in parallel.
        concurrency: number of listener calls at the same time; overrides `settings.consume_thread_max`.
        consume_from: `first`, `last` or `timestamp`: where to start if the group has no committed offset.
        message_model: clustering shares the messages among the members, broadcasting gives each member all of them.
        settings: all other settings; `concurrency`, `consume_from` and `message_model` override them.
        offset_store: store for the offsets, instead of the broker (clustering) or a local file (broadcasting).
        hooks: run around every listener call.
        trace: if true, or the name of a trace topic, report the outcome of each delivery to the trace topic.
        filters: functions that may drop pulled messages before the listener gets them.
    """

    _core: OrderedConsumer | ConcurrentConsumer | LaneCore

    def __init__(  # noqa: PLR0913 - what a user may say about a consumer
        self,
        group: str,
        name_servers: NameServers = None,
        *,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        listener: Listener | None = None,
        ordered: bool | Literal["key"] = False,
        concurrency: int | None = None,
        consume_from: ConsumeFrom | str | None = None,
        message_model: MessageModel | None = None,
        settings: ConsumerSettings | None = None,
        client_settings: ClientSettings | None = None,
        instance: ClientInstance | None = None,
        offset_store: OffsetStore | None = None,
        hooks: Sequence[ConsumeHook] = (),
        filters: Sequence[Callable[[list[ReceivedMessage]], list[ReceivedMessage]]] = (),
        trace: bool | str = False,
    ) -> None:
        check_group(group)
        check_ordered(ordered)
        self.by_key = ordered == "key"
        self.ordered = bool(ordered)
        self.settings = settings_of(ConsumerSettings, settings).but(
            consume_from, message_model, concurrency
        )
        if listener is None:
            self.settings = replace(self.settings, consume_message_batch_max_size=1)
        self.listener = listener
        self._subscriptions: dict[str, Subscription] = {}
        self._instance = instance or ClientInstance(
            name_servers,
            client_settings,
            instance_name="" if self._clustering else BROADCAST_INSTANCE,
        )
        self.group = self._instance.whole(group)
        self._offsets = offset_store or make_offsets(self._instance, self.group, self.settings)
        self._tracer = make_tracer(trace, self._instance, f"{group}-CONSUME", group)
        if self._tracer is not None:
            hooks = (*hooks, TraceHook(self._tracer, self._instance))
        self._hooks = hooks
        self._tasks = OwnedTasks()
        self._idle = asyncio.Event()
        self._timer = CoreTimer(lambda: self.post(Tick()))
        self._state = "CREATE_JUST"
        self._is_suspended = False
        self._ended = False
        self._over = asyncio.Event()
        self._starting: asyncio.Event | None = None
        self._is_closed = False
        self._shutdown = Shutdown()
        self._failure: BaseException | None = None
        self._stats = ConsumerStats()
        self._calls = BrokerCalls(
            self._instance,
            self.group,
            self.settings,
            self._offsets,
            ordered=self.ordered,
            subscriptions=self._subscriptions,
            post=self.post,
            now_ms=lease_clock_ms,
            stats=self._stats,
        )
        self._calls.filters.extend(filters)
        self._rebalance, self._executor = self._make_parts()
        self._inbound = InboundRequests(self)
        for topic, expression in expressions(topics).items():
            self.subscribe(topic, expression)

    # -- what users ask

    @property
    def client_id(self) -> str:
        """The id under which brokers know this client."""
        return self._instance.client_id

    @property
    def state(self) -> str:
        """CREATE_JUST, START_FAILED, RUNNING or SHUTDOWN_ALREADY."""
        return self._state

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that this member has or is trying to get."""
        return tuple(sorted(self._core.queues))

    @property
    def core(self) -> OrderedConsumer | ConcurrentConsumer:
        """The core of a consumer by queue, which makes its decisions; read only.

        Raises:
            StateError: The consumer consumes by key; see `lanes`.
        """
        if isinstance(self._core, LaneCore):
            raise StateError(f"the consumer {self.group} consumes by key and holds no queues")
        return self._core

    @property
    def lanes(self) -> LaneFigures | None:
        """The figures of a consumer by key; None for any other consumer."""
        return self._core.figures() if isinstance(self._core, LaneCore) else None

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """The subscriptions, including that to the group's retry topic."""
        return self._subscriptions

    def stats(self) -> Mapping[str, TopicCounters]:
        """Return rates, averages and totals by topic, under RocketMQ's names."""
        return self._stats.show(lease_clock_ms())

    @property
    def flow_control_times(self) -> int:
        """How often a pull of the current queues had to wait because the cache was full."""
        if self.by_key:
            return 0
        return sum(state.fetcher.flow_waits for state in self.core.queues.values())

    @property
    def instance(self) -> ClientInstance:
        """The connections, routes and heartbeats that the consumer uses."""
        return self._instance

    def subscribe(self, topic: str, expression: str = "*", *, kind: str = "TAG") -> None:
        """Subscribe to a topic; `*` selects all messages, `A || B` selects by tags, and the kind SQL92 by properties.

        Raises:
            SettingError: The topic's name or the expression is not allowed.
        """
        topic = self._instance.whole(topic)
        self._subscriptions[topic] = make_subscription(topic, expression, kind, machine_ms())
        if self._state == "RUNNING":
            self._tasks.start(self._announce(), "announce subscription")

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic."""
        self._subscriptions.pop(self._instance.whole(topic), None)
        self._rebalance.soon()

    def suspend(self) -> None:
        """Call no listener and pull nothing until `resume`; the consumer keeps its locks."""
        self._is_suspended = True
        self.post(Paused())

    def resume(self) -> None:
        """Continue after `suspend`."""
        self._is_suspended = False
        self.post(Resumed())

    @property
    def is_suspended(self) -> bool:
        """Whether the consumer is suspended: `suspend` was called, and `resume` was not called since."""
        return self._is_suspended

    # -- life

    async def start(self) -> None:
        """Join the consumer group and start to consume in the background.

        Raises:
            StateError: The consumer was started before, or was closed while it started; or the instance already has a
                consumer of this group.
            SettingError: The consumer has no topic, or a listener that cannot be called; or the group is of the other
                kind, by key or by queue.
            BrokerError: The broker does not support an SQL subscription.
        """
        if self._state != "CREATE_JUST":
            raise cannot_start(f"the consumer {self.group}", self._state)
        check_settings(
            self.group, self.settings, self._subscriptions, self.listener, by_key=self.by_key
        )
        _log.info(
            "the consumer [%s] start beginning. messageModel=%s, isUnitMode=%s",
            *(self.group, self.settings.message_model.value, self._instance.settings.unit_mode),
        )
        self._state = "START_FAILED"
        self._starting = asyncio.Event()
        try:
            await self._join()
        finally:
            self._starting.set()
        _log.info("the consumer [%s] start OK. clientId=%s", self.group, self.client_id)

    async def _join(self) -> None:
        if self._clustering and not self.by_key:
            own_retry = retry_topic(self.group)
            self._subscriptions[own_retry] = make_subscription(own_retry, "*", "TAG", machine_ms())
        await self._offsets.load()
        self._check_open()
        self._executor.listeners, self._loop = make_listeners(
            self.group, self.settings, self.listener, self._hooks, ordered=self.ordered
        )
        try:
            self._instance.heartbeats.add_consumer(self)
        except StateError:
            self._state = "CREATE_JUST"
            raise
        await self._instance.start()
        try:
            await self._calls.find_routes()
            self._check_open()
            await self._calls.check_sql()
            self._check_open()
            await self._executor.prepare(self._subscriptions, self._instance.heartbeats.beat_all)
            self._check_open()
            if self._tracer is not None:
                await self._tracer.start()
        except BaseException:  # a cancellation, too: no caller closes a consumer that did not start
            self._shutdown.begin(self._abandon(), f"abandoned start of {self.group}")
            await self._shutdown.wait()
            raise
        self._state = "RUNNING"
        self._tasks.keep(self._rebalance.run, f"rebalance of {self.group}", self._failed)
        self._tasks.keep(self._persist_forever, f"persist offsets of {self.group}", self._failed)

    def _check_open(self) -> None:
        if self._is_closed:
            raise StateError(f"the consumer {self.group} was closed while it started")

    async def close(self) -> None:
        """Finish the running listeners, commit, give back the locks and lanes, leave the consumer group.

        The call waits `shutdown_timeout` for the listeners. Then it cancels the async ones and waits for the same time
        again, at least 5 s. A thread cannot be cancelled, and a coroutine may catch its cancellation and continue; both
        may outlive this call. Their results are then not acknowledged, and their queue or lane becomes free only when
        the lease ends.

        The body of an `async for` may outlive this call, too. It keeps its message, which is done if the loop asks for
        the next one in time. If the body itself or the listener calls `close`, the call returns first and the consumer
        ends after that work; to wait for the end, call `close` again afterwards.

        If this call is cancelled, the consumer ends all the same, and a later call waits for that. A start that is
        under way is abandoned.
        """
        await self._close_by(asyncio.current_task())

    async def _close_by(self, worker: Worker) -> bool:
        """Close on behalf of a task or thread; return False if it must first finish its own work on a message."""
        starting = self._starting
        if self._state == "RUNNING" or (starting is not None and not starting.is_set()):
            self._instance.check_caller()
        self._is_closed = True
        if starting is not None:
            await starting.wait()
        if self._state == "CREATE_JUST":
            self._state = "SHUTDOWN_ALREADY"
        elif self._state == "RUNNING":
            self._state = "SHUTDOWN_ALREADY"
            self.post(Closing())
            self._shutdown.begin(self._shut_down(), f"shutdown of {self.group}")
        if self._loop is not None and not self._ended:
            self._loop.end(worker)
        is_at_work = self._loop is not None and self._loop.is_at_work(worker)
        if self.listeners is not None and self.listeners.is_calling(worker):
            is_at_work = True
        if is_at_work and not self._ended:
            # Commit the done messages now, so that they are not delivered again even if the program ends with this
            # call.
            await self._executor.persist(list(self._core.queues))
            return False
        await self._shutdown.wait()
        return True

    async def _abandon(self) -> None:
        keep = self.ordered and bool(left_behind(self.client_id, self.group, lease_clock_ms()))
        await self._instance.heartbeats.remove_consumer(self, keep_locks=keep)
        await self._instance.close()

    @property
    def _cancel_s(self) -> float:
        return max(seconds(self.settings.shutdown_timeout), _CANCEL_S_MIN)

    async def _shut_down(self) -> None:
        try:
            async with asyncio.timeout(seconds(self.settings.shutdown_timeout)):
                await self._idle.wait()
        except TimeoutError:
            _log.warning(
                "the consumer [%s] was closed while listeners still ran. Async ones are cancelled now. Queues and lanes of "
                "threads, of loops, and of async listeners that continue become free when their leases end: %s",
                *(self.group, sorted(self._core.queues)),
            )
        finally:  # the end of the loop cancels this, too, if a program ends without waiting
            try:
                await self._executor.finish(self._cancel_s)
            finally:
                await self._end()

    async def _end(self) -> None:
        self._ended = True
        self._timer.stop()
        await self._leave()
        await self._tasks.cancel(self._cancel_s)
        try:
            if self._tracer is not None:
                await self._tracer.close()
        finally:
            await self._instance.close()
            self._over.set()
        _log.info("the consumer [%s] shutdown OK", self.group)

    async def _leave(self) -> None:
        """Leave the group, which frees all locks and lanes; queues of a listener that still works stay locked until the lease ends."""
        assert self.listeners is not None
        kept = None
        if self.ordered:
            kept = self.listeners.leave_behind(
                self.client_id,
                by_key=self.by_key,
                now_ms=lease_clock_ms(),
                lease_ms=milliseconds(self.settings.lock_lease),
            )
        if kept and not self.by_key:
            await self._calls.give_locks(set(self._core.queues) - kept)
        await self._instance.heartbeats.remove_consumer(self, keep_locks=bool(kept))

    async def run(self) -> None:
        """Start, consume until `close` is called or this call is cancelled, and close.

        If the consumer is started already, this call only waits for its end. If it is being closed, this call waits
        until `close` is done.

        Raises:
            StateError, SettingError, BrokerError: As `start`; also if there is no listener, or if an earlier start
                failed.
            Exception: The error that ended a background task of the consumer.
        """
        if self.listener is None:
            raise SettingError(f"the consumer {self.group} has no listener; pass listener=")
        if self._starting is not None:
            await self._starting.wait()
        try:
            if self._state != "RUNNING" and not self._is_closed:
                await self.start()
        except StateError:
            if not self._is_closed:
                raise
        try:
            if self._state == "RUNNING":
                await self._over.wait()
        finally:
            await self.close()
        if self._failure is not None:
            raise self._failure

    def _failed(self, error: BaseException) -> None:
        """End `run` and loops with the error; without either, the background task is started again."""
        if isinstance(error, asyncio.CancelledError):
            error = StateError(f"a background task of the consumer {self.group} was cancelled")
        self._failure = error
        self._over.set()
        if self._loop is not None:
            self._loop.end(error=error)

    # -- the core and its instructions

    def post(self, event: Event) -> None:
        """Pass an event to the core and perform its instructions."""
        if self._ended:
            return  # a listener that was cut off at the end of `close` ended after it
        self._executor.handle(event, lease_clock_ms())
        self._moved()

    def _moved(self) -> None:
        """Set the timer to the core's next wake time after an event, and notice when a closing core has become idle."""
        if self._state == "SHUTDOWN_ALREADY" and self._core.is_idle:
            self._idle.set()
        self._timer.set(self._core.next_wake_ms())

    # -- rebalance

    def rebalance_now(self) -> None:
        """Rebalance now; brokers send a notification when the members of the consumer group change."""
        self._rebalance.soon()

    async def _assigned(self, queues: frozenset[MessageQueue]) -> None:
        if self._state == "RUNNING":
            self.post(Assigned(queues))

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(seconds(self._instance.settings.persist_consumer_offset_interval))
            await self._executor.persist(list(self._core.queues))

    # -- what the instance and brokers ask

    def heartbeat(self) -> ConsumerData:
        """Return the data that heartbeats send about this consumer."""
        return ConsumerData(
            self.group,
            message_model=self.settings.message_model.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=tuple(each.data for each in self._subscriptions.values()),
            unit_mode=self._instance.settings.unit_mode,
            concurrency=BY_KEY if self.by_key else None,
        )

    def on_request(
        self, command: RemotingCommand, reply: Callable[[RemotingCommand], None]
    ) -> bool:
        """Serve a request of a broker; return whether the consumer serves such requests."""
        # Serve a reset while closing, too: the last commit must not undo it.
        is_reset = command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET
        if self._state != "RUNNING" and not (is_reset and self._state == "SHUTDOWN_ALREADY"):
            return False
        return self._inbound.serve(command, reply, self._tasks)

    def routes_changed(self, topic: str) -> None:
        """Rebalance when a subscribed topic has other queues."""
        if topic in self._subscriptions:
            self._rebalance.soon()

    @property
    def listeners(self) -> ListenerPool | None:
        """The workers, None before the start."""
        return self._executor.listeners

    # -- parts of start

    @property
    def _clustering(self) -> bool:
        return self.settings.message_model is MessageModel.CLUSTERING

    def _make_parts(self) -> tuple[Rebalance, Executor | LaneExecutor]:
        rebalance = Rebalance(
            self._instance,
            self._calls,
            self.group,
            self.settings,
            topics=self._subscriptions,
            everything=self.by_key,
            present=lambda: self._core.queues,
            assigned=self._assigned,
        )
        if self.by_key:
            return rebalance, self._make_lanes()
        core = make_core(self.group, self.settings, ordered=self.ordered)
        self._core = core
        executor = Executor(
            self.group,
            core,
            self._calls,
            self._offsets,
            self._tasks,
            self._stats,
            post=self.post,
            now_ms=lease_clock_ms,
        )
        return rebalance, executor

    def _make_lanes(self) -> LaneExecutor:
        workers = 1 if self.listener is None else self.settings.consume_thread_max
        self._core = core = make_lane_core(self.settings, workers, machine_ms())
        calls = LaneCalls(
            self._instance,
            self.group,
            self.settings,
            subscriptions=self._subscriptions,
            filtered=self._calls.filtered,
            now_ms=lease_clock_ms,
            stats=self._stats,
        )
        return LaneExecutor(
            self.group,
            core,
            calls,
            self._tasks,
            self._stats,
            moved=self._moved,
            failed=self._failed,
            now_ms=lease_clock_ms,
        )

    async def _announce(self) -> None:
        await self._calls.find_routes()
        await self._instance.heartbeats.beat_all()
        self._rebalance.soon()
