"""
OpenTelemetry: spans of sends and of listener calls, linked by the properties `traceparent` and `tracestate`.

Needs `orderlymq[otel]`. A program calls `instrument()` once to begin. Names follow OpenTelemetry's conventions for
messaging. Rules: a batch is one span. A listener call with one message continues its sender's trace; a call with
several messages links to the trace of each. Nothing of this is imported without `instrument()`.
"""

from collections.abc import Callable, Sequence
from typing import Any

from orderlymq.consumer.listeners.context import ConsumeContext
from orderlymq.message import Message, SendResult
from orderlymq.observers import install

try:
    from opentelemetry import context as contexts
    from opentelemetry import propagate, trace
    from opentelemetry.trace import Link, Span, SpanKind, StatusCode, TracerProvider
except ImportError as error:
    raise ImportError(f"{error}; install it with: pip install 'orderlymq[otel]'") from error


def instrument(provider: TracerProvider | None = None) -> Callable[[], None]:
    """Make spans from now on; return a function that stops it.

    Args:
        provider: makes the spans; the program's own when None.
    """
    return install(_Spans(trace.get_tracer("orderlymq", tracer_provider=provider)))


class _Spans:
    """The observer that makes spans."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._open: dict[int, tuple[Span, Any]] = {}

    def sending(self, _group: str, _topic: str, messages: Sequence[Message]) -> Span:
        """Begin the span of a send and put its context into the messages."""
        topic = messages[0].topic
        attributes = _facts("send", topic, len(messages))
        attributes["messaging.message.body.size"] = sum(len(each.body) for each in messages)
        span = self._tracer.start_span(
            f"send {topic}", kind=SpanKind.PRODUCER, attributes=attributes
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        for message in messages:
            message.properties = {**message.properties, **carrier}
        return span

    def sent(
        self, token: object, messages: Sequence[Message], outcome: SendResult | BaseException
    ) -> None:
        if not isinstance(token, Span):
            return
        if isinstance(outcome, SendResult):
            token.set_attribute("messaging.destination.partition.id", _partition(outcome.queue))
            if len(messages) == 1:
                token.set_attribute("messaging.message.id", outcome.message_id)
        else:
            token.record_exception(outcome)
            token.set_attribute("error.type", type(outcome).__qualname__)
            token.set_status(StatusCode.ERROR, str(outcome))
        token.end()

    def before(self, context: ConsumeContext) -> None:
        """Begin the span of a listener call and make it the current span there."""
        topic = context.messages[0].topic
        found = [
            propagate.extract(each.properties, contexts.Context()) for each in context.messages
        ]
        alone = len(found) == 1
        attributes = _facts("process", topic, len(found))
        attributes["messaging.consumer.group.name"] = context.group
        attributes["messaging.destination.partition.id"] = _partition(context.queue)
        if alone:
            attributes["messaging.message.id"] = context.messages[0].message_id
        senders = [trace.get_current_span(each).get_span_context() for each in found]
        span = self._tracer.start_span(
            f"process {topic}",
            context=found[0] if alone else contexts.Context(),
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(each) for each in senders if each.is_valid and not alone],
        )
        self._open[id(context)] = span, contexts.attach(trace.set_span_in_context(span))

    def after(self, context: ConsumeContext) -> None:
        found = self._open.pop(id(context), None)
        if found is None:
            return
        span, token = found
        contexts.detach(token)
        if not context.success:
            reason = "" if context.returned is None else context.returned.value
            span.set_attribute("error.type", reason or "again")
            span.set_status(StatusCode.ERROR, context.status)
        span.end()


def _facts(operation: str, topic: str, count: int) -> dict[str, str | int]:
    facts: dict[str, str | int] = {
        "messaging.system": "orderlymq",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
    return facts if count == 1 else {**facts, "messaging.batch.message_count": count}


def _partition(queue: Any) -> str:
    return f"{queue.broker_name}:{queue.queue_id}"
