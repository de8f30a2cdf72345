"""Ask and wait for the answer: a request over a topic, answered by its consumer."""

import asyncio

from orderlymq import Consumer, Producer


async def main() -> None:
    async with Producer("prices") as producer:

        async def listener(messages, context):
            for message in messages:
                await producer.reply(message, f"{message.text} costs 12")

        async with Consumer("price-desk", topics="questions", listener=listener):
            reply = await producer.request("questions", "a chair", timeout=20)
            print(reply.text)


asyncio.run(main())
