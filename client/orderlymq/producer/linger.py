"""
Lingering: sends to one topic wait a moment for others, and leave together as one batch per queue.

Rules: a topic has one round of batches under way, and the next round begins when it has ended. So the order of calls
with one key is the order in its queue, also while the topic's queues change. When a send fails, later sends with the
same key or queue are refused without being sent, as without lingering. A message that a batch cannot carry (delays,
times, retry topics) leaves alone, in its turn. While the topic's queues change, each send waits until its own
time-out or its patience is over.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import Final, TypeAlias

from orderlymq.connection.routes import TopicRoute
from orderlymq.durations import Duration, seconds
from orderlymq.errors import SettingError
from orderlymq.message import Message, SendResult
from orderlymq.producer.sendoutcome import (
    QueuesChanged,
    results_of,
    split_batch,
    still_unknown,
    unheard,
)
from orderlymq.producer.sendqueue import behind_failed
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic
from orderlymq_runtime.process.waits import wait_for

# With this many bytes, waiting longer gains nothing.
FULL_BYTES: Final = 256 * 1024
ROUND_MAX: Final = 10_000

Choose: TypeAlias = Callable[[TopicRoute, Message, MessageQueue | int | None], MessageQueue | None]
SendMany: TypeAlias = Callable[
    [list[Message], MessageQueue | None, TopicRoute, float], Awaitable[SendResult]
]
ThroughChanges: TypeAlias = Callable[[Callable[[TopicRoute], Awaitable[None]]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Lingering:
    """A waiting send; it may have been stored by a try before its queue had to be chosen again.

    Attributes:
        until_s: when it is out of time, on the monotonic clock. With its own time-out this counts from the first try;
            without one it is the end of its patience, counted from the start of the change.
        refused: why it waits for the end of a change; None if it does not wait for one, or is being tried.
    """

    message: Message
    queue: MessageQueue | int | None
    timeout: Duration | None
    future: "asyncio.Future[SendResult]"
    maybe_stored: bool = False
    until_s: float = math.inf
    refused: Exception | None = None

    @property
    def order(self) -> object:
        """Key or queue of the sends that stay in order with this one; None if there are none."""
        return self.message.stored_key if self.queue is None else self.queue

    def fail(self, error: Exception) -> None:
        """Set the error, unless the send has its outcome already."""
        if not self.future.done():
            self.future.set_exception(still_unknown(error) if self.maybe_stored else error)


class Linger:
    """The sends to one topic.

    Args:
        wait_s: how long the first send of a round waits for others.
        size_max: the largest batch in bytes.
        patience_s: how long a send without its own time-out waits while the topic's queues change.
        deadline: returns the deadline of a send that begins now, on the monotonic clock.
        choose: returns the queue of a message, None if any will do.
        send: sends messages as one, until a deadline; it raises the errors of a single send.
        through_changes: calls with the current route, again as long as the topic's queues change.
        ended: called when no send is left.
    """

    def __init__(
        self,
        wait_s: float,
        size_max: int,
        *,
        patience_s: float,
        deadline: Callable[[Duration | None], float],
        choose: Choose,
        send: SendMany,
        through_changes: ThroughChanges,
        ended: Callable[[], object],
    ) -> None:
        self._wait_s = wait_s
        self._size_max = size_max
        self._patience_s = patience_s
        self._deadline = deadline
        self._choose = choose
        self._send = send
        self._through_changes = through_changes
        self._ended = ended
        self._waiting: list[Lingering] = []
        self._leaving: list[Lingering] = []
        self._size = 0
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._changing: Exception | None = None  # why the round waits for the end of a change
        self._timer: asyncio.TimerHandle | None = None  # for the sends that wait for that end
        self._due_s = 0.0

    def enter(
        self, message: Message, queue: MessageQueue | int | None, timeout: Duration | None
    ) -> "asyncio.Future[SendResult]":
        """Append a send; its time-out counts from when it leaves or starts to wait for the end of a change."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        if timeout is not None:
            try:
                self._deadline(timeout)
            except SettingError as error:
                future.set_exception(error)
                return future
        self._waiting.append(each := Lingering(message, queue, timeout, future))
        if self._changing is not None:
            self._hold([each], self._changing)
        self._size += len(message.body)
        if self._size >= FULL_BYTES or len(self._waiting) >= ROUND_MAX:
            self._full.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="linger")
        return future

    async def behind(self, order: object) -> None:
        """Return when the messages that wait now in this order are stored.

        Raises:
            SendRefused: One of these sends failed.
        """
        for each in reversed((*self._leaving, *self._waiting)):
            if each.order == order and not each.future.done():
                await asyncio.wait([each.future])
                if not each.future.cancelled() and (error := each.future.exception()) is not None:
                    raise behind_failed(error)
                return

    async def _run(self) -> None:
        try:
            while self._waiting:
                await wait_for(self._full, self._wait_s)
                self._leaving = self._waiting[:ROUND_MAX]
                self._waiting = self._waiting[ROUND_MAX:]
                self._size = sum(len(each.message.body) for each in self._waiting)
                self._full.clear()
                await self._round(self._leaving)
                self._leaving, self._changing = [], None
        finally:
            self._ended()
            if self._timer is not None:
                self._timer.cancel()
            for each in (*self._leaving, *self._waiting):
                each.future.cancel()  # no effect on futures that have their outcome

    async def _round(self, sends: list[Lingering]) -> None:
        left = sends

        async def once(route: TopicRoute) -> None:
            nonlocal left
            groups: dict[MessageQueue | None, list[Lingering]] = {}
            for each in left:
                if each.future.done():
                    continue
                try:
                    chosen = self._choose(route, each.message, each.queue)
                except Exception as error:
                    self._fail([each], error)
                else:
                    groups.setdefault(chosen, []).append(each)
            work = (self._in_order(chosen, part, route) for chosen, part in groups.items())
            outcomes = await asyncio.gather(*work)
            left = [each for part, _ in outcomes for each in part]
            for _, changed in outcomes:
                if changed is not None:
                    # Each send has noted whether it may be stored.
                    raise QueuesChanged(changed.refused, maybe_stored=False)

        try:
            await self._through_changes(once)
        except Exception as error:
            self._fail(left, error)

    async def _in_order(
        self, chosen: MessageQueue | None, sends: list[Lingering], route: TopicRoute
    ) -> tuple[list[Lingering], QueuesChanged | None]:
        """Send to one queue; return the sends whose queue must be chosen again, and the reason."""
        parts = list(self._parts(sends))
        for at, part in enumerate(parts):
            wanted = [each for each in part if not each.future.done()]
            if not wanted:
                continue
            messages = [each.message for each in wanted]
            try:
                result = await self._send(messages, chosen, route, self._try(wanted))
            except QueuesChanged as changed:
                for each in wanted:
                    each.maybe_stored |= changed.maybe_stored
                left = [each for rest in parts[at:] for each in rest]
                self._hold(left, changed.refused)
                return left, changed
            except Exception as error:
                self._fail(wanted, error, [each for rest in parts[at + 1 :] for each in rest])
            else:
                for each, own in zip(wanted, results_of(messages, result), strict=True):
                    if each.future.cancelled():
                        unheard([each.message])
                    elif not each.future.done():
                        each.future.set_result(own)
        return [], None

    def _try(self, sends: list[Lingering]) -> float:
        """Note that these sends are tried now, and return their deadline."""
        timeout, deadline_s = sends[0].timeout, sends[0].until_s
        if timeout is None or math.isinf(deadline_s):
            deadline_s = self._deadline(timeout)
        for each in sends:
            each.refused = None
            if timeout is not None:
                each.until_s = deadline_s
        return deadline_s

    # -- while the queues change

    def _hold(self, sends: list[Lingering], refused: Exception) -> None:
        """Let these sends and those of later rounds wait for the end of a change, each until its own time."""
        now_s = time.monotonic()
        if self._changing is None:
            sends = [*sends, *self._waiting]
        self._changing = refused
        for each in sends:
            each.refused = refused
            if math.isinf(each.until_s):
                own_s = self._patience_s if each.timeout is None else seconds(each.timeout)
                each.until_s = now_s + own_s
        self._watch(sends, now_s)

    def _watch(self, held: list[Lingering], now_s: float) -> None:
        """Set the timer to the moment when the first of these sends is out of time."""
        first_s = min(each.until_s for each in held)
        if self._timer is not None:
            if self._due_s <= first_s:
                return
            self._timer.cancel()
        self._due_s = first_s
        delay_s = max(0.0, first_s - now_s)
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._give_up)

    def _give_up(self) -> None:
        """Refuse sends that are out of time, and those behind them; a try under way ends by itself."""
        self._timer, now_s = None, time.monotonic()
        failed: dict[object, Exception] = {}
        held: list[Lingering] = []
        for each in (*self._leaving, *self._waiting):
            if each.future.done():
                continue
            if each.refused is not None and each.until_s <= now_s:
                each.fail(each.refused)
                failed.setdefault(each.order, each.refused)
            elif each.order is not None and each.order in failed:
                each.fail(behind_failed(failed[each.order]))
            elif each.refused is not None:
                held.append(each)
        self._waiting = [each for each in self._waiting if not each.future.done()]
        if held:
            self._watch(held, now_s)

    def _parts(self, sends: list[Lingering]) -> Iterator[list[Lingering]]:
        """Cut the sends to one queue into batches that may leave together, in order."""
        for (alone, _), run in groupby(sends, key=_batch_key):
            entries = list(run)
            if alone:
                yield from ([each] for each in entries)
                continue
            rest = iter(entries)
            for messages in split_batch([each.message for each in entries], self._size_max):
                yield [next(rest) for _ in messages]

    def _fail(
        self, sends: list[Lingering], error: Exception, behind: Iterable[Lingering] = ()
    ) -> None:
        """Set the error of these sends, and refuse the sends that wait behind them."""
        orders = {each.order for each in sends} - {None}
        for each in sends:
            each.fail(error)
        for each in (*behind, *self._waiting):
            if each.order in orders:
                each.fail(behind_failed(error))
        self._waiting = [each for each in self._waiting if not each.future.done()]


def _batch_key(each: Lingering) -> tuple[bool, object]:
    """Return whether a send must leave alone, and what sends that leave together have in common."""
    message = each.message
    alone = bool(
        message.delay_level
        or message.delay
        or message.deliver_at
        or message.marks
        or is_retry_topic(message.topic)
    )
    until_s = None if each.timeout is None else each.until_s
    return alone, (each.timeout, until_s, message.wait_store_ok)
