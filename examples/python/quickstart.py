"""Send the steps of an order and consume them in order, in fewer than 20 lines."""

import asyncio

from orderlymq import Consumer, Producer


async def main() -> None:
    async with Producer() as producer:
        for step in ("created", "paid", "shipped"):
            await producer.send("orders", step, key="order-4711")

    async with Consumer("billing", topics="orders", ordered=True, consume_from="first") as consumer:
        async for message in consumer:  # done when the loop asks for the next one
            print(message.key, message.text)
            if message.text == "shipped":
                break


asyncio.run(main())
