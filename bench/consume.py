"""
An ordered consumer with the SDK: ``python -m bench.consume NAME_SERVER TOPIC GROUP``; runs until it is killed.

bench/profiles.py profiles it while it works.
"""

import asyncio
import sys
from collections.abc import Sequence

import uvloop

from orderlymq import Consumer, OrderedContext, OrderedResult, ReceivedMessage


async def consume(name_server: str, topic: str, group: str) -> None:
    """Consume messages in order and discard them."""

    async def listener(
        messages: Sequence[ReceivedMessage], context: OrderedContext
    ) -> OrderedResult:
        return OrderedResult.SUCCESS

    async with Consumer(
        group,
        name_servers=name_server,
        topics=topic,
        ordered=True,
        consume_from="first",
        listener=listener,
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(consume(*sys.argv[1:4]))
