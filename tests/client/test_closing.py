"""
What `close` waits for, and a `close` that is cancelled.

A time limit around it, or a second Ctrl-C, leaves nothing running.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import pytest

from orderlymq import (
    AdminClient,
    Consumer,
    LitePullConsumer,
    Message,
    OrderedContext,
    Producer,
    PullConsumer,
    ReceivedMessage,
    StateError,
    TransactionProducer,
    TransactionState,
)
from orderlymq.producer.selectors import by_hash
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, running, silence
from tests.client.inbox import Inbox, fill
from tests.waiting import until


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
    """Law: a cancelled `close` goes on while a listener runs; the next call waits for the same end."""
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


KINDS = pytest.mark.parametrize(
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


@KINDS
@pytest.mark.parametrize("calls_again", [False, True])
async def test_a_close_that_is_cancelled_closes_all_the_same(
    cluster: FakeCluster, make: object, calls_again: bool
) -> None:
    """Law: a cancelled `close` still ends connections, heartbeats and memberships."""
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


@KINDS
async def test_a_close_on_another_loop_is_refused_and_changes_nothing(
    cluster: FakeCluster, make: object
) -> None:
    """Law: a `close` on another loop is refused and changes nothing."""
    client = make(cluster.address)  # type: ignore[operator]  # one of the list above
    await client.start()
    await client._instance.route("T")

    with pytest.raises(StateError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(client.close()))
    if isinstance(client, Producer):
        await client.send("T", "x")

    assert cluster.connections
    await client.close()
    await until(lambda: not cluster.connections, timeout_s=5)


async def test_a_close_on_another_loop_gives_up_no_start(cluster: FakeCluster) -> None:
    """Law: this holds while the consumer starts."""
    routes = cluster.faults[int(RequestCode.GET_ROUTEINFO_BY_TOPIC)]
    asked, go_on = asyncio.Event(), asyncio.Event()
    tasks = set()

    async def answer(command: RemotingCommand, conn: Connection) -> None:
        await go_on.wait()
        found = cluster.serve(command, conn)
        assert found is not None
        conn.send(found)

    def slow(command: RemotingCommand, conn: Connection) -> None:
        tasks.add(asyncio.create_task(answer(command, conn)))
        asked.set()

    routes.append(slow)
    consumer = ordered(cluster.address)
    starting = asyncio.create_task(consumer.start())
    await asked.wait()
    with pytest.raises(StateError, match="another event loop"):
        await asyncio.to_thread(lambda: asyncio.run(consumer.close()))
    go_on.set()
    await starting

    assert consumer.state == "RUNNING"
    await consumer.close()


@KINDS
@pytest.mark.parametrize("steps", [1, 2, 3, 5, 8, 13])
@pytest.mark.parametrize("is_shared", [True, False])
async def test_a_close_while_it_starts_is_not_forgotten(
    cluster: FakeCluster, make: Callable[..., Consumer], steps: int, is_shared: bool
) -> None:
    """Law: a `close` during the start leaves no member, task or connection."""
    client = make(cluster.address)
    if is_shared:
        await client._instance.start()
        await client._instance.route("T")
    before = asyncio.all_tasks()
    starting = asyncio.create_task(client.start())
    for _ in range(steps):
        await asyncio.sleep(0)
    await client.close()
    with contextlib.suppress(StateError):
        await starting
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not {name for name in left if name.startswith(("rebalance", "pull", "persist"))}
    assert dict(cluster.members["G"]) == {}
    assert getattr(client, "_state", "") != "RUNNING"
    if is_shared:
        await client._instance.close()

    await until(lambda: not cluster.connections, timeout_s=5)


async def test_a_run_that_is_closed_while_it_starts_ends_without_an_error(
    cluster: FakeCluster,
) -> None:
    """Law: `run` ends without an error if it is closed during its start."""
    consumer = ordered(cluster.address)
    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert consumer.state == "START_FAILED"
    await consumer.close()

    await running
    assert dict(cluster.members["G"]) == {}


async def test_a_run_that_was_closed_before_ends_without_an_error(cluster: FakeCluster) -> None:
    """Law: `run` of a closed consumer ends without an error, because a signal may come early."""
    consumer = ordered(cluster.address)
    await consumer.close()

    async with asyncio.timeout(5):
        await consumer.run()
    assert not cluster.connections


async def test_a_run_after_a_start_that_failed_says_so(cluster: FakeCluster) -> None:
    """Law: `run` after a failed start raises."""
    consumer = ordered(cluster.address)
    cluster.faults[int(RequestCode.GET_ROUTEINFO_BY_TOPIC)] = [silence] * 99
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(consumer.start(), 0.1)

    async with asyncio.timeout(5):
        with pytest.raises(StateError, match="START_FAILED"):
            await consumer.run()
        await consumer.close()
        await consumer.run()


async def test_a_run_beside_a_start_waits_for_it(cluster: FakeCluster) -> None:
    """Law: `run` during a start waits for its result."""
    consumer = ordered(cluster.address)
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0)
    assert consumer.state == "START_FAILED"
    running = asyncio.create_task(consumer.run())
    await starting
    await asyncio.sleep(0)
    assert not running.done()
    await consumer.close()
    await running

    consumer = ordered(cluster.address)
    cluster.faults[int(RequestCode.GET_ROUTEINFO_BY_TOPIC)] = [silence] * 99
    starting = asyncio.create_task(consumer.start())
    await asyncio.sleep(0)
    running = asyncio.create_task(consumer.run())
    await asyncio.sleep(0)
    starting.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(StateError, match="START_FAILED"):
            await running


SENDS: dict[str, Callable[[TransactionProducer], Awaitable[object]]] = {
    "plain": lambda producer: producer.send("T", "x"),
    "by key": lambda producer: producer.send("T", "x", key="k"),
    "by selector": lambda producer: producer.send("T", "x", selector=by_hash, argument="k"),
    "batch": lambda producer: producer.send_batch([Message(topic="T", body=b"x")]),
    "half": lambda producer: producer._send_half(Message(topic="T", body=b"x"), None, None, None),
}


@pytest.mark.parametrize("send", SENDS.values(), ids=SENDS)
async def test_closing_waits_for_sends_that_are_awaited(
    cluster: FakeCluster, send: Callable[[TransactionProducer], Awaitable[object]]
) -> None:
    """Law: closing waits for awaited sends, so that their outcome is known (SND-12)."""
    held: list[tuple[RemotingCommand, Connection]] = []
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        cluster.faults[code] = [lambda command, conn: held.append((command, conn))]
    producer = by_transaction(cluster.address)
    await producer.start()
    sending = asyncio.ensure_future(send(producer))
    await until(lambda: bool(held))
    closing = asyncio.create_task(producer.close())
    await asyncio.wait([closing], timeout=0.1)
    assert not closing.done()
    ((command, conn),) = held
    answer = cluster.serve(command, conn)
    assert answer is not None
    conn.send(answer)
    await asyncio.gather(sending, closing)

    assert sum(map(len, cluster.logs.values())) == 1


async def test_a_request_whose_producer_is_closed_ends_by_an_error_not_by_a_cancellation(
    cluster: FakeCluster,
) -> None:
    """Law: a request whose producer is closed raises an error, not a cancellation."""
    producer = Producer("P", cluster.address)
    await producer.start()
    asking = asyncio.create_task(producer.request("T", "q", timeout=30))
    await until(lambda: any(cluster.logs.values()))
    async with asyncio.timeout(5):
        await producer.close()

        with pytest.raises(StateError, match="closed before the reply came"):
            await asking
