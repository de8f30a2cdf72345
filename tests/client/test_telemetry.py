"""OpenTelemetry: a trace goes from the sender with the message into the listener."""

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest

pytest.importorskip("opentelemetry.sdk", reason="the extra otel is not installed")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from orderlymq import Consumer, ConsumerSettings, Message, Producer, SendRefused
from orderlymq.message import ReceivedMessage
from orderlymq.telemetry import instrument
from orderlymq_protocol.codes import RequestCode, ResponseCode
from tests.client.fakecluster import FakeCluster, refuse, running
from tests.waiting import until


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with running(topics={"T": 1}, ordered=True) as found:
        yield found


@pytest.fixture
def spans() -> Iterator[InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    stop = instrument(provider)
    yield exporter
    stop()


def named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    return [span for span in exporter.get_finished_spans() if span.name == name]


@pytest.mark.parametrize("in_thread", [True, False])
async def test_a_listener_continues_the_trace_of_its_sender(
    cluster: FakeCluster, spans: InMemorySpanExporter, in_thread: bool
) -> None:
    """Law: a listener, also in a thread, continues its sender's trace; names and attributes follow the conventions."""
    inside: list[int] = []

    def plain(_messages: Sequence[ReceivedMessage], _context: object) -> None:
        inside.append(trace.get_current_span().get_span_context().trace_id)

    async def listener(messages: Sequence[ReceivedMessage], context: object) -> None:
        plain(messages, context)

    async with (
        Producer("P", cluster.address) as producer,
        Consumer(
            "G",
            cluster.address,
            topics="T",
            ordered=True,
            consume_from="first",
            listener=plain if in_thread else listener,
        ),
    ):
        result = await producer.send("T", b"abc", key="k")
        await until(lambda: len(named(spans, "process T")) == 1)

    (sent,), (processed,) = named(spans, "send T"), named(spans, "process T")
    assert sent.kind is SpanKind.PRODUCER
    assert processed.kind is SpanKind.CONSUMER
    assert processed.parent is not None
    assert processed.parent.span_id == sent.context.span_id
    assert inside == [sent.context.trace_id]
    assert dict(sent.attributes or {}) == {
        "messaging.system": "orderlymq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "T",
        "messaging.message.body.size": 3,
        "messaging.destination.partition.id": "broker-a:0",
        "messaging.message.id": result.message_id,
    }
    assert (processed.attributes or {})["messaging.consumer.group.name"] == "G"


async def test_a_call_with_several_messages_links_to_each_sender(
    cluster: FakeCluster, spans: InMemorySpanExporter
) -> None:
    """Law: a call with several messages links to each sender's span and has no parent."""
    async with Producer("P", cluster.address) as producer:
        for number in range(2):
            await producer.send("T", f"m{number}", key="k")
    settings = ConsumerSettings(consume_message_batch_max_size=10)
    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=lambda *_: None,
        settings=settings,
    ):
        await until(lambda: len(named(spans, "process T")) == 1)

    (processed,) = named(spans, "process T")
    senders = [span.context.span_id for span in named(spans, "send T")]
    assert [link.context.span_id for link in processed.links] == senders
    assert processed.parent is None


async def test_failures_are_errors_of_their_spans(
    cluster: FakeCluster, spans: InMemorySpanExporter
) -> None:
    """Law: failed sends and listener calls mark their spans as errors."""
    cluster.faults[RequestCode.SEND_MESSAGE_V2] = [refuse(ResponseCode.MESSAGE_ILLEGAL)] * 2
    tries: list[int] = []

    def listener(_messages: Sequence[ReceivedMessage], _context: object) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("no")

    async with Producer("P", cluster.address) as producer:
        with pytest.raises(SendRefused):
            await producer.send(Message(topic="T", body=b"x", key="k"))
        with pytest.raises(SendRefused):
            await producer.send_nowait("T", b"x", key="k")
        await producer.send("T", b"x", key="k")
    async with Consumer(
        "G",
        cluster.address,
        topics="T",
        ordered=True,
        consume_from="first",
        listener=listener,
        settings=ConsumerSettings(suspend_current_queue_time=0.01),
    ):
        await until(lambda: len(named(spans, "process T")) == 2)

    assert [span.status.status_code for span in named(spans, "send T")] == [
        StatusCode.ERROR,
        StatusCode.ERROR,
        StatusCode.UNSET,
    ]
    failed, done = named(spans, "process T")
    assert (failed.status.status_code, done.status.status_code) == (
        StatusCode.ERROR,
        StatusCode.UNSET,
    )
    assert (failed.attributes or {})["error.type"] == "EXCEPTION"
