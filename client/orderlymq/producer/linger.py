"""
Lingering: sends to one topic wait a moment for others and leave together, a batch per queue.

Rules: a topic has one round of batches under way, and the next begins when it has ended, so the order of calls
with one key is the order in its queue, also when the topic's queues change. When a send fails, those that wait
behind it with the same key or queue are refused unsent, as without lingering. What a batch cannot carry
(delays, times, retry topics) leaves alone, in its turn.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Final, TypeAlias

from orderlymq.connection.routes import TopicRoute
from orderlymq.durations import Duration
from orderlymq.message import Message, SendResult
from orderlymq.ownedtasks import wait_for
from orderlymq.producer.sendoutcome import QueuesChanged, split_batch, still_unknown, unheard
from orderlymq.producer.sendqueue import behind_failed
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.names import is_retry_topic

# So much is worth no more waiting.
FULL_BYTES: Final = 256 * 1024
ROUND_MAX: Final = 10_000

Choose: TypeAlias = Callable[[TopicRoute, Message, MessageQueue | int | None], MessageQueue | None]
SendMany: TypeAlias = Callable[
    [list[Message], MessageQueue | None, TopicRoute, Duration | None], Awaitable[SendResult]
]
ThroughChanges: TypeAlias = Callable[[Callable[[TopicRoute], Awaitable[None]]], Awaitable[None]]


@dataclass(slots=True, eq=False)
class Lingering:
    """One send that waits, or that may have been stored before it was to choose its queue again."""

    message: Message
    queue: MessageQueue | int | None
    timeout: Duration | None
    future: "asyncio.Future[SendResult]"
    maybe_stored: bool = False

    @property
    def order(self) -> object:
        """What stays in order with it; None when nothing does."""
        return self.message.stored_key if self.queue is None else self.queue

    def fail(self, error: Exception) -> None:
        """Give it its error, unless it has its outcome."""
        if not self.future.done():
            self.future.set_exception(still_unknown(error) if self.maybe_stored else error)


class Linger:
    """The sends to one topic.

    Args:
        wait_s: how long the first of a round waits for others.
        size_max: the largest batch in bytes.
        choose: returns the queue of a message, None when any will do.
        send: sends messages as one; it raises what a single send raises.
        through_changes: calls with the route of now, again while the topic's queues change.
        ended: called when nothing is left.
    """

    def __init__(
        self,
        wait_s: float,
        size_max: int,
        *,
        choose: Choose,
        send: SendMany,
        through_changes: ThroughChanges,
        ended: Callable[[], object],
    ) -> None:
        self._wait_s = wait_s
        self._size_max = size_max
        self._choose = choose
        self._send = send
        self._through_changes = through_changes
        self._ended = ended
        self._waiting: list[Lingering] = []
        self._leaving: list[Lingering] = []
        self._size = 0
        self._full = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def enter(
        self, message: Message, queue: MessageQueue | int | None, timeout: Duration | None
    ) -> "asyncio.Future[SendResult]":
        """Append a send; its time-out counts from when it leaves."""
        future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        self._waiting.append(Lingering(message, queue, timeout, future))
        self._size += len(message.body)
        if self._size >= FULL_BYTES or len(self._waiting) >= ROUND_MAX:
            self._full.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name="linger")
        return future

    async def behind(self, order: object) -> None:
        """Return when what waits now in this order is stored.

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
                self._leaving = []
        finally:
            self._ended()
            for each in (*self._leaving, *self._waiting):
                each.future.cancel()  # no effect on those that have their outcome

    async def _round(self, sends: list[Lingering]) -> None:
        left = sends

        async def once(route: TopicRoute) -> None:
            nonlocal left
            groups: dict[MessageQueue | None, list[Lingering]] = {}
            for each in left:
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
                    # Each send knows for itself whether it may be stored.
                    raise QueuesChanged(changed.refused, maybe_stored=False)

        try:
            await self._through_changes(once)
        except Exception as error:
            self._fail(left, error)

    async def _in_order(
        self, chosen: MessageQueue | None, sends: list[Lingering], route: TopicRoute
    ) -> tuple[list[Lingering], QueuesChanged | None]:
        """Send to one queue; return what must be chosen again, and why."""
        parts = list(self._parts(sends))
        for at, part in enumerate(parts):
            wanted = [each for each in part if not each.future.done()]
            if not wanted:
                continue
            messages = [each.message for each in wanted]
            try:
                result = await self._send(messages, chosen, route, wanted[0].timeout)
            except QueuesChanged as changed:
                for each in wanted:
                    each.maybe_stored |= changed.maybe_stored
                return [each for rest in parts[at:] for each in rest], changed
            except Exception as error:
                self._fail(wanted, error, [each for rest in parts[at + 1 :] for each in rest])
            else:
                for each, own in zip(wanted, _results(messages, result), strict=True):
                    if each.future.cancelled():
                        unheard([each.message])
                    elif not each.future.done():
                        each.future.set_result(own)
        return [], None

    def _parts(self, sends: list[Lingering]) -> Iterator[list[Lingering]]:
        """Cut sends to one queue into what may leave together, in order."""
        for (alone, _), run in groupby(sends, key=_company):
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
        """Give sends their error, and refuse what waits behind them."""
        orders = {each.order for each in sends} - {None}
        for each in sends:
            each.fail(error)
        for each in (*behind, *self._waiting):
            if each.order in orders:
                each.fail(behind_failed(error))
        self._waiting = [each for each in self._waiting if not each.future.done()]


def _company(each: Lingering) -> tuple[bool, object]:
    """Return whether a send must leave alone; else what those that leave with it have in common."""
    message = each.message
    alone = bool(
        message.delay_level
        or message.delay
        or message.deliver_at
        or message.marks
        or is_retry_topic(message.topic)
    )
    return alone, (each.timeout, message.wait_store_ok)


def _results(messages: list[Message], result: SendResult) -> list[SendResult]:
    """Return the result of each message of a batch."""
    ids = result.offset_message_id.split(",")
    if len(ids) != len(messages):
        ids = [result.offset_message_id] * len(messages)
    return [
        replace(
            result,
            message_id=message.unique_key,
            offset_message_id=ids[at],
            queue=result.place(at)[0],
            queue_offset=result.place(at)[1],
            places=(),
        )
        for at, message in enumerate(messages)
    ]
