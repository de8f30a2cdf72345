"""The hook that traces every message that a listener gets."""

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.tracerecords import ConsumeBegan, ConsumeEnded
from orderlymq.consumer.listeners.context import ConsumeContext, ConsumeHook
from orderlymq.producer.tracer import REGION, Tracer
from orderlymq_runtime.wallclock import machine_ms


class TraceHook(ConsumeHook):
    """Traces every message that a listener gets."""

    def __init__(self, tracer: Tracer, instance: ClientInstance) -> None:
        self._tracer = tracer
        self._instance = instance

    def before(self, context: ConsumeContext) -> None:
        """Record the start of each message."""
        request_id = self._instance.unique_keys.next(machine_ms())
        context.properties["traceRequest"] = request_id
        context.properties["traceBegan"] = str(machine_ms())
        for message in context.messages:
            self._tracer.add(
                ConsumeBegan(
                    machine_ms(),
                    REGION,
                    self._instance.bare(context.group),
                    request_id,
                    message.message_id,
                    message.reconsume_times,
                    " ".join(message.keys),
                )
            )

    def after(self, context: ConsumeContext) -> None:
        """Record the outcome of each message."""
        request_id = context.properties.get("traceRequest", "")
        began_ms = int(context.properties.get("traceBegan", "0"))
        returned = context.returned.value if context.returned is not None else "SUCCESS"
        count = max(1, len(context.messages))
        for message in context.messages:
            self._tracer.add(
                ConsumeEnded(
                    request_id,
                    message.message_id,
                    (machine_ms() - began_ms) // count,
                    context.success,
                    " ".join(message.keys),
                    returned,
                    machine_ms(),
                    context.group,
                )
            )
