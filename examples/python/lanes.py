"""Orders are booked in parallel, the steps of each in order; an order that fails does not stop others."""

import asyncio

from orderlymq import Consumer, Producer

STEPS = ("created", "paid", "shipped")
ORDERS = [f"order-{number}" for number in range(20)]


async def main():
    async with Producer() as producer:
        for step in STEPS:
            await asyncio.gather(*(producer.send("parcels", step, key=key) for key in ORDERS))

    booked = {key: [] for key in ORDERS}
    done = asyncio.Event()

    async def listener(messages, context):
        await asyncio.sleep(0.1)  # a call to a slow bookkeeping service
        for message in messages:
            if message.key == "order-7" and context.lane.tries == 0:
                context.suspend_current_queue_time = 0.5  # only this order waits
                raise ConnectionError("the service has refused order-7")
            booked[message.key].append(message.text)
        if all(len(steps) == len(STEPS) for steps in booked.values()):
            done.set()

    async with Consumer(
        "bookkeeping",
        topics="parcels",
        ordered="key",
        concurrency=len(ORDERS),
        consume_from="first",
        listener=listener,
    ):
        await done.wait()

    assert all(tuple(steps) == STEPS for steps in booked.values())
    print(f"{len(ORDERS)} orders are booked, each in its order")


asyncio.run(main())
