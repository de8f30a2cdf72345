"""
The executor of a push consumer: it performs the core's instructions and passes the results to the core.

Rules: every instruction that awaits an answer gets one, even if its work failed or was cancelled. Offsets are committed
before a lock is given back, because the next holder begins at the committed offset. The instructions of an event are
started before the next event is handled, even if tasks run eagerly and post events while other instructions are being
started.
"""

import asyncio
import contextvars
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Final, assert_never

from orderlymq.consumer.core.concurrent import ConcurrentConsumer
from orderlymq.consumer.core.events import (
    AskLocks,
    DeadLetter,
    Deliver,
    DeliveryDropped,
    Event,
    FindStart,
    Instruction,
    ListenerStarted,
    Persist,
    Pull,
    Release,
    Released,
    Report,
    SendBack,
    SetOffset,
    StopPull,
    failure,
)
from orderlymq.consumer.core.ordered import OrderedConsumer
from orderlymq.consumer.group.offsets import OffsetStore
from orderlymq.consumer.listeners.pool import ListenerPool
from orderlymq.consumer.push.brokercalls import BrokerCalls
from orderlymq.consumer.stats import ConsumerStats
from orderlymq.ownedtasks import OwnedTasks, reason
from orderlymq_protocol.body.messagequeue import MessageQueue

_log = logging.getLogger(__name__)

_COMMIT_S: Final = 5.0  # for the last commits and unlocks of a consumer that is closed


class Executor:
    """Turns instructions into tasks, and their results into events.

    Attributes:
        listeners: the workers, once the consumer is started.
    """

    def __init__(
        self,
        group: str,
        core: OrderedConsumer | ConcurrentConsumer,
        calls: BrokerCalls,
        offsets: OffsetStore,
        tasks: OwnedTasks,
        stats: ConsumerStats,
        *,
        post: Callable[[Event], None],
        now_ms: Callable[[], int],
    ) -> None:
        self.listeners: ListenerPool | None = None
        self._group = group
        self._core = core
        self._calls = calls
        self._offsets = offsets
        self._tasks = tasks
        self._stats = stats
        self._post = post
        self._now_ms = now_ms
        self._context = contextvars.copy_context()
        self._pulls: dict[MessageQueue, asyncio.Task[None]] = {}
        self._deliveries: set[asyncio.Task[None]] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self._events: deque[tuple[Event, int]] = deque()
        self._is_handling = False
        self._is_over = False

    def handle(self, event: Event, now_ms: int) -> None:
        """Pass an event to the core and start its instructions, after those of earlier events."""
        self._events.append((event, now_ms))
        if self._is_handling:
            return
        self._is_handling = True
        try:
            while self._events:
                self.carry_out(self._core.handle(*self._events.popleft()))
        finally:
            self._is_handling = False

    async def prepare(
        self, topics: Iterable[str], beat: Callable[[], Coroutine[Any, Any, bool]]
    ) -> None:
        """Join the consumer group if it consumes by queue.

        Raises:
            SettingError: The consumer group consumes by key.
        """
        self._context = contextvars.copy_context()
        await self._calls.check_by_queue(topics)
        await beat()

    async def finish(self, cancel_s: float) -> None:
        """Cut off the running listeners and commit the done messages.

        Listeners have *cancel_s* to end. From now on, no listener holds a queue.
        """
        assert self.listeners is not None
        self.listeners.close()
        await self._tasks.end(self._deliveries, cancel_s)
        self.listeners.cut_off()
        try:
            async with asyncio.timeout(_COMMIT_S):
                if self._releases:
                    await asyncio.wait(self._releases)
                await self.persist(list(self._core.queues))
        except TimeoutError:
            _log.warning(
                "offsets of %s are not committed; messages will be delivered again", self._group
            )
        self._is_over = True

    def carry_out(self, instructions: list[Instruction]) -> None:  # noqa: C901 - one arm per instruction
        """Start the instructions, in their order, without waiting for any."""
        releases: list[Release] = []
        for instruction in instructions:
            match instruction:
                case Report():
                    _log.log(getattr(logging, instruction.level.upper()), "%s", instruction.text)
                case SetOffset():
                    self._remember(instruction)
                case Deliver():
                    # Otherwise the task would start with the context variables of the call whose end led here.
                    start = self._context.copy().run
                    task = start(self._start, instruction, self._deliver(instruction))
                    self._deliveries.add(task)
                    task.add_done_callback(self._deliveries.discard)
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
        for broker_name in {each.queue.broker_name for each in releases}:
            # One task for each broker, so that a broker that hangs does not delay the queues of others.
            part = [each for each in releases if each.queue.broker_name == broker_name]
            task = self._tasks.start(self._release(part), f"release queues of {broker_name}")
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    def _start(
        self, instruction: Instruction, work: Coroutine[Any, Any, None]
    ) -> asyncio.Task[None]:
        """Start the work of an instruction; the core gets its answer however the work ends."""

        def lost(error: BaseException) -> None:
            event = failure(instruction, reason(error))
            if event is not None:
                self._post(event)

        return self._tasks.start(work, f"{type(instruction).__name__} of {self._group}", lost)

    def _remember(self, wanted: SetOffset) -> None:
        try:
            self._offsets.update(
                wanted.queue, wanted.offset, epoch=wanted.epoch, increase_only=wanted.increase_only
            )
        except Exception:
            # The store may be the user's. The instructions after this one must be performed all the same.
            _log.exception("the offset store refused %s; its commit is lost", wanted)

    async def persist(self, queues: Iterable[MessageQueue]) -> None:
        """Make the remembered offsets of these queues durable; a failure is logged."""
        try:
            await self._offsets.persist(queues)
        except Exception:
            _log.exception("the offsets of %s are not persisted", self._group)

    def _stop_pull(self, queue: MessageQueue) -> None:
        task = self._pulls.pop(queue, None)
        if task is not None and task is not asyncio.current_task():
            self._tasks.stop(task)

    async def _deliver(self, deliver: Deliver) -> None:
        assert self.listeners is not None
        async with self.listeners.slots:
            identity = deliver.queue, deliver.generation, deliver.delivery
            if not self._core.maybe_start(deliver, self._now_ms()):
                self._post(DeliveryDropped(*identity))
                return
            self._post(ListenerStarted(*identity))
            if isinstance(self._core, OrderedConsumer):
                listened = self.listeners.call_ordered(deliver, lambda: self._holds(deliver))
            else:
                listened = self.listeners.call_concurrent(deliver)
            done, call = await listened
        if not call.begun:
            self._post(DeliveryDropped(*identity))
            return
        count, topic = len(deliver.messages), deliver.queue.topic
        self._stats.listened(topic, count, done, call.duration_ms, self._now_ms())
        self._post(done)

    def _holds(self, deliver: Deliver) -> bool:
        now_ms = self._now_ms()
        return not self._is_over and self._core.holds(deliver.queue, deliver.generation, now_ms)

    async def _release(self, releases: list[Release]) -> None:
        """Commit first and then unlock, because the next holder begins at the committed offset."""
        try:
            for each in releases:
                self._stop_pull(each.queue)
            await self.persist(each.queue for each in releases if each.commit)
            for each in releases:
                self._offsets.remove(each.queue)
            await self._calls.give_locks(each.queue for each in releases if each.unlock)
        finally:
            for each in releases:
                self._post(Released(each.queue))
