"""Sends of eight keys in order while the leader is killed: every way to reach a cluster must keep this law."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final

from orderlymq import (
    ClientSettings,
    Consumer,
    OrderedContext,
    OrderedResult,
    Producer,
    ReceivedMessage,
)
from tests.cluster.processes import Group
from tests.waiting import until

COUNT: Final = 60
KEYS: Final = [f"order-{number}" for number in range(8)]


@asynccontextmanager
async def ordered_load(
    group: Group, name_servers: str, settings: ClientSettings | None = None
) -> AsyncIterator[None]:
    """Send, consume and kill the leader; run the body when all messages are delivered, then check the order."""
    acknowledged: dict[str, list[str]] = defaultdict(list)
    delivered: dict[str, list[str]] = defaultdict(list)

    async def listener(
        messages: Sequence[ReceivedMessage], _context: OrderedContext
    ) -> OrderedResult:
        for message in messages:
            assert message.key is not None
            delivered[message.key].append(message.text)
        return OrderedResult.SUCCESS

    async def produce(producer: Producer, key: str) -> None:
        for number in range(COUNT):
            await producer.send("orders", f"{key}/{number}", key=key, timeout=60)
            acknowledged[key].append(f"{key}/{number}")
            await asyncio.sleep(0.01)

    async def kill() -> None:
        await until(lambda: len(acknowledged[KEYS[0]]) >= 10)
        group.brokers[group.wait_for_leader()].kill()

    async with (
        Producer("p", name_servers, client_settings=settings) as producer,
        Consumer(
            "billing",
            name_servers,
            topics="orders",
            ordered=True,
            consume_from="first",
            listener=listener,
            client_settings=settings,
        ),
    ):
        async with asyncio.TaskGroup() as tasks:
            for key in KEYS:
                tasks.create_task(produce(producer, key))
            tasks.create_task(kill())
        # Count each message once: repeated deliveries must not hide missing ones.
        await until(lambda: all(len(set(delivered[key])) == COUNT for key in KEYS), 90.0)
        yield

    # The listener call that ran during the crash may be repeated; no other deviation is allowed.
    for key in KEYS:
        assert list(dict.fromkeys(delivered[key])) == acknowledged[key]
