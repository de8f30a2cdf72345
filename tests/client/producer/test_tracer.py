"""Writing traces: complete, in the background, without disturbing sends."""

import asyncio
from typing import Any

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
from orderlymq.consumer.group.offsets import BrokerOffsets
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import MessageModel
from orderlymq.errors import SendRefused
from orderlymq.message import Message
from orderlymq.producer.producer import Producer
from orderlymq.producer.tracer import WAITING_MAX, Tracer
from orderlymq_protocol.frame.command import RemotingCommand
from orderlymq_protocol.message.ids import decode_offset_message_id
from orderlymq_runtime.remoting.connection import Connection
from tests.client.fakecluster import FakeCluster, refuse, running, silence
from tests.waiting import until

TRACES = "RMQ_SYS_TRACE_TOPIC"


def traces(cluster: FakeCluster) -> list[Trace]:
    return [each for stored in cluster.logs[TRACES, 0] for each in parse_traces(stored.body)]


async def test_each_send_is_traced_with_its_outcome() -> None:
    """Law: each send is traced with its outcome before the producer has closed; traces are not traced."""
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


@pytest.mark.parametrize("linger", [0, 0.005])
async def test_each_message_that_is_sent_together_with_others_is_traced(linger: float) -> None:
    """Law: each message of a batch or of lingering sends is traced."""
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address, trace=True, linger=linger) as producer:
            sent = [producer.send_nowait("T", f"n{number}") for number in range(3)]
            results = await asyncio.gather(*sent)
            results.append(await producer.send("T", "one", key="k"))
            batch = [Message(topic="T", body=b"b") for _ in range(2)]
            await producer.send_batch(batch)
            for code in (310, 320):
                cluster.faults[code] = [refuse(13)]
            with pytest.raises(SendRefused):
                await producer.send("T", "refused")
            cluster.faults.clear()
        found = [each for each in traces(cluster) if isinstance(each, Published)]

    acknowledged = [each for each in found if each.success]
    stored = {stored.physical_offset for stored in cluster.logs["T", 0]}
    assert [each.message_id for each in acknowledged] == [
        *(each.message_id for each in results),
        *(each.unique_key for each in batch),
    ]
    assert {decode_offset_message_id(each.offset_message_id)[2] for each in acknowledged} == stored
    assert len(found) - len(acknowledged) == 1


async def test_a_consumer_traces_the_beginning_and_the_end() -> None:
    """Law: a consumer traces begin and end with the same request id."""
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
    """Law: without a trace topic messages are sent as usual; traces beyond a limit are dropped and counted."""
    async with running(topics={"T": 1}) as cluster:
        async with Producer("shop", cluster.address, trace="nowhere") as producer:
            assert (await producer.send("T", "hello")).queue_offset == 0

        tracer = Tracer(ClientInstance(cluster.address), "x", "x")
        for _ in range(WAITING_MAX + 7):
            tracer._take(Published(1, "r", "g", "T", "M"))
        assert tracer.dropped == 7


@pytest.mark.parametrize("what", ["tags", "keys"])
async def test_a_send_without_tags_or_keys_is_traced(what: str) -> None:
    """Law: a send with None as tags or keys is traced."""
    nothing: dict[str, Any] = {what: None}
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address, trace=True) as producer:
            await producer.send("T", "hello", **nothing)

        assert len(traces(cluster)) == 1


async def test_a_group_with_the_longest_name_is_traced() -> None:
    """Law: a group with the longest name can be traced."""
    group, done = "g" * 255, asyncio.Event()

    async def listener(_messages: object, _context: object) -> None:
        done.set()

    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer(group, cluster.address, trace=True) as producer:
            await producer.send("T", "hello")
        async with Consumer(
            group,
            cluster.address,
            topics="T",
            listener=listener,
            consume_from="first",
            # It has no retry topic, whose name would be too long.
            message_model=MessageModel.BROADCASTING,
            offset_store=BrokerOffsets(ClientInstance(cluster.address), group),
            trace=True,
        ):
            await asyncio.wait_for(done.wait(), 5)

        assert [type(each) for each in traces(cluster)] == [Published, ConsumeBegan, ConsumeEnded]


async def test_a_trace_that_cannot_be_written_keeps_no_client_from_its_end() -> None:
    """Law: a trace that cannot be written does not stop the close."""
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        producer = Producer("shop", cluster.address, trace=True)
        await producer.start()
        assert producer._tracer is not None
        producer._tracer._take(Published(1, "r", "g", "T", "\ud800"))
        await producer.close()

        await until(lambda: not cluster.connections)
        assert producer._tracer.dropped == 1


async def test_each_trace_is_sent_or_counted_when_its_client_closes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Law: closing takes one short time for all traces; the others are counted as dropped."""
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
    """Law: traces that are under way at the close arrive."""
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
    """Law: a refused send is traced as failed, and its error is unchanged."""
    async with running(topics={"T": 1, TRACES: 1}) as cluster:
        async with Producer("shop", cluster.address, trace=True) as producer:
            cluster.faults[310].append(refuse(13))
            with pytest.raises(SendRefused):
                await producer.send("T", "hello")
        (found,) = traces(cluster)

    assert isinstance(found, Published)
    assert (found.success, found.offset_message_id) == (False, "")
