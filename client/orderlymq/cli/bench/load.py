"""
One run of the bench: senders that wait for each acknowledgement, and a consumer of all queues.

Rules: each key has one sender. A send that fails is repeated with the same message until its outcome is known, so the
numbers of a key have no gaps. Senders and consumer share one process and one clock.
"""

import asyncio
import os
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from orderlymq.cli.bench.latencies import Latencies
from orderlymq.cli.bench.order import OrderCheck
from orderlymq.consumer.push.consumer import Consumer
from orderlymq.consumer.settings import ConsumerSettings
from orderlymq.errors import BrokerUnreachable, NameServersUnreachable, SendRefused, SendUnknown
from orderlymq.message import Message, ReceivedMessage
from orderlymq.producer.producer import Producer

# Run, key, number in the key, nanoseconds of the sender's clock.
_HEAD: Final = struct.Struct(">8sIQQ")
SIZE_MIN_BYTES: Final = _HEAD.size
# The run ends if nothing was delivered for this time, although messages are missing.
DRAIN_S: Final = 10.0
_AGAIN_S: Final = 0.1
_BATCH: Final = 32
_FAILURES: Final = (SendRefused, SendUnknown, BrokerUnreachable, NameServersUnreachable)


@dataclass(frozen=True, slots=True)
class Load:
    """Load of a bench run."""

    topic: str
    senders: int
    keys: int
    size_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Progress:
    """Figures of about one second; latencies in milliseconds, None without a send."""

    second: int
    sends_per_second: float
    consumed_per_second: float
    p50_ms: float | None
    p99_ms: float | None
    behind: int
    failed: int


@dataclass(slots=True)
class Tally:
    """Figures since the last report."""

    began_s: float = field(default_factory=time.perf_counter)
    sent: int = 0
    consumed: int = 0
    failed: int = 0
    sends: Latencies = field(default_factory=Latencies)


class Run:
    """A load and its results."""

    def __init__(self, load: Load, group: str, name_server: str) -> None:
        self.load = load
        self.order = OrderCheck(load.keys)
        self.sends = Latencies()
        self.end_to_end = Latencies()
        self.sent = self.consumed = self.failed = 0
        self.failure: Exception | None = None  # why the last try of a send failed
        self._run = os.urandom(8)
        self._padding = os.urandom(load.size_bytes - SIZE_MIN_BYTES)
        self._tally = Tally()
        self._began_s = self._ends_s = self._last_sent_s = self._last_delivery_s = 0.0
        self._producer = Producer(group, name_server)
        self._consumer = Consumer(
            group,
            name_server,
            topics=load.topic,
            listener=self._consume,
            ordered=True,
            consume_from="first",
            settings=ConsumerSettings(consume_message_batch_max_size=_BATCH),
        )

    async def go(self, tell: Callable[[Progress], None]) -> None:
        """Send until the time is over, consume the messages, report the progress of each second.

        Raises:
            OrderlyMQError: An error that a repeated send cannot cure.
        """
        async with self._producer, self._consumer:
            self._tally = Tally()
            self._began_s = self._last_sent_s = self._last_delivery_s = time.perf_counter()
            self._ends_s = self._began_s + self.load.seconds
            try:
                async with asyncio.TaskGroup() as tasks:
                    senders = [
                        tasks.create_task(self._send(first)) for first in range(self.load.senders)
                    ]
                    tasks.create_task(self._watch(senders, tell))
            except ExceptionGroup as group:
                raise group.exceptions[0] from None

    def result(self) -> dict[str, Any]:
        """Return the figures of the whole run."""
        sending_s = max(self._last_sent_s - self._began_s, 1e-9)
        consuming_s = max(self._last_delivery_s - self._began_s, 1e-9)
        missing = self.order.missing()
        return {
            "sent": self.sent,
            "failed": self.failed,
            "sendsPerSecond": round(self.sent / sending_s, 1),
            "sendLatencyMs": self.sends.shown(),
            "consumed": self.consumed,
            "repeated": self.order.repeats,
            "consumedPerSecond": round(self.consumed / consuming_s, 1),
            "endToEndLatencyMs": self.end_to_end.shown(),
            "missing": missing,
            "outOfOrder": self.order.broken,
            "findings": list(self.order.findings),
            "kept": not missing and not self.order.broken,
        }

    async def _send(self, first: int) -> None:
        """Send to all keys of one sender in turn."""
        own = range(first, self.load.keys, self.load.senders)
        number = 0
        while True:
            for key in own:
                if time.perf_counter() >= self._ends_s or not await self._send_one(key, number):
                    return
            number += 1

    async def _send_one(self, key: int, number: int) -> bool:
        """Send until the message is stored; return False if the time was over before."""
        began_s = time.perf_counter()
        head = _HEAD.pack(self._run, key, number, time.perf_counter_ns())
        message = Message(topic=self.load.topic, body=head + self._padding, key=key)
        while True:
            try:
                await self._producer.send(message)
            except _FAILURES as error:
                self.failure = error
                self._tally.failed += 1
                if time.perf_counter() >= self._ends_s:
                    return False
                await asyncio.sleep(_AGAIN_S)
                continue
            self._last_sent_s = time.perf_counter()
            self._tally.sends.add(self._last_sent_s - began_s)
            self._tally.sent += 1
            self.order.acknowledged(key, number)
            return True

    async def _consume(self, messages: Sequence[ReceivedMessage], _context: object) -> None:
        now_ns = time.perf_counter_ns()
        for message in messages:
            if len(message.body) < SIZE_MIN_BYTES:
                continue
            run, key, number, sent_ns = _HEAD.unpack_from(message.body)
            if run != self._run:
                continue  # another program also sends to this topic
            if self.order.delivered(key, number):
                self._tally.consumed += 1
                self.end_to_end.add((now_ns - sent_ns) / 1e9)
                self._last_delivery_s = now_ns / 1e9

    async def _watch(
        self, senders: Sequence["asyncio.Task[None]"], tell: Callable[[Progress], None]
    ) -> None:
        """Report each second until everything is sent and delivered, or no more deliveries come."""
        second = 0
        while True:
            second += 1
            await asyncio.sleep(max(0.0, self._began_s + second - time.perf_counter()))
            tell(self._look(second))
            if not all(sender.done() for sender in senders):
                continue
            quiet_s = time.perf_counter() - max(self._last_delivery_s, self._last_sent_s)
            if not self.order.missing() or quiet_s > DRAIN_S:
                return

    def _look(self, second: int) -> Progress:
        tally, self._tally = self._tally, Tally()
        self.sent += tally.sent
        self.consumed += tally.consumed
        self.failed += tally.failed
        self.sends.take(tally.sends)
        span_s = max(self._tally.began_s - tally.began_s, 1e-9)
        return Progress(
            second,
            tally.sent / span_s,
            tally.consumed / span_s,
            tally.sends.quantile_ms(0.5),
            tally.sends.quantile_ms(0.99),
            self.order.missing(),
            tally.failed,
        )
