"""Ten problems in one cluster: members that fail, hang, disagree or are gone, and producers that overload or leave messages undecided."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Literal

from orderlymq import Consumer, Producer
from orderlymq.admin.client import AdminClient
from orderlymq.consumer.listeners.context import OrderedContext
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.transactions import TransactionProducer, TransactionState
from orderlymq_protocol.body.clients import (
    ConsumerData,
    HeartbeatData,
    LockBatchRequest,
    SubscriptionData,
)
from orderlymq_protocol.body.config import SubscriptionGroupConfig
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_runtime.remoting.client import RemotingClient
from orderlymq_testing.cluster import Cluster

TOPICS: Final = ("orders", "suspended", "parked", "claims", "coarse", "lopsided", "bookings")
# The longest lease that a broker grants, which outlives the tests.
LEASE_MS: Final = 600_000
# A topic is judged by its last minute and then has 600 messages: ten come each second.
BURST: Final = 24


class Foreigner:
    """A client in another language: the test writes its requests itself."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._client = RemotingClient()

    async def beat(self, client_id: str, group: str, tags: str) -> None:
        """Send a member's heartbeat."""
        subscription = SubscriptionData.of_tags("claims", tags, 1)
        data = HeartbeatData(
            client_id, (), (ConsumerData(group, subscription_data_set=(subscription,)),)
        )
        await self._say(request(RequestCode.HEART_BEAT, {}, data.to_json()))

    async def lock(self, client_id: str, group: str) -> None:
        """Ask for a queue's lock."""
        queue = MessageQueue("claims", "broker-a", 0)
        body = LockBatchRequest(client_id, group, (queue,), LEASE_MS)
        await self._say(request(RequestCode.LOCK_BATCH_MQ, {}, body.to_json()))

    async def close(self) -> None:
        """Go away without a word."""
        await self._client.close()

    async def _say(self, command: RemotingCommand) -> None:
        answer = await self._client.invoke(self._address, command, 5.0)
        assert answer.code == 0, answer.remark


@contextlib.asynccontextmanager
async def ten_troubles(cluster: Cluster) -> AsyncIterator[None]:
    """Make all ten problems; they last while the block runs."""
    for topic in TOPICS:
        cluster.create_topic(topic, queues=1 if topic == "orders" else 4)
    server = cluster.name_server
    async with contextlib.AsyncExitStack() as stack:
        admin = await stack.enter_async_context(AdminClient(server))
        producer = await stack.enter_async_context(Producer(name_servers=server))
        (address,) = (await admin.brokers()).values()
        await _failing_listeners(stack, admin, server)
        for topic in ("orders", "suspended", "parked"):
            for number in range(5):
                await producer.send(topic, "x", key=f"order-{number}")
        await _undecided(stack, admin, address, server)
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        loads = tasks.create_task(_every(0.1, lambda: _overload(producer)), name="overload")
        stack.callback(loads.cancel)
        repeat = await _foreigners(stack, address)
        members = tasks.create_task(_every(3.0, repeat), name="foreign members")
        stack.callback(members.cancel)
        yield


async def _failing_listeners(
    stack: contextlib.AsyncExitStack, admin: AdminClient, server: str
) -> None:
    """A poison message, a held lane, and a consumer that its program has suspended."""

    def ship(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        if messages[0].key == "order-2":
            raise ValueError("no address for this customer")

    await admin.set_group(
        SubscriptionGroupConfig("by-key", concurrency="Key", on_dead_letter="HoldKey")
    )
    once = ConsumerSettings(max_reconsume_times=1)
    ways: tuple[tuple[str, str, bool | Literal["key"], ConsumerSettings | None], ...] = (
        ("shipping", "orders", True, None),
        ("by-key", "parked", "key", once),
        ("resting", "suspended", True, None),
    )
    for group, topic, ordered, settings in ways:
        consumer = Consumer(
            group,
            server,
            topics=topic,
            ordered=ordered,
            consume_from="first",
            listener=ship,
            settings=settings,
        )
        await stack.enter_async_context(consumer)
        if group == "resting":
            consumer.suspend()


async def _undecided(
    stack: contextlib.AsyncExitStack, admin: AdminClient, address: str, server: str
) -> None:
    """A half message whose producer never decides about it."""
    patience = {
        "transactionTimeOut": "1000",
        "transactionCheckInterval": "1000",
        "transactionCheckMax": "1",
    }
    await admin.update_broker_config(address, patience)

    def unknown(_: Message | ReceivedMessage) -> TransactionState:
        return TransactionState.UNKNOWN

    producer = await stack.enter_async_context(
        TransactionProducer("booking", name_servers=server, check=unknown)
    )
    await producer.send_in_transaction("bookings", "x", key="seat-1", execute=unknown)


async def _foreigners(
    stack: contextlib.AsyncExitStack, address: str
) -> Callable[[], Awaitable[None]]:
    """Return what is repeated: one client id twice, two different subscriptions, and a lock that two want."""
    first, second = Foreigner(address), Foreigner(address)
    stack.push_async_callback(first.close)
    stack.push_async_callback(second.close)
    gone = Foreigner(address)
    await gone.beat("ghost@pod", "orphaned", "*")
    await gone.lock("ghost@pod", "orphaned")
    await gone.close()

    async def repeat() -> None:
        for each in (first, second):
            await each.beat("twin@pod", "doubled", "*")
        await first.beat("tag-a@pod", "split", "a")
        await second.beat("tag-b@pod", "split", "b")
        await first.beat("holder@pod", "wanted", "*")
        await second.beat("claimant@pod", "wanted", "*")
        await first.lock("holder@pod", "wanted")
        await second.lock("claimant@pod", "wanted")

    return repeat


async def _overload(producer: Producer) -> None:
    """One key has most messages of one topic, and one queue those of another."""
    await asyncio.gather(
        *(
            producer.send("coarse", "x", key="everybody" if number % 4 else f"key-{number}")
            for number in range(BURST)
        ),
        *(producer.send("lopsided", "x", queue=0) for _ in range(BURST)),
    )


async def _every(pause_s: float, do: Callable[[], Awaitable[None]]) -> None:
    while True:
        await do()
        await asyncio.sleep(pause_s)
