"""Send a request and wait for the answer of a consumer of its topic.

On the first run the clients log that no broker has the topic `questions`; the request creates it.
"""

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
