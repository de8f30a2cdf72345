"""
A tracer reports what producers and consumers did with single messages to the trace topic, in the background.

Rule: tracing never delays, fails or reorders the traced messages. Traces are dropped and counted if there are too
many, if they cannot be sent, or if the short time at the end of their client does not suffice.
`orderlymq.connection.tracerecords` has the form of a trace.
"""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Final

from orderlymq.connection.instance import ClientInstance
from orderlymq.connection.tracerecords import ConsumeBegan, ConsumeEnded, Published, encode_traces
from orderlymq.message import Message, SendResult
from orderlymq.ownedtasks import OwnedTasks, reason
from orderlymq.producer.sendoutcome import results_of
from orderlymq_protocol.names import GROUP_LENGTH_MAX, TRACE_TOPIC
from orderlymq_runtime.wallclock import machine_ms

if TYPE_CHECKING:
    from orderlymq.producer.producer import Producer

_log = logging.getLogger(__name__)
REGION: Final = "DefaultRegion"
# A trace message of this many records stays far below a broker's limit for one message.
BATCH_MAX: Final = 100
WAITING_MAX: Final = 2_048
PERIOD_S: Final = 0.1
_CLOSE_S: Final = 3.0  # the time-out of one send
_Record = Published | ConsumeBegan | ConsumeEnded


class Tracer:
    """Gathers traces of one producer or consumer and sends them.

    Life cycle: `start`, then `add` from the same event loop; `close` sends the rest.
    """

    def __init__(
        self, instance: ClientInstance, name: str, group: str, topic: str = TRACE_TOPIC
    ) -> None:
        self.dropped = 0
        self.topic = topic
        self._instance = instance
        self._name = name
        self._group = group
        self._records: list[_Record] = []
        self._producer: Producer | None = None
        self._tasks = OwnedTasks()
        self._sending = asyncio.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def start(self) -> None:
        """Begin to send in the background."""
        from orderlymq.producer.producer import Producer  # noqa: PLC0415 - a producer may have a tracer

        self._loop = asyncio.get_running_loop()
        # Cut to the longest allowed name, because a traced group may have one; it is only shown in listings.
        group = f"_INNER_TRACE_PRODUCER-{self._name}"[:GROUP_LENGTH_MAX]
        self._producer = Producer(group, instance=self._instance)
        await self._producer.start()
        self._tasks.keep(self._send_forever, f"trace {self._name}")

    async def close(self) -> None:
        """Send the remaining traces, as many as fit in a short time, and end."""
        if self._producer is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S), self._sending:
                while self._records:
                    await self._send()
        await self._tasks.cancel()
        if self._records:
            self.dropped += len(self._records)
            _log.warning("%d traces could not be sent in time", len(self._records))
            self._records.clear()
        await self._producer.close()
        self._producer = None

    def add(self, record: _Record) -> None:
        """Take a record; any thread may call."""
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._take, record)

    async def follow(
        self, messages: Sequence[Message], work: Coroutine[None, None, SendResult]
    ) -> SendResult:
        """Send messages together by *work* and report the outcome of each."""
        began_ms = machine_ms()
        try:
            result = await work
        except BaseException:
            for message in messages:
                self.sent(message, began_ms, None)
            raise
        for message, own in zip(messages, results_of(messages, result), strict=True):
            self.sent(message, began_ms, own)
        return result

    def note(self, message: Message, sent: "asyncio.Future[SendResult]") -> None:
        """Report the outcome of a send that is under way."""
        began_ms = machine_ms()

        def ended(done: "asyncio.Future[SendResult]") -> None:
            # `exception()` would mark the error as retrieved although perhaps nobody has seen it.
            failed = done.cancelled() or done._exception is not None
            self.sent(message, began_ms, None if failed else done.result())

        sent.add_done_callback(ended)

    def sent(self, message: Message, began_ms: int, result: SendResult | None) -> None:
        """Report the outcome of one send; *result* is None if it failed."""
        if message.topic == self.topic:
            return
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self.add(
            Published(
                at_ms=began_ms,
                region=REGION,
                group=self._group,
                topic=message.topic,
                message_id=message.unique_key,
                tags=message.tags,
                keys=keys,
                store_host=result.queue.broker_name if result is not None else "",
                body_length=len(message.body),
                cost_ms=machine_ms() - began_ms,
                message_type="Delay" if message.delay_level else "Normal",
                offset_message_id=result.offset_message_id if result is not None else "",
                success=result is not None,
            )
        )

    def _take(self, record: _Record) -> None:
        if len(self._records) >= WAITING_MAX:
            self.dropped += 1
            return
        self._records.append(record)

    async def _send_forever(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            async with self._sending:
                if self._records:
                    await self._send()

    async def _send(self) -> None:
        batch, self._records = self._records[:BATCH_MAX], self._records[BATCH_MAX:]
        if self._producer is None:
            return
        self.dropped += len(batch)  # undone if they are sent
        try:
            words = (word for each in batch for word in (each.message_id, *each.keys.split()))
            keys = tuple(dict.fromkeys(words))
            await self._producer.send(
                Message(topic=self.topic, body=encode_traces(batch), keys=keys)
            )
        except (
            Exception
        ) as error:  # a record that cannot be encoded must not keep its client from ending
            _log.warning("%d traces could not be sent: %s", len(batch), reason(error))
        else:
            self.dropped -= len(batch)


def make_tracer(
    trace: bool | str, instance: ClientInstance, name: str, group: str
) -> Tracer | None:
    """Return the tracer for a user's setting: False, True, or the name of a topic."""
    if not trace:
        return None
    return Tracer(instance, name, group, trace if isinstance(trace, str) else TRACE_TOPIC)
