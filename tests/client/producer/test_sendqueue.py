"""Sends of one key that are not awaited, and what stays behind them: batches, requests, sends with a selector."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orderlymq.errors import ReplyTimeout, SendRefused
from orderlymq.message import Message
from orderlymq.producer.producer import Producer
from orderlymq.producer.selectors import by_hash
from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, refuse, running
from tests.waiting import until

Call = Callable[[Producer], Awaitable[object]]

CALLS: dict[str, Call] = {
    "batch": lambda producer: producer.send_batch([Message(topic="T", body=b"last", key="k")]),
    "batch of a key": lambda producer: producer.send_batch(
        [Message(topic="T", body=b"last")], key="k"
    ),
    "request": lambda producer: producer.request("T", "last", key="k", timeout=30),
    "selector": lambda producer: producer.send("T", "last", selector=by_hash, argument="k"),
    "selector and key": lambda producer: producer.send("T", "last", key="k", selector=by_hash),
}


def _refuse(cluster: FakeCluster, times: int) -> None:
    """Let sends be tried again often, so that the last one, which is served, could pass them."""

    def fault(command: RemotingCommand, conn: Connection) -> RemotingCommand | None:
        is_last = b"last" in command.body
        return cluster.serve(command, conn) if is_last else command.reply(14, remark="no leader")

    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE):
        cluster.faults[code] = [fault] * times


@pytest.mark.parametrize("linger", [0.0, 0.005])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_whatever_has_the_key_stays_behind_the_sends_that_nobody_waits_for(
    call: Call, linger: float
) -> None:
    """Law: everything with a key stays behind earlier sends of that key, although the first is tried again (SND-04)."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        _refuse(cluster, 4)
        first = [producer.send_nowait("T", f"m{n}", key="k") for n in range(3)]
        last = asyncio.ensure_future(call(producer))
        queue = (await asyncio.gather(*first))[0].queue.queue_id
        await until(lambda: len(cluster.bodies("T", queue)) == 4)
        last.cancel()  # A request, to which no reply comes.

    assert cluster.bodies("T", queue) == [b"m0", b"m1", b"m2", b"last"]


@pytest.mark.parametrize("linger", [0.0, 0.005])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_whatever_waits_behind_a_failed_send_is_refused_unsent(
    call: Call, linger: float
) -> None:
    """Law: whatever waits behind a failed send of its key is refused unsent."""
    async with (
        running(topics={"T": 4}, ordered=True) as cluster,
        Producer("G", cluster.address, linger=linger) as producer,
    ):
        await producer.queues("T")
        _refuse(cluster, 4)
        cluster.faults[RequestCode.SEND_MESSAGE_V2].append(refuse(13))
        first = producer.send_nowait("T", "first", key="k")
        with pytest.raises(SendRefused, match="an earlier send of the same key failed"):
            await call(producer)
        with pytest.raises(SendRefused, match="refused by the test"):
            await first

    assert not any(cluster.logs.values())


async def test_a_request_that_waits_too_long_is_not_sent() -> None:
    """Law: a request's time-out covers its wait behind earlier sends."""
    async with running(topics={"T": 1}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        _refuse(cluster, 6)
        first = producer.send_nowait("T", "first", key="k")
        with pytest.raises(ReplyTimeout, match="not sent"):
            await producer.request("T", "last", key="k", timeout=0.1)
        await first

    assert cluster.bodies("T", 0) == [b"first"]


async def test_a_batch_to_a_queue_stays_behind_the_sends_to_this_queue() -> None:
    """Law: a batch to a queue stays behind earlier sends to that queue."""
    async with running(topics={"T": 2}) as cluster, Producer("G", cluster.address) as producer:
        await producer.queues("T")
        _refuse(cluster, 4)
        first = producer.send_nowait("T", "first", queue=1)
        await producer.send_batch([Message(topic="T", body=b"last")], queue=1)
        await first

    assert cluster.bodies("T", 1) == [b"first", b"last"]
