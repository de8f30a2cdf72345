"""Send without waiting: the order of the calls with one key is the order in its queue."""

import asyncio

from orderlymq import OrderlyMQError, Producer


async def main() -> None:
    async with Producer("shop") as producer:
        futures = [
            producer.send_nowait("orders", f"step {number}", key=f"order-{order}")
            for number in range(5)
            for order in range(20)
        ]
        for outcome in await asyncio.gather(*futures, return_exceptions=True):
            if isinstance(outcome, OrderlyMQError):
                print("not acknowledged:", outcome)
        print(len(futures), "sends are done")


asyncio.run(main())
