"""A transaction producer that a broker asks: where the answer goes, and the end of the producer meanwhile."""

import asyncio
import contextlib

import pytest

from orderlymq import ReceivedMessage, TransactionProducer, TransactionState
from orderlymq.connection.instance import ClientInstance
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand, request
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader
from orderlymq_protocol.message.properties import PGROUP, encode_properties
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, running
from tests.protocol.records import encode_record
from tests.waiting import until


def ask(cluster: FakeCluster) -> None:
    """Ask down each connection what became of the last message of T."""
    header, body = CheckTransactionStateHeader(1, 1), encode_record(cluster.logs["T", 0][-1])
    for conn in cluster.connections:
        conn.send(
            request(RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body=body, oneway=True)
        )


async def test_the_answer_to_a_check_goes_to_the_address_that_was_called() -> None:
    """Law: an answer takes the way that sends take; by its IP address a gateway, or a server with TLS, is another one."""
    asked_by: list[Connection] = []

    def end(command: RemotingCommand, conn: Connection) -> RemotingCommand:
        asked_by.append(conn)
        return command.reply()

    async with running(topics={"T": 1}) as cluster:
        cluster.append("T", 0, b"half", encode_properties({PGROUP: "tx"}))
        cluster.faults[RequestCode.END_TRANSACTION] = [end]
        cluster.host = "localhost"  # in its route
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
    """Law: `close` ends, whatever the functions of the program do."""
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
