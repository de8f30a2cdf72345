"""A consumer as an asyncio service: it runs until it is cancelled or a background task fails."""

import asyncio
import signal

from orderlymq import Consumer


async def listener(messages, context):
    for message in messages:  # done when this returns; a message whose listener raises comes again
        print(f"{message.key}: {message.text}", flush=True)


async def main() -> None:
    consumer = Consumer(
        "billing-service", topics="orders", ordered=True, consume_from="first", listener=listener
    )
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, lambda: loop.create_task(consumer.close()))
    await consumer.run()


asyncio.run(main())
