"""
Blocking access to a cluster from Spark's processes: queues, the bounds of each queue, and reads.

Rules: each process has one set of connections per cluster. Calls to an unavailable broker or name server are retried
for `retryTimeout`, because Spark ends a query at the first error. Several pulls of one queue are in flight and are
put together in order; `credit` limits the bytes per address. `source.records` parses the bytes.
"""

import asyncio
import math
import os
import re
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Any, Final, TypeVar

from orderlymq.admin.calls import unless_foreign
from orderlymq.admin.client import AdminClient
from orderlymq.blocking import LoopThread
from orderlymq.connection.instance import unless_refused
from orderlymq.connection.routes import TopicRoute
from orderlymq.connection.troubles import passes
from orderlymq.connection.wire import check
from orderlymq.consumer.group.offsets import NOT_FOUND
from orderlymq.consumer.group.queuereader import QueueReader
from orderlymq.consumer.group.requests import PullOptions, PullStatus, fence, pull_request
from orderlymq.errors import (
    BrokerError,
    BrokerUnreachable,
    NameServersUnreachable,
    PullError,
    TopicNotFound,
)
from orderlymq_protocol.body.catalogue import SubscriptionData
from orderlymq_protocol.body.lanes import BY_KEY, LaneTable
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode, ResponseCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import AppendCopiesHeader, PullMessageResponseHeader
from orderlymq_protocol.message.record import StoredMessage, iter_records
from orderlymq_protocol.names import TOOLS_GROUP, is_system_topic
from orderlymq_runtime.remoting.client import RemotingError
from orderlymq_spark.cluster.credit import Credit
from orderlymq_spark.cluster.expansions import Expansion, expansions_of
from orderlymq_spark.cluster.laneends import LaneEnds
from orderlymq_spark.cluster.pullsize import PullSize
from orderlymq_spark.errors import OptionError, SourceUnavailable
from orderlymq_spark.offsets import QueueRange
from orderlymq_spark.options import Connect

T = TypeVar("T")

# Our brokers return this many messages to a bulk pull. RocketMQ's return 32, and later pulls then ask for 32.
PULL_COUNT_MAX: Final = 512
_PULLS_AT_ONCE: Final = 8  # hides the round trip to the broker; more only fills memory
_LOOKS_AT_ONCE: Final = 64  # hides the round trip; the answers are small, some 10,000 a second
_MARKS_AT_ONCE: Final = 16  # hides the round trip; an answer is a whole message, up to megabytes
BLOCK_ROWS: Final = 4096
BLOCK_BYTES: Final = 8 << 20
_PULL_TIMEOUT_S: Final = 10.0
_BACK_OFF_FIRST_S: Final = 0.05
_BACK_OFF_MAX_S: Final = 2.0

