"""
An ordered consumer process of the demo: it records when it gets each message and when it is done with it.

It runs until SIGTERM, or until its standard input closes because its parent ended. It consumes messages that other
runs left in the topic, and does not record them.
"""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import ClientSettings, Consumer, OrderedContext, OrderedResult, ReceivedMessage
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from orderlymq_operator.demo.options import MemberOptions
from orderlymq_operator.demo.orders import Ledger, decode
from orderlymq_operator.demo.reports import (
    Report,
    call_at_end_of_input,
    report_until_cancelled,
    write,
)

# The demo ends when the last offset is committed; with a pause of five seconds that would take long.
_COMMIT_S: Final = 0.5


class Clerk:
    """Enters every step into a ledger and into the history."""

    def __init__(self, options: MemberOptions, recorder: Recorder) -> None:
        self.has_queues: Callable[[], bool] = lambda: False
        self._options = options
        self._recorder = recorder
        self._ledger = Ledger()
        self._delivered = 0
        self._queues: dict[str, int] = {}

    def report(self) -> Report:
        """Return the counts so far."""
        return Report(
            process=self._options.process,
            role="consumer",
            delivered=self._delivered,
            completed=self._ledger.completed,
            queues=dict(self._queues),
            ready=self.has_queues(),
        )

    async def consume(
        self, messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult:
        """Consume messages; this is the listener of the consumer."""
        queue = f"{context.queue.broker_name}:{context.queue.queue_id}"
        for message in messages:
            step = decode(message.body)
            if step is None or step.run != self._options.run:
                continue
            facts: dict[str, str | int] = {
                "topic": message.topic,
                "key": step.order,
                "message": step.message,
                "queue": queue,
                "offset": message.queue_offset,
                "group": self._options.group,
                "client": self._options.process,
            }
            self._recorder.record(Kind.DELIVER, **facts)
            self._ledger.enter(step)
            self._delivered += 1
            self._queues[queue] = message.queue_offset
            self._recorder.record(Kind.DONE, **facts)
        return OrderedResult.SUCCESS


async def consume(options: MemberOptions) -> None:
    """Consume until SIGTERM or the end of the standard input."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    call_at_end_of_input(stop.set)
    with Recorder(Path(options.history), process=options.process) as recorder:
        clerk = Clerk(options, recorder)
        reporting = asyncio.create_task(report_until_cancelled(clerk.report), name="report")
        try:
            async with Consumer(
                options.group,
                options.name_servers,
                topics=options.topic,
                listener=clerk.consume,
                ordered=True,
                consume_from="first",
                client_settings=ClientSettings(persist_consumer_offset_interval=_COMMIT_S),
            ) as consumer:
                clerk.has_queues = lambda: bool(consumer.queues)
                await stop.wait()
        finally:
            reporting.cancel()
            write(clerk.report())


def main() -> int:
    """Run a consumer process; return its exit code."""
    options = msgspec.json.decode(sys.argv[1], type=MemberOptions)
    asyncio.run(consume(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
