"""
A consumer for ``bench/lanes.py``: it waits for each message, then writes one line about it to a file.

A line is as `bench/handled.py` reads it: the body of a message is the time at which its send began, and the offset that of its queue. A message whose key begins with "poison" fails always.
Lines reach the file one by one, so that those of a killed process are there.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, TextIO

import uvloop

from orderlymq import Consumer, OrderedContext, ReceivedMessage

POISON: Final = "poison"


async def work(given: argparse.Namespace, log: TextIO) -> None:
    """Consume until the process ends."""

    async def listener(messages: Sequence[ReceivedMessage], _: OrderedContext) -> None:
        for message in messages:
            key = message.key or ""
            if key.startswith(POISON):
                raise ValueError("this message cannot be handled")
            begun = time.monotonic_ns()
            slow = given.slow_every and message.queue_offset % given.slow_every == 0
            pause_ms = given.slow_ms if slow else given.handler_ms
            if pause_ms:
                await asyncio.sleep(pause_ms / 1e3)
            sent = message.body.decode()
            log.write(f"{key} {message.queue_offset} {sent} {begun} {time.monotonic_ns()}\n")

    async with Consumer(
        given.group,
        name_servers=given.name_server,
        topics=given.topic,
        ordered="key" if given.by == "key" else True,
        concurrency=given.workers,
        consume_from="first",
        listener=listener,
    ):
        log.write("# started\n")
        await asyncio.Event().wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name_server")
    parser.add_argument("topic")
    parser.add_argument("group")
    parser.add_argument("log")
    parser.add_argument("--by", choices=("key", "queue"), required=True)
    parser.add_argument("--workers", type=int, default=20)
    parser.add_argument("--handler-ms", type=float, default=0.0)
    parser.add_argument(
        "--slow-every", type=int, default=0, help="each so many messages one is slow"
    )
    parser.add_argument("--slow-ms", type=float, default=100.0)
    given = parser.parse_args()
    with Path(given.log).open("a", buffering=1) as log:
        uvloop.run(work(given, log))


if __name__ == "__main__":
    main()
