"""
An application with the SDK: a producer of order steps and an ordered consumer, as pods run them.

`orders.py produce` sends the steps of many orders until SIGTERM. It sends the next step of an order only after the
former one is acknowledged, and repeats a send without an answer as the same message. `orders.py consume` is one of
several consumers that share the queues. Both report each event to `history.py` (ORDERS_HISTORY, host:port) before they
continue, so that the order can be checked from outside; without ORDERS_HISTORY they only work.
"""

import asyncio
import itertools
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

from history import History

from orderlymq import (
    ClientSettings,
    Consumer,
    ConsumerSettings,
    Message,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from orderlymq.errors import OrderlyMQError, SendRefused


@dataclass(frozen=True)
class Options:
    """Options from the environment of the pod."""

    servers: str = os.environ.get("ORDERS_NAME_SERVERS", "demo-nameserver:9876")
    topic: str = os.environ.get("ORDERS_TOPIC", "orders")
    group: str = os.environ.get("ORDERS_GROUP", "billing")
    history: str = os.environ.get("ORDERS_HISTORY", "")
    orders_at_once: int = int(os.environ.get("ORDERS_AT_ONCE", "16"))
    pause_s: float = float(os.environ.get("ORDERS_PAUSE_MS", "50")) / 1000
    # The time that the work on a message takes.
    work_s: float = float(os.environ.get("ORDERS_WORK_MS", "0")) / 1000
    # Take the queues that the brokers assign, according to spec.assignment of the ConsumerGroup.
    server_assignment: bool = bool(os.environ.get("ORDERS_SERVER_ASSIGNMENT"))
    # The time for which a consumer keeps its queues if nothing proves that it ended.
    lease_s: float = float(os.environ.get("ORDERS_LEASE_S", "15"))
    # Take lanes instead of queues; needed for a ConsumerGroup with concurrency Key.
    by_key: bool = bool(os.environ.get("ORDERS_BY_KEY"))
    # For the readiness probe: the port opens when a first send is acknowledged, or when the consumer has joined its
    # group; 0 for none.
    ready_port: int = int(os.environ.get("ORDERS_READY_PORT", "0"))
    # A restarted container is another process, so its messages and its client get other names.
    process: str = f"{os.environ.get('HOSTNAME', 'orders')}-{int(time.time()) % 1_000_000}"


async def produce(options: Options, history: History, stop: asyncio.Event) -> None:
    """Send until *stop*; return when all messages are acknowledged."""
    async with Producer("orders", options.servers) as producer, asyncio.TaskGroup() as tasks:
        for lane in range(options.orders_at_once):
            tasks.create_task(_lane(lane, options, producer, history, stop))


async def _lane(
    lane: int, options: Options, producer: Producer, history: History, stop: asyncio.Event
) -> None:
    key = f"{options.process}-{lane}"
    for step in itertools.count():
        if stop.is_set():
            return
        facts = {"topic": options.topic, "key": key, "message": f"{key}/{step}"}
        message = Message(topic=options.topic, body=f"{key}/{step}".encode(), key=key)
        await history.record("send", **facts)
        while True:
            try:
                result = await producer.send(message)
            except OrderlyMQError as error:
                kind = "refused" if isinstance(error, SendRefused) else "unknown"
                await history.record(kind, detail=str(error)[:200], **facts)
                await asyncio.sleep(0.02)
                continue
            queue = f"{result.queue.broker_name}:{result.queue.queue_id}"
            await history.record("ack", queue=queue, offset=result.queue_offset, **facts)
            break
        if lane == step == 0:
            await _say_ready(options)
        await asyncio.sleep(options.pause_s)


async def consume(options: Options, history: History, stop: asyncio.Event) -> None:
    """Consume in order until *stop*."""

    async def listener(
        messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult:
        for message in messages:
            facts: dict[str, str | int] = {
                "topic": message.topic,
                "key": str(message.key),
                "message": message.text,
                "queue": f"{context.queue.broker_name}:{context.queue.queue_id}",
                "offset": message.queue_offset,
                "group": options.group,
                "client": options.process,
            }
            if context.lane is not None:
                facts["attempt"] = context.lane.attempt
            await history.record("deliver", **facts)
            # A real application would do its work here.
            await asyncio.sleep(options.work_s)
            await history.record("done", **facts)
        return OrderedResult.SUCCESS

    async with Consumer(
        options.group,
        options.servers,
        topics=options.topic,
        listener=listener,
        ordered="key" if options.by_key else True,
        consume_from="first",
        settings=ConsumerSettings(
            server_assignment=options.server_assignment, lock_lease=options.lease_s
        ),
        client_settings=ClientSettings(persist_consumer_offset_interval=0.5),
    ):
        await _say_ready(options)
        await stop.wait()


async def _say_ready(options: Options) -> None:
    if options.ready_port:
        await asyncio.start_server(_hang_up, port=options.ready_port)


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def main() -> None:
    """Run the role in the first argument until SIGTERM."""
    role = {"produce": produce, "consume": consume}[sys.argv[1]]
    options = Options()
    stop = asyncio.Event()
    # ORDERS_CRASH: end as a crashed process does, without notice to brokers or history.
    end = (lambda: os._exit(1)) if os.environ.get("ORDERS_CRASH") else stop.set
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end)
    async with History(options.history, options.process) as history:
        await role(options, history, stop)


if __name__ == "__main__":
    asyncio.run(main())
