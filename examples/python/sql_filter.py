"""Select messages by a condition on their properties; the broker sends no others."""

import asyncio

from orderlymq import Consumer, Message, Producer


async def main() -> None:
    async with Producer() as producer:
        for amount in (20, 250, 1200):
            properties = {"amount": str(amount), "country": "NO"}
            await producer.send(
                Message(topic="mail", body=str(amount).encode(), properties=properties)
            )

    consumer = Consumer("large-orders", consume_from="first")
    consumer.subscribe("mail", "amount > 100 AND country IN ('NO', 'SE')", kind="SQL92")
    async with consumer:
        async for message in consumer:
            print("large order:", message.text)
            if message.text == "1200":
                break


asyncio.run(main())
