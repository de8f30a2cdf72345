"""Send the steps of an order and consume them in order; the whole of it in under 30 lines."""

import asyncio

from orderlymq import Consumer, OrderedResult, Producer


async def main() -> None:
    async with Producer() as producer:
        for step in ("created", "paid", "shipped"):
            await producer.send("orders", step, key="order-4711")

    done = asyncio.Event()

    async def listener(messages, context):
        for message in messages:
            print(message.key, message.text)
            if message.text == "shipped":
                done.set()
        return OrderedResult.SUCCESS

    async with Consumer(
        "billing", topics="orders", ordered=True, consume_from="first", listener=listener
    ):
        await done.wait()


asyncio.run(main())