_AWAY: Final = (BrokerUnreachable, NameServersUnreachable, RemotingError, PullError)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The result of one read of a queue.

    Attributes:
        chunks: pull bodies, in order.
        next_offset: the offset at which to continue.
        moved_to: the queue's first message, if the requested one no longer exists.
    """

    chunks: list[bytes]
    next_offset: int
    moved_to: int | None = None


_Answer = tuple[PullStatus, PullMessageResponseHeader, bytes]


class ClusterAccess:
    """Blocking calls to one cluster; safe from any thread."""

    def __init__(self, connect: Connect) -> None:
        self.connect = connect
        self.thread = LoopThread("orderlymq-spark")
        self._admin: AdminClient = self.thread.run(self._open())
        self.instance = self._admin.instance
        self._reader = QueueReader(self.instance, TOOLS_GROUP)
        self._credits: defaultdict[str, Credit] = defaultdict(Credit)

    async def _open(self) -> AdminClient:
        admin = AdminClient(self.connect.bootstrap, client_settings=self.connect.settings())
        await admin.start()
        return admin

    # -- what there is

    def topics(self, names: Iterable[str], pattern: str = "") -> tuple[str, ...]:
        """Return the named topics, or those whose whole name matches *pattern*."""
        if not pattern:
            return tuple(dict.fromkeys(names))
        wanted = re.compile(pattern)
        found = self.wait(self._admin.topics)
        return tuple(t for t in found if wanted.fullmatch(t) and not is_system_topic(t))

    def queues(self, topics: Iterable[str]) -> tuple[MessageQueue, ...]:
        """Return the readable queues of the topics.

        Raises:
            TopicNotFound: No broker has one of them.
        """
        return tuple(queue for topic in topics for queue in self.route(topic).subscribe)

    def listed(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues of a topic's valid list, without those that a fence makes readable before they are valid.

        Raises:
            TopicNotFound: No broker has the topic.
        """
        # Read before the brokers are asked, because a list only grows.
        queues = self.queues([topic])
        expansions = self._expansion_status(topic)
        # A topic that never expanded may have queues that can be read but no longer written.
        counts = {name: each["writeQueues"] for name, each in expansions.items() if each["attempt"]}
        return tuple(
            queue
            for queue in queues
            if queue.queue_id < counts.get(queue.broker_name, queue.queue_id + 1)
        )

    def route(self, topic: str) -> TopicRoute:
        """Return the current route of a topic; `publish` has the queues in the order over which keys are hashed.

        Raises:
            TopicNotFound: No broker has the topic.
        """
        return self.wait(lambda: self._admin.route(topic))

    def expansions(self, topic: str) -> list[Expansion]:
        """Return the known expansions of a topic's queue list, oldest first."""
        return expansions_of(self._expansion_status(topic))

    def expansion(self, topic: str) -> Expansion | None:
        """Return the last expansion of a topic's queue list; None if it never grew."""
        return next(reversed(self.expansions(topic)), None)

    def topic_ids(self, topics: Iterable[str]) -> dict[tuple[str, str], int]:
        """Return the id of each topic at each of its brokers that answers; RocketMQ's brokers have no ids."""
        return {
            (topic, broker): answer["topicId"]
            for topic in topics
            for broker, answer in self._expansion_status(topic).items()
        }

    def _expansion_status(self, topic: str) -> dict[str, dict[str, Any]]:
        # RocketMQ's brokers do not support this request.
        foreign = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        return self.wait(lambda: unless_refused(self._admin.expansion(topic), {}, foreign))

    def bounds(
        self, queues: Iterable[MessageQueue]
    ) -> tuple[dict[MessageQueue, int], dict[MessageQueue, int]]:
        """Return the first offset and the end offset of each queue."""
        wanted = tuple(queues)

        async def ask() -> tuple[list[int], list[int]]:
            lows = await asyncio.gather(*map(self._reader.min_offset, wanted))
            highs = await asyncio.gather(*map(self._reader.max_offset, wanted))
            return lows, highs

        lows, highs = self.wait(ask)
        return dict(zip(wanted, lows, strict=True)), dict(zip(wanted, highs, strict=True))

    def committed(
        self, group: str, queues: Iterable[MessageQueue]
    ) -> dict[MessageQueue, int | None]:
        """Return the committed offset of a consumer group for each queue; None if it has none."""
        wanted = tuple(queues)
        reader = QueueReader(self.instance, group)

        async def ask() -> list[int]:
            return list(await asyncio.gather(*map(reader.offsets.fetch, wanted)))

        found = self.wait(ask)
        return {
            queue: None if offset == NOT_FOUND else offset
            for queue, offset in zip(wanted, found, strict=True)
        }

    def lanes(self, group: str, topic: str) -> LaneTable:
        """Return the lanes of a topic; an empty table for a consumer group by queue or an unknown one."""
        return self.wait(lambda: unless_foreign(self._admin.lanes(group, topic), LaneTable()))

    def lane_ends(self, group: str, topic: str, keys: Iterable[str]) -> LaneEnds | None:
        """Return how far a consumer group by key has consumed keys of a topic; None for a consumer group by queue."""
        found: LaneEnds | None = None

        async def ask(some: Sequence[str]) -> list[LaneTable]:
            return await together(
                unless_foreign(self._admin.lanes(group, topic, key), LaneTable()) for key in some
            )

        wanted = sorted(set(keys))
        for at in range(0, len(wanted), _LOOKS_AT_ONCE):
            some = wanted[at : at + _LOOKS_AT_ONCE]
            for key, table in zip(some, self.wait(partial(ask, some)), strict=True):
                if table.concurrency == BY_KEY:
                    found = found or LaneEnds({}, {})
                    found.add(key, table)
        return found

    def commit(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit offsets for a consumer group; the SDK logs failures, and the next call commits again."""
        reader = QueueReader(self.instance, group)
        for queue, offset in offsets.items():
            reader.offsets.update(queue, offset, epoch=None, increase_only=False)
        self.thread.run(reader.offsets.persist(list(offsets)))

    def has_members(self, group: str) -> bool:
        """Return whether a consumer group has members at any broker."""
        return bool(self.wait(lambda: self._admin.members(group)))

    def append(
        self, queue: MessageQueue, copies: bytes, *, begins: bool = False
    ) -> "Future[int | None]":
        """Start to append stored records of another cluster; the result is the queue's end, None if it ends elsewhere.

        If it ends elsewhere, nothing is stored. A queue that never had a message begins at 0, or with *begins* at the
        first of
        these records. The result raises:
            SourceUnavailable: The broker was unavailable longer than `retryTimeout`; the records may be stored.
            OptionError: The brokers accept no copies.
            BrokerError: The brokers refuse these records.
        """
        header = AppendCopiesHeader(queue.topic, queue.queue_id, begins)

        async def ask() -> int | None:
            address = await self.instance.leader(queue.broker_name, queue.topic)
            command = request(RequestCode.ORDERLYMQ_APPEND_COPIES, header.to_ext(), copies)
            async with self._credits[address].take(len(copies)):
                answer = await self.instance.invoke(address, command, _PULL_TIMEOUT_S)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise OptionError(
                    f"the brokers at {self.connect.bootstrap} do not accept copies from another cluster; the target of "
                    "a mirror needs OrderlyMQ brokers of this version or later"
                )
            if answer.code == ResponseCode.ORDERLYMQ_QUEUE_ENDS_ELSEWHERE:
                return None
            return int(check(answer, address).ext["queueOffset"])

        return self.thread.submit(self._patiently(ask, queued=True)).future

    def stored_at(self, queue: MessageQueue, offset: int) -> int | None:
        """Return the store time in ms of the first message at or after an offset; None if there is none."""
        found = self.first_from(queue, offset)
        return None if found is None else found.store_timestamp

    def first_from(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        """Return the first message at or after an offset; None if there is no such message.

        Retention may delete a message at any time; the next one is then returned.
        """
        return self.wait(partial(self._first_from, queue, offset))

    async def _first_from(self, queue: MessageQueue, offset: int) -> StoredMessage | None:
        place = offset
        while True:
            status, header, body = await self._pull(queue, place, 1)
            if status is PullStatus.FOUND:
                return next(iter_records(body))
            if header.next_begin_offset <= place:
                return None
            place = header.next_begin_offset

    def marks(self, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Return a mark that identifies the message before each offset; no mark if that message is gone."""
        places = [(queue, offset - 1) for queue, offset in offsets.items() if offset > 0]
        found: dict[MessageQueue, int] = {}

        async def ask(queue: MessageQueue, place: int) -> None:
            message = await self._first_from(queue, place)
            if message is not None and message.queue_offset == place:
                found[queue] = _mark(message)

        async def ask_some(some: Sequence[tuple[MessageQueue, int]]) -> None:
            await together(ask(*place) for place in some)

        for at in range(0, len(places), _MARKS_AT_ONCE):
            self.wait(partial(ask_some, places[at : at + _MARKS_AT_ONCE]))
        return found

    def differing(
        self, marks: Mapping[MessageQueue, int], offsets: Mapping[MessageQueue, int]
    ) -> set[MessageQueue]:
        """Return the queues in which another message than the marked one precedes the offset."""
        asked = {queue: offset for queue, offset in offsets.items() if queue in marks}
        return {queue for queue, mark in self.marks(asked).items() if mark != marks[queue]}

    def offset_at(self, queue: MessageQueue, low: int, high: int, timestamp_ms: int) -> int | None:
        """Return the first offset that was stored at this time or later; None if all messages are older.

        A binary search finds it, so it also works with brokers that return the nearest message.
        """

        def stored_ms(offset: int) -> float:
            found = self.stored_at(queue, offset)
            return math.inf if found is None else found

        first = bisect_left(range(high), float(timestamp_ms), lo=low, key=stored_ms)
        return None if first == high else first

    def is_stored(self, topic: str, unique_key: str) -> bool:
        """Return whether the topic has a message with this unique key, according to the brokers' index."""
        found = self.wait(
            lambda: self._admin.find_messages(topic, unique_key, unique=True, unreadable=True)
        )
        return bool(found)

    async def are_stored(self, topic: str, unique_keys: Sequence[str]) -> list[bool]:
        """Return for each unique key whether the topic has its message; call this on the loop of these connections."""

        async def ask(keys: Sequence[str]) -> list[bool]:
            # Keep the route, as a send does; otherwise each look-up would first ask a name server.
            await self.instance.route(topic)
            asked = (
                self._admin.find_messages(topic, key, unique=True, unreadable=True) for key in keys
            )
            return [bool(each) for each in await asyncio.gather(*asked)]

        found: list[bool] = []
        for at in range(0, len(unique_keys), _LOOKS_AT_ONCE):
            found += await self._patiently(partial(ask, unique_keys[at : at + _LOOKS_AT_ONCE]))
        return found

    # -- messages

    def read(self, part: QueueRange, tags: str = "*") -> Iterator[Fetched]:
        """Yield a range block by block; the next block is fetched while the caller uses this one.

        A block with `moved_to` is the last one: the caller decides how to continue.
        """
        position = part.start
        ahead: Future[Fetched] | None = None
        asks = PullSize(PULL_COUNT_MAX)

        def start(offset: int) -> "Future[Fetched]":
            work = self._patiently(
                lambda: self._fetch(part.queue, offset, part.end, tags, asks), queued=True
            )
            return self.thread.submit(work).future

        try:
            while position < part.end:
                block = (ahead or start(position)).result()
                position = block.next_offset
                more = position < part.end and block.moved_to is None
                ahead = start(position) if more else None
                yield block
                if block.moved_to is not None:
                    return
        finally:
            if ahead is not None:
                ahead.cancel()

    async def _fetch(
        self, queue: MessageQueue, start: int, end: int, tags: str, asks: PullSize
    ) -> Fetched:
        chunks: list[bytes] = []
        position, size = start, 0
        while position < end and position - start < BLOCK_ROWS and size < BLOCK_BYTES:
            # With a tag filter the next offset is unknown before the answer, so such pulls go one by one.
            count = 1 if tags != "*" else _PULLS_AT_ONCE
            step = asks.count
            last = min(end, position + count * step, start + BLOCK_ROWS)
            places = range(position, last, step)
            pulls = (
                self._pull(queue, each, min(step, last - each), tags, asks.size) for each in places
            )
            answers = await asyncio.gather(*pulls, return_exceptions=True)
            brought: list[int] = []
            for place, answer in zip(places, answers, strict=True):
                if place != position:
                    break  # the previous pull returned less than expected
                if isinstance(answer, BaseException):
                    if position == start:
                        raise answer
                    # The next block retries this pull. The earlier answers are kept, so
                    # that a slow link does not carry them twice.
                    return Fetched(chunks, position)
                status, header, body = answer
                if status is PullStatus.OFFSET_ILLEGAL:
                    if header.min_offset <= position:
                        raise PullError(f"{queue} ends at {header.max_offset}, before {position}")
                    return Fetched(chunks, position, header.min_offset)
                if status is PullStatus.NO_NEW_MSG or header.next_begin_offset <= position:
                    raise PullError(f"{queue} has nothing at {position} yet")
                if status is PullStatus.FOUND:
                    chunks.append(body)
                    size += len(body)
                position = header.next_begin_offset
                brought.append(position - place)
            asks.size = max(len(each[2]) for each in answers if isinstance(each, tuple))
            if tags == "*":
                asks.note(min(step, last - places[0]), brought[0])
        return Fetched(chunks, min(position, end))

    async def _pull(
        self, queue: MessageQueue, offset: int, count: int, tags: str = "*", size: int | None = None
    ) -> _Answer:
        """Pull up to *count* messages; a pull with a *size* waits until `credit` allows that many bytes."""
        address = await self.instance.leader(queue.broker_name, queue.topic)
        command = pull_request(
            PullOptions(
                group=TOOLS_GROUP,
                queue=queue,
                offset=offset,
                count=count,
                subscription=SubscriptionData.of_tags(queue.topic, tags, 0),
                with_subscription=True,
                bulk=True,
                fence=fence(self.instance.client_id),
            )
        )
        turn: AbstractAsyncContextManager[None] = (
            nullcontext() if size is None else self._credits[address].take(size)
        )
        async with turn:
            answer = await self.instance.invoke(address, command, _PULL_TIMEOUT_S)
        try:
            status = PullStatus(answer.code)
        except ValueError:
            raise BrokerError(answer.code, answer.remark, address) from None
        return status, PullMessageResponseHeader.from_ext(answer.ext), bytes(answer.body)

    # -- patience

    def wait(self, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Repeat a call while brokers or name servers are unavailable.

        Raises:
            SourceUnavailable: They were unavailable longer than `retryTimeout`.
            TopicNotFound, BrokerError: The answer is a refusal.
        """
        return self.thread.run(self._patiently(call))

    async def _patiently(
        self, call: Callable[[], Coroutine[Any, Any, T]], *, queued: bool = False
    ) -> T:
        """Make a call as `wait` does; if it may be *queued* behind others, its time-out counts from its first failure."""
        patience_s = self.connect.retry_timeout_ms / 1000
        end = math.inf if queued else time.monotonic() + patience_s
        delay_s = _BACK_OFF_FIRST_S
        while True:
            try:
                return await call()
            except TopicNotFound:
                raise
            except BrokerError as error:
                if not passes(error):
                    raise
                reason: Exception = error
            except _AWAY as error:
                reason = error
            end = min(end, time.monotonic() + patience_s)
            if time.monotonic() + delay_s > end:
                raise SourceUnavailable(
                    f"{reason}; waited {patience_s:g} s (retryTimeout)"
                ) from reason
            await asyncio.sleep(delay_s)
            delay_s = min(_BACK_OFF_MAX_S, delay_s * 2)


async def together(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently; the first failure cancels the others, and its error is raised without a group."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return [task.result() for task in tasks]


def _mark(message: StoredMessage) -> int:
    facts = (message.store_timestamp, message.born_timestamp, message.body_crc, message.properties)
    return int.from_bytes(blake2b(repr(facts).encode(), digest_size=7).digest())


_OPEN: dict[tuple[int, Connect], ClusterAccess] = {}


def access_to(connect: Connect) -> ClusterAccess:
    """Return this process's connections to a cluster; Spark reuses its workers, and they reuse the connections.

    Raises:
        OptionError: The addresses or a client setting are not allowed.
    """
    # A forked worker must not use its parent's sockets.
    name = os.getpid(), connect
    found = _OPEN.get(name)
    if found is None:
        try:
            found = _OPEN[name] = ClusterAccess(connect)
        except (TypeError, ValueError) as error:
            raise OptionError(f"the connection's options are not allowed: {error}") from error
    return found
