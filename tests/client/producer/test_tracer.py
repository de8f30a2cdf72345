"""Writing traces: complete, in the background, and never in the way."""

import asyncio

import pytest

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.tracerecords import (
    ConsumeBegan,
    ConsumeEnded,
    Published,
    Trace,
    parse_traces,
)
from orderlymq.consumer.core.events import ConcurrentResult
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.errors import SendRefused
from orderlymq.producer.producer import Producer
from orderlymq.producer.tracer import WAITING_MAX, Tracer
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, refuse, running, silence, until

TRACES = "RMQ_SYS_TRACE_TOPIC"


def traces(cluster: FakeCluster) -> list[Trace]:
    return [each for stored in cluster.logs[TRACES, 0] for each in parse_traces(stored.body)]


async def test_each_send_is_traced_with_its_outcome() -> None:
    """A producer that closes has sent all its traces; traces are not traced."""
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address, trace=True) as producer:
            first = await producer.send("T", "hello", tags="A", keys="k1 k2")
            future = producer.send_nowait("T", "more")
            second = await future

        found = traces(cluster)

    assert [
        (each.message_id, each.group, each.success) for each in found if isinstance(each, Published)
    ] == [
        (first.message_id, "shop", True),
        (second.message_id, "shop", True),
    ]
    one = found[0]
    assert isinstance(one, Published)
    assert (one.topic, one.tags, one.keys, one.body_length, one.offset_message_id) == (
        "T",
        "A",
        "k1 k2",
        5,
        first.offset_message_id,
    )


async def test_a_consumer_traces_the_beginning_and_the_end() -> None:
    """Both records carry the same request id."""
    done = asyncio.Event()

    async def listener(_messages: object, _context: object) -> ConcurrentResult:
        done.set()
        return ConcurrentResult.SUCCESS

    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address) as producer:
            result = await producer.send("T", "hello")
        async with Consumer(
            "billing",
            cluster.address,
            topics="T",
            consume_from="first",
            listener=listener,
            trace=True,
        ):
            await asyncio.wait_for(done.wait(), 5)
        began, ended = traces(cluster)

    assert isinstance(began, ConsumeBegan)
    assert isinstance(ended, ConsumeEnded)
    assert (began.group, began.message_id, began.retry_times) == ("billing", result.message_id, 0)
    assert began.request_id == ended.request_id != ""
    assert (ended.success, ended.outcome) == (True, "SUCCESS")


async def test_tracing_that_fails_disturbs_nobody() -> None:
    """Without a trace topic messages are sent as ever; what is too much is dropped and counted."""
    async with running(topics={"T": 1}) as cluster:
        async with Producer("shop", cluster.address, trace="nowhere") as producer:
            assert (await producer.send("T", "hello")).queue_offset == 0

        tracer = Tracer(ClientInstance(cluster.address), "x", "x")
        for _ in range(WAITING_MAX + 7):
            tracer._take(Published(1, "r", "g", "T", "M"))
        assert tracer.dropped == 7


async def test_each_trace_is_sent_or_counted_when_its_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: closing takes one short time for all of them. Three seconds for each hundred were a minute."""
    monkeypatch.setattr("orderlymq.producer.tracer._CLOSE_S", 0.05)
    async with running(topics={TRACES: 1}) as cluster:
        cluster.faults[310] = [silence] * 9
        tracer = Tracer(ClientInstance(cluster.address), "x", "x")
        await tracer.start()
        tracer._take(Published(1, "r", "g", "T", "M"))
        await until(lambda: 310 in cluster.codes())
        for _ in range(350):
            tracer._take(Published(1, "r", "g", "T", "M"))
        await tracer.close()

        assert tracer.dropped == 351
        assert cluster.codes().count(310) == 1


async def test_traces_that_are_under_way_when_their_client_closes_arrive() -> None:
    """The answer comes during the end."""
    closing: list[asyncio.Task[None]] = []
    async with running(topics={TRACES: 1}) as cluster:
        tracer = Tracer(ClientInstance(cluster.address), "x", "x")

        def late(command: RemotingCommand, conn: Connection) -> None:
            closing.append(asyncio.create_task(tracer.close()))
            loop = asyncio.get_running_loop()
            stored = cluster.serve(command, conn)
            assert stored is not None
            loop.call_soon(loop.call_soon, conn.send, stored)

        cluster.faults[310] = [late]
        await tracer.start()
        tracer._take(Published(1, "r", "g", "T", "M"))
        await until(lambda: bool(closing))
        await closing[0]

        assert tracer.dropped == 0
        assert len(traces(cluster)) == 1


async def test_a_refused_send_is_traced_as_failed() -> None:
    """The error reaches the caller unchanged."""
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address, trace=True) as producer:
            cluster.faults[310].append(refuse(13))
            with pytest.raises(SendRefused):
                await producer.send("T", "hello")
        (found,) = traces(cluster)

    assert isinstance(found, Published)
    assert (found.success, found.offset_message_id) == (False, "")
