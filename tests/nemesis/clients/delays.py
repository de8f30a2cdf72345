"""
A producer of delayed messages with our SDK: delay levels and times, each sent until it is acknowledged.

``python -m tests.nemesis.clients.delays JSON``; at SIGTERM it ends after the message under way.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import Message, Producer
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind
from tests.nemesis.clients.producer import ProducingOptions, acknowledged
from tests.nemesis.invariants.delays import DELAYS, LATER_QUEUES, detail_of

# This pause is not measured, so it need not be short.
RETRY_S: Final = 0.2


async def delay(options: ProducingOptions) -> None:
    """Send until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Recorder(Path(options.history), process=options.process) as recorder:
        async with Producer("waiting", options.name_servers) as producer:
            number = 0
            while not stop.is_set():
                await _send(options, producer, recorder, number, stop)
                number += 1
                await asyncio.sleep(options.pause_s)


async def _send(
    options: ProducingOptions,
    producer: Producer,
    recorder: Recorder,
    number: int,
    stop: asyncio.Event,
) -> None:
    level, delay_ms = DELAYS[number % len(DELAYS)]
    text = f"{options.process}:{number}"
    message = Message(
        topic=options.topic,
        body=text.encode(),
        delay_level=level,
        delay=0 if level else delay_ms / 1000,
    )
    facts = {"topic": options.topic, "message": text}
    recorder.record(Kind.SEND, detail=detail_of(delay_ms), **facts)
    # Without a key and a queue each send would choose another queue, where it would be another message.
    acknowledge = acknowledged(
        producer, message, recorder, facts, stop, retry_s=RETRY_S, queue=number % LATER_QUEUES
    )
    if await acknowledge is not None:
        # Without a place: the answer names the place where the message waits.
        recorder.record(Kind.ACK, **facts)


if __name__ == "__main__":
    asyncio.run(delay(msgspec.json.decode(sys.argv[1], type=ProducingOptions)))
