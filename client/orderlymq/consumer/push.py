"""
The push consumer: subscribes, takes part in its group's rebalance, calls a listener.

The shell around the pure cores `ordered` and `concurrent`: it turns their instructions into tasks and
what comes of those into events. Rules: everything that changes the core happens on the loop, between two
awaits; every task has a name and ends with the consumer; closing finishes the running listeners, commits,
gives the locks back and leaves the group, in this order.
`brokercalls` calls brokers, `listeners` calls the listener, `inbound` answers brokers.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, Self, assert_never

from orderlymq.connection.identity import BROADCAST_INSTANCE, NameServers
from orderlymq.connection.instance import ClientInstance
from orderlymq.consumer.assignment import assign
from orderlymq.consumer.brokercalls import BrokerCalls
from orderlymq.consumer.contexts import ConsumeHook, Listener
from orderlymq.consumer.core.concurrent import ConcurrentConsumer
from orderlymq.consumer.core.events import (
    AskLocks,
    Assigned,
    Closing,
    DeadLetter,
    Deliver,
    DeliveryDropped,
    Event,
    FindStart,
    Instruction,
    ListenerStarted,
    Paused,
    Persist,
    Pull,
    Release,
    Released,
    Report,
    Resumed,
    SendBack,
    SetOffset,
    StopPull,
    Tick,
    failure,
)
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.inbound import InboundRequests
from orderlymq.consumer.listeners import ListenerPool
from orderlymq.consumer.offsets import BrokerOffsets, LocalOffsets, OffsetStore, local_offsets_path
from orderlymq.consumer.rules import make_core
from orderlymq.consumer.settings import ConsumeFrom, ConsumerSettings, MessageModel
from orderlymq.consumer.stats import ConsumerStats, TopicCounters
from orderlymq.consumer.subscriptions import Subscription, check_group, make_subscription
from orderlymq.consumer.tracehook import TraceHook
from orderlymq.errors import (
    BrokerError,
    NameServersUnreachable,
    OrderlyMQError,
    SettingError,
    StateError,
    TopicNotFound,
)
from orderlymq.message import ReceivedMessage
from orderlymq.producer.tracer import make_tracer
from orderlymq.settings import ClientSettings
from orderlymq.tasks import OwnedTasks, wait_for
from orderlymq_protocol.body.catalogue import ConsumerData
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.names import retry_topic

_log = logging.getLogger(__name__)

# A topic that does not exist yet, the own retry topic in the first second above all, is looked for soon
# and then ever less often, up to the rebalance interval.
_MISSING_FIRST_S: Final = 0.2
_LEVELS: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}


class Consumer:
    """A member of a consumer group.

    Life cycle: CREATE_JUST, then RUNNING or START_FAILED, then SHUTDOWN_ALREADY; or `async with`.

    Args:
        group: the consumer group.
        name_servers: "host:port;host:port"; else the environment says (ORDERLYMQ_NAME_SERVER,
            NAMESRV_ADDR), else it is this machine.
        topics: a topic, several, or a mapping from topics to tag expressions (`"A || B"`).
        listener: gets a sequence of messages and a context; async or not; returns an `OrderedResult`
            or a `ConcurrentResult`. Whatever it raises, and returning None, mean "again".
        ordered: one message after the other per queue, under the queue's lock; else in parallel.
        consume_from: `first`, `last` or `timestamp`, for a group without a committed offset.
        message_model: clustering shares the messages among the members, broadcasting does not.
        settings: everything else; the two arguments above win over it.
        offset_store: instead of the broker (clustering) or a local file (broadcasting).
        hooks: run around every listener call.
        trace: tell the trace topic (or the topic named here) what becomes of each delivery.
        filters: may drop pulled messages before the listener sees them.
    """

    def __init__(  # noqa: PLR0913 - what a user may say about a consumer
        self,
        group: str,
        name_servers: NameServers = None,
        *,
        topics: str | Iterable[str] | Mapping[str, str] = (),
        listener: Listener | None = None,
        ordered: bool = False,
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
        self.ordered = ordered
        self.settings = (settings or ConsumerSettings()).but(consume_from, message_model)
        self.listener = listener
        self._subscriptions: dict[str, Subscription] = {}
        self._instance = instance or ClientInstance(
            name_servers,
            client_settings,
            instance_name="" if self._clustering else BROADCAST_INSTANCE,
        )
        self.group = self._instance.whole(group)
        self._offsets = offset_store or self._default_offsets()
        self._tracer = make_tracer(trace, self._instance, f"{group}-CONSUME", group)
        if self._tracer is not None:
            hooks = (*hooks, TraceHook(self._tracer, self._instance))
        self._hooks = hooks
        self._tasks = OwnedTasks()
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._rebalance_wanted = asyncio.Event()
        self._idle = asyncio.Event()
        self._wake: asyncio.TimerHandle | None = None
        self._wake_ms: int | None = None
        self._state = "CREATE_JUST"
        self._ended = False
        self._stats = ConsumerStats()
        self._core = make_core(self.group, self.settings, ordered=ordered)
        self._calls = BrokerCalls(
            self._instance,
            self.group,
            self.settings,
            self._offsets,
            ordered=ordered,
            subscriptions=self._subscriptions,
            post=self.post,
            now_ms=_now_ms,
            stats=self._stats,
        )
        self._calls.filters.extend(filters)
        self._listeners: ListenerPool | None = None
        self._inbound = InboundRequests(self)
        named = [topics] if isinstance(topics, str) else topics
        expressions = named if isinstance(named, Mapping) else dict.fromkeys(named, "*")
        for topic, expression in expressions.items():
            self.subscribe(topic, expression)

    # -- what users ask

    @property
    def client_id(self) -> str:
        """Return the id brokers know this client by."""
        return self._instance.client_id

    @property
    def state(self) -> str:
        """Return CREATE_JUST, START_FAILED, RUNNING or SHUTDOWN_ALREADY."""
        return self._state

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """Return the queues this member has or is trying to get."""
        return tuple(sorted(self._core.queues))

    @property
    def core(self) -> OrderedConsumer | ConcurrentConsumer:
        """Return the decision maker; to look at, not to change."""
        return self._core

    @property
    def subscriptions(self) -> Mapping[str, Subscription]:
        """Return what is subscribed, the group's retry topic included."""
        return self._subscriptions

    def stats(self) -> Mapping[str, TopicCounters]:
        """Return rates, averages and totals by topic, under RocketMQ's names."""
        return self._stats.show(_now_ms())

    @property
    def flow_control_times(self) -> int:
        """Return how often a pull of the present queues had to wait because enough is cached."""
        return sum(state.fetcher.flow_waits for state in self._core.queues.values())

    @property
    def instance(self) -> ClientInstance:
        """Return the connections, routes and heartbeats that the consumer uses."""
        return self._instance

    def subscribe(self, topic: str, expression: str = "*", *, kind: str = "TAG") -> None:
        """Ask for a topic; `*` is everything, `A || B` are tags, kind SQL92 selects by properties.

        Raises:
            SettingError: The topic's name or the expression is not allowed.
        """
        topic = self._instance.whole(topic)
        self._subscriptions[topic] = make_subscription(topic, expression, kind, _wall_ms())
        if self._state == "RUNNING":
            self._tasks.start(self._announce(), "announce subscription")

    def unsubscribe(self, topic: str) -> None:
        """Give a topic up."""
        self._subscriptions.pop(self._instance.whole(topic), None)
        self._rebalance_wanted.set()

    def suspend(self) -> None:
        """Call no listener and pull nothing until `resume`; locks are kept."""
        self.post(Paused())

    def resume(self) -> None:
        """Go on after `suspend`."""
        self.post(Resumed())

    # -- life

    async def start(self) -> None:
        """Join the group and begin to consume in the background.

        Raises:
            StateError: It was started before, or the instance has a consumer of this group.
            SettingError: No topic or no listener.
            BrokerError: The broker does not support an SQL subscription.
        """
        if self._state != "CREATE_JUST":
            raise StateError(
                f"The PushConsumer service state not OK, maybe started once, {self._state}"
            )
        self._check_config()
        _log.info(
            "the consumer [%s] start beginning. messageModel=%s, isUnitMode=%s",
            *(self.group, self.settings.message_model.value, self._instance.settings.unit_mode),
        )
        self._state = "START_FAILED"
        if self._clustering:
            own_retry = retry_topic(self.group)
            self._subscriptions[own_retry] = make_subscription(own_retry, "*", "TAG", _wall_ms())
        await self._offsets.load()
        self._listeners = self._make_listeners()
        try:
            self._instance.add_consumer(self)
        except StateError:
            self._state = "CREATE_JUST"
            raise
        await self._instance.start()
        try:
            await self._find_routes()
            await self._calls.check_sql()
        except OrderlyMQError:
            await self._instance.remove_consumer(self)
            await self._instance.close()
            raise
        if self._tracer is not None:
            await self._tracer.start()
        await self._instance.beat_all()
        self._state = "RUNNING"
        self._tasks.keep(self._rebalance_forever, f"rebalance of {self.group}")
        self._tasks.keep(self._persist_forever, f"persist offsets of {self.group}")
        _log.info("the consumer [%s] start OK. clientId=%s", self.group, self.client_id)

    async def close(self) -> None:
        """Finish the running listeners, commit, give the locks back, leave the group."""
        if self._state != "RUNNING":
            if self._state == "CREATE_JUST":
                self._state = "SHUTDOWN_ALREADY"
            return
        self._state = "SHUTDOWN_ALREADY"
        self.post(Closing())
        try:
            async with asyncio.timeout(self.settings.shutdown_timeout_ms / 1000):
                await self._idle.wait()
        except TimeoutError:
            # Their locks are not given back: the listeners still run and may still act.
            _log.warning(
                "the consumer [%s] is closed while listeners still run; their queues are free when "
                "the leases end: %s",
                *(self.group, sorted(self._core.queues)),
            )
        await self._persist(list(self._core.queues))
        self._ended = True
        if self._wake is not None:
            self._wake.cancel()
        await self._instance.remove_consumer(self)
        if self._listeners is not None:
            self._listeners.close()
        await self._tasks.cancel()
        if self._tracer is not None:
            await self._tracer.close()
        await self._instance.close()
        _log.info("the consumer [%s] shutdown OK", self.group)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- the core and its instructions

    def post(self, event: Event) -> None:
        """Hand an event to the core and do what it says."""
        if self._ended:
            return  # a listener that was cut off at the end of `close` has nothing to say any more
        self._run(self._core.handle(event, _now_ms()))
        if self._state == "SHUTDOWN_ALREADY" and self._core.is_idle:
            self._idle.set()
        self._plan_wake()

    def _run(self, instructions: list[Instruction]) -> None:  # noqa: C901 - one arm per instruction
        releases: list[Release] = []
        for instruction in instructions:
            match instruction:
                case Report():
                    _log.log(_LEVELS[instruction.level], "%s", instruction.text)
                case SetOffset():
                    self._remember(instruction)
                case Deliver():
                    self._start(instruction, self._deliver(instruction))
                case Pull():
                    self._stop_pull(instruction.queue)
                    work = self._calls.pull(instruction)
                    self._pulls[instruction.queue] = self._start(instruction, work)
                case StopPull():
                    self._stop_pull(instruction.queue)
                case AskLocks():
                    self._start(instruction, self._calls.ask_locks(instruction.queues))
                case FindStart():
                    self._start(instruction, self._calls.find_start(instruction))
                case SendBack():
                    self._start(instruction, self._calls.send_back(instruction))
                case DeadLetter():
                    self._start(instruction, self._calls.dead_letter(instruction))
                case Persist():
                    self._start(instruction, self._offsets.persist([instruction.queue]))
                case Release():
                    releases.append(instruction)
                case _:
                    assert_never(instruction)
        if releases:
            self._tasks.start(self._release(releases), "release queues")

    def _start(
        self, instruction: Instruction, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """Carry an instruction out; whatever ends the work, the core gets its answer."""

        def lost(reason: str) -> None:
            event = failure(instruction, reason)
            if event is not None:
                self.post(event)

        return self._tasks.start(work, f"{type(instruction).__name__} of {self.group}", lost)

    def _remember(self, wanted: SetOffset) -> None:
        try:
            self._offsets.update(
                wanted.queue, wanted.offset, epoch=wanted.epoch, increase_only=wanted.increase_only
            )
        except Exception:
            # A store of the user's; the instructions behind this one must be carried out all the same.
            _log.exception("the offset store refused %s; its commit is lost", wanted)

    async def _persist(self, queues: Iterable[MessageQueue]) -> None:
        try:
            await self._offsets.persist(queues)
        except Exception:
            _log.exception("the offsets of %s are not persisted", self.group)

    def _plan_wake(self) -> None:
        wake_ms = self._core.next_wake_ms()
        if wake_ms == self._wake_ms:
            return
        if self._wake is not None:
            self._wake.cancel()
        self._wake, self._wake_ms = None, wake_ms
        if wake_ms is not None:
            delay_s = max(0, wake_ms - _now_ms()) / 1000
            self._wake = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._wake, self._wake_ms = None, None
        self.post(Tick())

    def _stop_pull(self, queue: MessageQueue) -> None:
        task = self._pulls.pop(queue, None)
        if task is not None and task is not asyncio.current_task():
            self._tasks.stop(task)

    async def _deliver(self, deliver: Deliver) -> None:
        assert self._listeners is not None
        async with self._listeners.slots:
            identity = deliver.queue, deliver.generation, deliver.delivery
            if not self._core.may_start(deliver, _now_ms()):
                self.post(DeliveryDropped(*identity))
                return
            self.post(ListenerStarted(*identity))
            if self.ordered:
                listened = self._listeners.call_ordered(deliver, lambda: self._holds(deliver))
            else:
                listened = self._listeners.call_concurrent(deliver)
            done, call = await listened
        count, topic = len(deliver.messages), deliver.queue.topic
        self._stats.listened(topic, count, done, call.duration_ms, _now_ms())
        self.post(done)

    def _holds(self, deliver: Deliver) -> bool:
        return self._core.holds(deliver.queue, deliver.generation, _now_ms())

    async def _release(self, releases: list[Release]) -> None:
        """Commit first and unlock then: the next holder begins at the committed offset."""
        try:
            for each in releases:
                self._stop_pull(each.queue)
            await self._persist(each.queue for each in releases if each.commit)
            for each in releases:
                self._offsets.remove(each.queue)
            await self._calls.give_locks(each.queue for each in releases if each.unlock)
        finally:
            for each in releases:
                self.post(Released(each.queue))

    # -- rebalance

    def rebalance_now(self) -> None:
        """Rebalance now; brokers notify when the group's members change."""
        self._rebalance_wanted.set()

    async def _rebalance_forever(self) -> None:
        missing_s = _MISSING_FIRST_S
        interval_s = self._instance.settings.rebalance_interval_ms / 1000
        while True:
            self._rebalance_wanted.clear()
            if await self._rebalance():
                wait_s, missing_s = interval_s, _MISSING_FIRST_S
            else:
                wait_s, missing_s = min(missing_s, interval_s), missing_s * 2
            await wait_for(self._rebalance_wanted, wait_s)

    async def _rebalance(self) -> bool:
        """Compute this member's queues and hand them to the core; tell whether all could be known."""
        wanted: set[MessageQueue] = set()
        complete = True
        for topic in list(self._subscriptions):
            present = {queue for queue in self._core.queues if queue.topic == topic}
            found = await self._queues_of(topic)
            if found is None:
                # Not knowing is no reason to give anything up.
                complete = False
                wanted |= present
            else:
                wanted |= set(found)
        if self._state == "RUNNING":
            self.post(Assigned(frozenset(wanted)))
        return complete

    async def _queues_of(self, topic: str) -> list[MessageQueue] | None:
        try:
            route = await self._instance.route(topic)
        except TopicNotFound as error:
            _log.log(
                logging.DEBUG if topic == retry_topic(self.group) else logging.WARNING, "%s", error
            )
            return None
        except (NameServersUnreachable, BrokerError) as error:
            _log.warning("no rebalance of %s: %s", topic, error)
            return None
        if not self._clustering:
            return list(route.subscribe)
        members = await self._calls.members(topic)
        if members is None:
            return None
        if self.client_id not in members:
            # Java would drop every queue here; a new leader may only not have heard of us yet.
            _log.info("doRebalance, %s is not in the list of %s yet", self.client_id, self.group)
            await self._instance.beat_all()
            return None
        strategy = self.settings.allocate_message_queue_strategy
        if self.settings.server_assignment:
            return await self._calls.assigned(topic, strategy.name)
        return assign(strategy, self.group, self.client_id, route.subscribe, members)

    async def _persist_forever(self) -> None:
        while True:
            await asyncio.sleep(self._instance.settings.persist_consumer_offset_interval_ms / 1000)
            await self._persist(list(self._core.queues))

    # -- what the instance and brokers ask

    def heartbeat(self) -> ConsumerData:
        """Return what heartbeats say about this consumer."""
        return ConsumerData(
            self.group,
            message_model=self.settings.message_model.value,
            consume_from_where=self.settings.consume_from.value,
            subscription_data_set=tuple(each.data for each in self._subscriptions.values()),
            unit_mode=self._instance.settings.unit_mode,
        )

    def on_request(
        self, command: RemotingCommand, reply: Callable[[RemotingCommand], None]
    ) -> bool:
        """Serve a broker's request; tell whether it is one that is served."""
        if self._state != "RUNNING":
            return False
        return self._inbound.serve(command, reply, self._tasks)

    def routes_changed(self, topic: str) -> None:
        """Rebalance when a subscribed topic has other queues."""
        if topic in self._subscriptions:
            self._rebalance_wanted.set()

    @property
    def listeners(self) -> ListenerPool | None:
        """Return the workers, once started."""
        return self._listeners

    # -- parts of start

    @property
    def _clustering(self) -> bool:
        return self.settings.message_model is MessageModel.CLUSTERING

    def _check_config(self) -> None:
        if not self._subscriptions:
            raise SettingError(f"the consumer {self.group} subscribes to no topic; pass topics=")
        if not callable(self.listener):
            raise SettingError(f"the consumer {self.group} has no listener; pass listener=")

    def _make_listeners(self) -> ListenerPool:
        if self.listener is None:
            raise SettingError(f"the consumer {self.group} has no listener; pass listener=")
        return ListenerPool(
            self.group,
            self.listener,
            ordered=self.ordered,
            workers=self.settings.consume_thread_max,
            timeout_ms=self.settings.consume_timeout_minutes * 60_000,
            hooks=self._hooks,
        )

    def _default_offsets(self) -> OffsetStore:
        if self._clustering:
            return BrokerOffsets(self._instance, self.group)
        return LocalOffsets(local_offsets_path(self._instance.client_id, self.group))

    async def _find_routes(self) -> None:
        for topic in self._subscriptions:
            try:
                await self._instance.route(topic)
            except TopicNotFound as error:
                # It may come into being later; the rebalance goes on looking.
                if topic != retry_topic(self.group):
                    _log.warning("%s", error)

    async def _announce(self) -> None:
        await self._find_routes()
        await self._instance.beat_all()
        self._rebalance_wanted.set()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
