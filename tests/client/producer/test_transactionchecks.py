"""A broker's checks of a transaction producer: where the answer goes, and closing meanwhile."""

import asyncio
import contextlib
from concurrent.futures import CancelledError

import pytest

from orderlymq import Message, ReceivedMessage, TransactionProducer, TransactionState
from orderlymq.connection.instance import ClientInstance
from orderlymq.producer.transactions import Execute
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader
from orderlymq_protocol.message.properties import PGROUP, encode_properties
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, running
from tests.protocol.records import encode_record
from tests.waiting import until


def ask(cluster: FakeCluster) -> None:
    """Ask over each connection about the last message of T."""
    header, body = CheckTransactionStateHeader(1, 1), encode_record(cluster.logs["T", 0][-1])
    for conn in cluster.connections:
        conn.send(
            request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body=body, oneway=True)
        )


async def test_the_answer_to_a_check_goes_to_the_address_that_was_called() -> None:
    """Law: the answer goes to the broker's address in the route, as sends do, not to its IP address."""
    asked_by: list[Connection] = []

    def end(command: RemotingCommand, conn: Connection) -> RemotingCommand:
        asked_by.append(conn)
        return command.reply()

    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"half", encode_properties({PGROUP: "tx"}))
        cluster.faults[RequestCode.END_TRANSACTION] = [end]
        cluster.host = "localhost"  # In its route.
        instance = ClientInstance(cluster.address)
        producer = TransactionProducer(
            "tx", instance=instance, check=lambda _: TransactionState.COMMIT
        )
        async with producer:
            await instance.route("T")
            await until(lambda: bool(cluster.heartbeats))
            (known,) = cluster.connections
            ask(cluster)
            await until(lambda: bool(asked_by))

            assert asked_by == [known]


async def test_a_check_that_goes_on_though_it_is_cancelled_does_not_keep_its_producer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: `close` ends even if a check ignores its cancellation."""
    monkeypatch.setattr("orderlymq.producer.transactions._CANCEL_S", 0.01)
    begun, finish = asyncio.Event(), asyncio.Event()

    async def stubborn(_message: ReceivedMessage) -> TransactionState:
        begun.set()
        while not finish.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await finish.wait()
        return TransactionState.COMMIT

    async with running(topics={"T": 1}) as cluster:
        producer = TransactionProducer("tx", cluster.address, check=stubborn)
        await producer.start()
        await producer.send("T", "hello")
        cluster.append("T", 0, b"half", encode_properties({PGROUP: "tx"}))
        await until(lambda: bool(cluster.heartbeats))
        ask(cluster)
        await begun.wait()
        async with asyncio.timeout(10):
            await producer.close()
        finish.set()


async def test_a_check_that_raises_what_no_future_carries_leaves_the_next_one_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: a check that raises StopIteration frees its place; 16 of them once blocked all later checks."""
    monkeypatch.setattr("orderlymq.producer.transactions.CHECKS_RUNNING_MAX", 1)
    rows = iter([TransactionState.COMMIT])
    asked: list[str] = []

    def check(message: ReceivedMessage) -> TransactionState:
        asked.append(message.text)
        return next(rows) if message.text == "known" else next(iter(()))

    async with running(topics={"T": 1}) as cluster:
        cluster.faults[RequestCode.END_TRANSACTION] = [lambda command, _: command.reply()]
        async with TransactionProducer("tx", cluster.address, check=check) as producer:
            await producer.send("T", "hello")
            await until(lambda: bool(cluster.heartbeats))
            for text in (b"unknown", b"known"):
                cluster.append("T", 0, text, encode_properties({PGROUP: "tx"}))
                ask(cluster)
            await until(lambda: RequestCode.END_TRANSACTION in cluster.codes())

    assert asked == ["unknown", "known"]


def nothing_left(_message: Message) -> TransactionState:
    return next(iter(()))


def cancelled_elsewhere(_message: Message) -> TransactionState:
    raise CancelledError


async def cancelled_within(_message: Message) -> TransactionState:
    other = asyncio.create_task(asyncio.sleep(60))
    other.cancel()
    await other
    return TransactionState.COMMIT


@pytest.mark.parametrize(
    ("execute", "error"),
    [
        (nothing_left, RuntimeError),
        (cancelled_elsewhere, CancelledError),
        (cancelled_within, RuntimeError),
    ],
)
async def test_whatever_a_local_transaction_raises_is_returned(
    execute: Execute, error: type[Exception]
) -> None:
    """Law: whatever a local transaction raises is returned with the result, because the half message is stored."""
    async with running(topics={"T": 1}) as cluster:
        cluster.faults[RequestCode.END_TRANSACTION] = [lambda command, _: command.reply()]
        async with (
            TransactionProducer(
                "tx", cluster.address, check=lambda _: TransactionState.UNKNOWN
            ) as producer,
            asyncio.timeout(10),
        ):
            result = await producer.send_in_transaction("T", "half", execute=execute)

    assert (result.state, result.reported) == (TransactionState.UNKNOWN, True)
    assert isinstance(result.error, error)
