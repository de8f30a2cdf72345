"""A `close` that is cancelled: a time limit around it, or a second Ctrl-C, leaves no ghost behind."""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    LitePullConsumer,
    OrderedContext,
    Producer,
    PullConsumer,
    ReceivedMessage,
    TransactionProducer,
    TransactionState,
)
from tests.client.fakecluster import FakeCluster, running, until
from tests.client.inbox import Inbox, fill


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 2}, ordered=True) as found:
        yield found


async def cancelled_close(client: Producer | AdminClient | PullConsumer | Consumer) -> None:
    closing = asyncio.create_task(client.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing


async def test_a_close_that_is_cancelled_while_a_listener_runs_goes_on(
    cluster: FakeCluster,
) -> None:
    """The next call waits for the same end: the group has no member that takes nothing."""
    fill(cluster, 1, queues=1)
    started, finish = asyncio.Event(), asyncio.Event()

    async def listener(_messages: Sequence[ReceivedMessage], _context: OrderedContext) -> None:
        started.set()
        await finish.wait()

    consumer = Consumer(
        "G", cluster.address, topics="T", ordered=True, consume_from="first", listener=listener
    )
    await consumer.start()
    await started.wait()
    await cancelled_close(consumer)
    again = [asyncio.create_task(consumer.close()) for _ in range(2)]
    await asyncio.sleep(0.01)
    assert not any(each.done() for each in again)
    finish.set()
    await asyncio.gather(*again)

    assert cluster.offsets["G", "T", 0] == 1
    assert (dict(cluster.members["G"]), cluster.locks) == ({}, {})
    await until(lambda: not cluster.connections, timeout_s=5)


def ordered(address: str) -> Consumer:
    return Consumer("G", address, topics="T", ordered=True, listener=Inbox().ordered)


def by_transaction(address: str) -> TransactionProducer:
    return TransactionProducer("P", address, check=lambda _: TransactionState.UNKNOWN)


def lite(address: str) -> LitePullConsumer:
    consumer = LitePullConsumer("G", address)
    consumer.subscribe("T")
    return consumer


@pytest.mark.parametrize(
    "make",
    [
        ordered,
        lite,
        lambda address: PullConsumer("G", address),
        lambda address: Producer("P", address),
        by_transaction,
        AdminClient,
    ],
    ids=["push", "lite", "pull", "producer", "transactions", "admin"],
)
@pytest.mark.parametrize("calls_again", [False, True])
async def test_a_close_that_is_cancelled_closes_all_the_same(
    cluster: FakeCluster, make: object, calls_again: bool
) -> None:
    """Connections, heartbeats and memberships end, whether `close` is called again or not."""
    client = make(cluster.address)  # type: ignore[operator]  # one of the list above
    await client.start()
    await client._instance.route("T")
    await until(lambda: bool(cluster.connections))
    await cancelled_close(client)
    if calls_again:
        await client.close()
        await client.close()

    await until(lambda: not cluster.connections, timeout_s=5)
    assert dict(cluster.members["G"]) == {}
