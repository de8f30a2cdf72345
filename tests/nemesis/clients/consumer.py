"""
An ordered consumer process with our SDK that records its deliveries and whether its lease still held.

``python -m tests.nemesis.clients.consumer JSON``; it leaves its consumer group at SIGTERM. If a listener's lease is
over when it is done, it records LAPSED instead of DONE, because the SDK reports that. In a group by key its events
name the key and the attempt, and sometimes a message of one key of each producer fails.
"""

import asyncio
import signal
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from orderlymq import ClientSettings, Consumer, OrderedContext, OrderedResult, ReceivedMessage
from orderlymq.errors import NameServersUnreachable
from orderlymq.oracle.history import Recorder
from orderlymq.oracle.verdict import Kind

RETRY_S: Final = 0.2
# For one key of each producer, one message in so many fails this many times, with a pause short enough for its
# backlog to end.
_POISON_SHARE: Final = 20
POISON_TRIES: Final = 2
_POISON_PAUSE_S: Final = 0.1


class ConsumingOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a consumer."""

    process: str
    name_servers: str
    history: str
    topic: str
    group: str
    work_s: float = 0.0
    commit_ms: int = 1000
    by_key: bool = False


async def consume(options: ConsumingOptions) -> None:
    """Consume until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    with Recorder(Path(options.history), process=options.process) as recorder:

        async def listen(
            messages: Sequence[ReceivedMessage], context: OrderedContext
        ) -> OrderedResult:
            for message in messages:
                if not await _handle(message, context, options, recorder):
                    return OrderedResult.SUSPEND
            return OrderedResult.SUCCESS

        while not stop.is_set():
            consumer = Consumer(
                options.group,
                options.name_servers,
                topics=options.topic,
                listener=listen,
                ordered="key" if options.by_key else True,
                consume_from="first",
                client_settings=ClientSettings(
                    persist_consumer_offset_interval=options.commit_ms / 1000
                ),
            )
            try:
                async with consumer:
                    await stop.wait()
            except NameServersUnreachable:
                # The only name server may be down at the moment; users who run consumers try again, too.
                await asyncio.sleep(RETRY_S)


def is_poison(text: str, tries: int) -> bool:
    """Return whether a message that has failed *tries* times fails again."""
    is_chosen = (
        text.rpartition(":")[0].endswith("0") and zlib.crc32(text.encode()) % _POISON_SHARE == 0
    )
    return is_chosen and tries < POISON_TRIES


async def _handle(
    message: ReceivedMessage, context: OrderedContext, options: ConsumingOptions, recorder: Recorder
) -> bool:
    text = message.body.decode().partition("|")[0]
    facts: dict[str, str | int] = {
        "topic": message.topic,
        "message": text,
        "queue": f"{context.queue.broker_name}:{context.queue.queue_id}",
        "offset": message.queue_offset,
        "group": options.group,
        "client": options.process,
    }
    if context.lane is not None:
        # The key as in the producer's history; the lane has the message's own property of keys.
        facts |= {"key": text.rpartition(":")[0], "attempt": context.lane.attempt}
    recorder.record(Kind.DELIVER, **facts)
    if options.work_s:
        await asyncio.sleep(options.work_s)
    holds = context.still_holds()
    if holds and options.by_key and is_poison(text, message.reconsume_times):
        recorder.record(Kind.FAILED, **facts)
        context.suspend_current_queue_time = _POISON_PAUSE_S
        return False
    recorder.record(Kind.DONE if holds else Kind.LAPSED, **facts)
    return holds


if __name__ == "__main__":
    asyncio.run(consume(msgspec.json.decode(sys.argv[1], type=ConsumingOptions)))
