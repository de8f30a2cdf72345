"""The end of a transaction producer while it is asked."""

import asyncio
import contextlib

import pytest

from orderlymq import ReceivedMessage, TransactionProducer, TransactionState
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import request
from orderlymq_protocol.header.catalogue import CheckTransactionStateHeader
from orderlymq_protocol.message.properties import PGROUP, encode_properties
from tests.client.fakecluster import running, until
from tests.protocol.records import encode_record


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
        header = CheckTransactionStateHeader(1, 1)
        body = encode_record(cluster.logs["T", 0][-1])
        await until(lambda: bool(cluster.heartbeats))
        for conn in cluster.connections:
            conn.send(
                request(
                    RequestCode.CHECK_TRANSACTION_STATE, header.to_ext(), body=body, oneway=True
                )
            )
        await begun.wait()
        async with asyncio.timeout(10):
            await producer.close()
        finish.set()
