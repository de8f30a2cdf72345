"""
The dimensions of growth, one row each: the decades, and the step that grows a cluster from one decade to the next.

A step grows the cluster from *old* to *new* and returns the load for that decade. Connections and members stay open
until the dimension ends.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, TypeVar

from bench.growth.load import QUEUES, TOPIC, Load
from tests.cluster.processes import Group

from orderlymq import Message, Producer, TransactionProducer, TransactionState
from orderlymq.admin.client import AdminClient
from orderlymq_protocol.body.clients import ConsumerData, HeartbeatData, SubscriptionData
from orderlymq_protocol.body.config import (
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
)
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_runtime.remoting.client import RemotingClient, RemotingError

#: The most topics or consumer groups that a broker creates with one request.
_LISTED: Final = 256
_UNDER_WAY: Final = 256
_BATCH_BYTES: Final = 1 << 20
_DELAY_LEVEL: Final = 18  # two hours
_GROUP: Final = "growth-members"
_TIMEOUT_S: Final = 60.0
_TRIES: Final = 20
_AGAIN_S: Final = 0.5

T = TypeVar("T")


@dataclass(slots=True)
class Growing:
    """A running cluster and the resources that a dimension has opened in it."""

    cluster: Group
    admin: AdminClient
    load: Load
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def ask(self, code: RequestCode, body: bytes) -> None:
        """Send a request to the leader."""
        await self.admin.instance.call(self.cluster.address, code, body=body, timeout_s=_TIMEOUT_S)


Step = Callable[[Growing, int, int], Awaitable[Load]]


@dataclass(frozen=True, slots=True)
class Dimension:
    """A quantity that grows.

    Attributes:
        per_byte: the load itself grows, so its cost is reported per KiB.
    """

    name: str
    title: str
    decades: Sequence[int]
    step: Step
    per_byte: bool = False


def _batches(items: Iterator[T], size: int) -> Iterator[list[T]]:
    while batch := list(islice(items, size)):
        yield batch


async def _together(calls: Iterator[Awaitable[object]]) -> None:
    """Await all, with a limited number at a time."""
    for batch in _batches(calls, _UNDER_WAY):
        await asyncio.gather(*batch)


async def _topics(growing: Growing, old: int, new: int) -> Load:
    configs = (TopicConfig(f"growth-topic-{each}", 4, 4) for each in range(old, new))
    for batch in _batches(configs, _LISTED):
        body = TopicConfigList(tuple(batch)).to_json()
        await growing.ask(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, body)
    return growing.load


async def _queues(growing: Growing, old: int, new: int) -> Load:
    topic = f"growth-queues-{new}"
    await growing.admin.create_topic(topic, queues=new, ordered=True)
    return replace(growing.load, topic=topic, keys=max(growing.load.keys, 4 * new))


async def _groups(growing: Growing, old: int, new: int) -> Load:
    configs = (SubscriptionGroupConfig(group_name=f"growth-group-{i}") for i in range(old, new))
    for batch in _batches(configs, _LISTED):
        body = SubscriptionGroupList(tuple(batch)).to_json()
        await growing.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, body)
    return growing.load


async def _connections(growing: Growing, old: int, new: int) -> Load:
    await _connect(growing, new, ())
    return growing.load


async def _members(growing: Growing, old: int, new: int) -> Load:
    subscription = SubscriptionData.of_tags(TOPIC, "*", 1)
    await _connect(growing, new, (ConsumerData(_GROUP, subscription_data_set=(subscription,)),))
    return growing.load


async def _connect(growing: Growing, number: int, groups: tuple[ConsumerData, ...]) -> None:
    """Open this many connections with a heartbeat each; those of the last decade ended with their leader."""
    clients = [RemotingClient() for _ in range(number)]
    for client in clients:
        growing.stack.push_async_callback(client.close)

    async def beat(place: int) -> None:
        data = HeartbeatData(f"127.0.0.1@growth-{place}", consumer_data_set=groups)
        command = request(RequestCode.HEART_BEAT, body=data.to_json())
        for _ in range(_TRIES):
            try:
                await clients[place].invoke(growing.cluster.address, command, timeout_s=_TIMEOUT_S)
            except RemotingError:
                await asyncio.sleep(_AGAIN_S)  # a new leader is being elected
            else:
                return
        raise TimeoutError(f"connection {place} of {number} could not be opened")

    await _together(beat(place) for place in range(number))


async def _keys(growing: Growing, old: int, new: int) -> Load:
    return replace(growing.load, keys=new)


async def _transactions(growing: Growing, old: int, new: int) -> Load:
    async with TransactionProducer(
        "growth-transactions", growing.cluster.name_server_address, check=_undecided
    ) as producer:
        await _together(
            producer.send_in_transaction(TOPIC, b"half", execute=_undecided)
            for _ in range(old, new)
        )
    return growing.load


async def _undecided(_: object) -> TransactionState:
    return TransactionState.UNKNOWN


async def _delayed(growing: Growing, old: int, new: int) -> Load:
    async with Producer("growth-delayed", growing.cluster.name_server_address) as producer:
        await _together(
            producer.send(TOPIC, b"later", key=number, delay_level=_DELAY_LEVEL)
            for number in range(old, new)
        )
    return growing.load


async def _backlog(growing: Growing, old: int, new: int) -> Load:
    body = bytes(100)
    size = _BATCH_BYTES // (len(body) * 4)
    async with Producer("growth-backlog", growing.cluster.name_server_address) as producer:
        queues = await producer.queues(TOPIC)

        async def fill(place: int) -> None:
            for batch in _batches(iter(range(old + place, new, len(queues))), size):
                messages = [Message(topic=TOPIC, body=body) for _ in batch]
                await producer.send_batch(messages, queue=queues[place], timeout=_TIMEOUT_S)

        await asyncio.gather(*(fill(place) for place in range(len(queues))))
    return growing.load


async def _size(growing: Growing, old: int, new: int) -> Load:
    # 64 senders of 4 MiB would have 256 MiB in flight, so bound the bytes in flight as a real producer does.
    senders = max(1, min(growing.load.senders, (16 << 20) // new))
    pace = min(growing.load.pace, (4 << 20) / new)
    return replace(growing.load, size=new, senders=senders, pace=pace)


def _decades(first: int, last: int) -> tuple[int, ...]:
    found = [first]
    while found[-1] * 10 <= last:
        found.append(found[-1] * 10)
    return (*found, last) if found[-1] < last else tuple(found)


DIMENSIONS: Final = (
    # A broker group takes 40,000 topics and 40,000 consumer groups, including those of the load and RocketMQ's own.
    Dimension("topics", "Topics of four queues", _decades(10, 39_000), _topics),
    Dimension("queues", "Queues of the topic", _decades(QUEUES, 8_000), _queues),
    Dimension("groups", "Consumer groups", _decades(10, 39_000), _groups),
    # The measured machine allows a process 20,000 open files, and a broker needs some of them itself.
    Dimension("connections", "Open connections", _decades(10, 18_000), _connections),
    Dimension("members", "Members of a consumer group", _decades(10, 10_000), _members),
    Dimension("keys", "Sharding keys in use", _decades(10, 1_000_000), _keys),
    Dimension("transactions", "Open transactions", _decades(10, 100_000), _transactions),
    Dimension("delayed", "Delayed messages", _decades(100, 1_000_000), _delayed),
    Dimension("backlog", "Stored messages", _decades(10_000, 100_000_000), _backlog),
    Dimension(
        "size",
        "Size of a body, bytes",
        (100, 1_024, 10_240, 102_400, 1 << 20, 4 << 20),
        _size,
        True,
    ),
)
