"""
A producer process with our SDK: numbered messages per key, each sent until it is acknowledged.

``python -m tests.nemesis.clients.producer JSON``; at SIGTERM it ends after the message under way.
"""

import asyncio
import signal
import sys
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import Message, Producer, SendResult
from orderlymq.errors import OrderlyMQError, SendRefused
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind

# Short, because fail-over times are measured with these sends.
RETRY_S: Final = 0.02


class ProducingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a producer."""

    process: str
    name_servers: str
    history: str
    topic: str
    keys: int = 4
    pause_s: float = 0.05


async def produce(options: ProducingOptions) -> None:
    """Send until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Recorder(Path(options.history), process=options.process) as recorder:
        async with (
            Producer("nemesis", options.name_servers) as producer,
            asyncio.TaskGroup() as tasks,
        ):
            for number in range(options.keys):
                key = f"{options.process}-{number}"
                tasks.create_task(_send(options, producer, recorder, key, stop))


async def _send(
    options: ProducingOptions, producer: Producer, recorder: Recorder, key: str, stop: asyncio.Event
) -> None:
    number = 0
    while not stop.is_set():
        text = f"{key}:{number}"
        # RocketMQ's clients store no sharding key: the group by key reads RocketMQ's property of keys.
        message = Message(topic=options.topic, body=text.encode(), key=key, keys=key)
        facts = {"topic": options.topic, "key": key, "message": text}
        recorder.record(Kind.SEND, **facts)
        result = await acknowledged(producer, message, recorder, facts, stop, retry_s=RETRY_S)
        if result is None:
            return
        queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
        recorder.record(Kind.ACK, queue=queue, offset=result.queue_offset, **facts)
        number += 1
        await asyncio.sleep(options.pause_s)


async def acknowledged(
    producer: Producer,
    message: Message,
    recorder: Recorder,
    facts: dict[str, str],
    stop: asyncio.Event,
    *,
    retry_s: float,
    queue: int | None = None,
) -> SendResult | None:
    """Send a message until it is acknowledged; return None if it is time to stop.

    It sends the same message again, by key or to *queue*, so that the broker can recognise it. It records failures
    and repeats, but not the first send and the acknowledgement.
    """
    while True:
        try:
            return await producer.send(message, queue=queue)
        except OrderlyMQError as error:
            kind = Kind.REFUSED if isinstance(error, SendRefused) else Kind.UNKNOWN
            recorder.record(kind, detail=str(error)[:200], **facts)
        await asyncio.sleep(retry_s)
        if stop.is_set():
            return None
        recorder.record(Kind.SEND, detail="again", **facts)


if __name__ == "__main__":
    asyncio.run(produce(msgspec.json.decode(sys.argv[1], type=ProducingOptions)))
