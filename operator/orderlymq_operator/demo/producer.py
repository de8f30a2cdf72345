"""
A producer process of the demo: it sends the steps of several orders at a time and records every outcome.

Rule: the next step of an order is sent only after the previous one is acknowledged. A send that failed is repeated as
the same message, so that the broker can recognize it. The process ends by itself when its orders are done, or when
its standard input closes because its parent ended.
"""

import asyncio
import contextlib
import itertools
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import Message, Producer
from orderlymq.errors import OrderlyMQError, SendRefused
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from orderlymq_operator.demo.options import MemberOptions
from orderlymq_operator.demo.orders import STEPS, Step
from orderlymq_operator.demo.reports import (
    Report,
    call_at_end_of_input,
    report_until_cancelled,
    write,
)

# If a send finds no leader, the order retries this soon; fail-over time is measured by these retries.
_RETRY_S: Final = 0.02
# A demo must end even if the cluster is gone for good.
_GIVE_UP_S: Final = 30.0


class OrderSource:
    """Sends orders through one producer until its time is over."""

    def __init__(self, options: MemberOptions, recorder: Recorder) -> None:
        self._options = options
        self._recorder = recorder
        self._numbers = itertools.count(1)
        self._ends_at = time.monotonic() + options.seconds
        self._sent = 0
        self._acknowledged = 0
        self._retried = 0
        self._in_flight = 0

    def report(self) -> Report:
        """Return the counts so far."""
        return Report(
            process=self._options.process,
            role="producer",
            sent=self._sent,
            acknowledged=self._acknowledged,
            retried=self._retried,
            in_flight=self._in_flight,
            ready=True,
        )

    async def run(self, producer: Producer) -> None:
        """Send order after order, several at a time; return when the last one is done."""
        async with asyncio.TaskGroup() as tasks:
            for lane in range(self._options.orders_at_once):
                tasks.create_task(self._lane(producer), name=f"orders {lane}")

    async def _lane(self, producer: Producer) -> None:
        while time.monotonic() < self._ends_at:
            order = f"{self._options.process}-{next(self._numbers)}"
            self._in_flight += 1
            for number in range(len(STEPS)):
                step = Step(self._options.run, self._options.process, order, number)
                if not await self._send(producer, step):
                    return
                await asyncio.sleep(self._options.pause_s)
            self._in_flight -= 1

    async def _send(self, producer: Producer, step: Step) -> bool:
        """Send one step until it is acknowledged; return False if that did not happen in time."""
        facts = {"topic": self._options.topic, "key": step.order, "message": step.message}
        message = Message(
            topic=self._options.topic, body=step.encode(), key=step.order, tags=step.name
        )
        give_up_at = time.monotonic() + _GIVE_UP_S
        self._recorder.record(Kind.SEND, **facts)
        self._sent += 1
        while time.monotonic() < give_up_at:
            try:
                result = await producer.send(message)
            except OrderlyMQError as error:
                kind = Kind.REFUSED if isinstance(error, SendRefused) else Kind.UNKNOWN
                self._recorder.record(kind, detail=str(error)[:200], **facts)
                self._retried += 1
                await asyncio.sleep(_RETRY_S)
                continue
            queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
            self._recorder.record(Kind.ACK, queue=queue, offset=result.queue_offset, **facts)
            self._acknowledged += 1
            return True
        return False


async def produce(options: MemberOptions) -> None:
    """Send orders until all are done or the standard input ends."""
    task = asyncio.current_task()
    assert task is not None
    call_at_end_of_input(task.cancel)
    with Recorder(Path(options.history), process=options.process) as recorder:
        async with Producer("orderlymq-demo", options.name_servers) as producer:
            source = OrderSource(options, recorder)
            reporting = asyncio.create_task(report_until_cancelled(source.report), name="report")
            try:
                await source.run(producer)
            finally:
                reporting.cancel()
                write(source.report())


def main() -> int:
    """Run a producer process; return its exit code."""
    options = msgspec.json.decode(sys.argv[1], type=MemberOptions)
    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(produce(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
