"""Send and consume values instead of bytes: JSON of a pydantic model."""

import asyncio

from pydantic import BaseModel

from orderlymq import Consumer, Json, Producer


class Order(BaseModel):
    id: str
    amount: int


ORDERS = Json(Order)


async def main() -> None:
    async with Producer(
        "shop", linger=0.005
    ) as producer:  # sends are grouped into one batch per queue
        for order in (Order(id="order-1", amount=20), Order(id="order-2", amount=1200)):
            producer.send_nowait("typed", ORDERS.encode(order), key=order.id)

    async with Consumer("totals", topics="typed", ordered=True, consume_from="first") as consumer:
        total, count = 0, 0
        async for message in consumer:
            total += ORDERS.decode(message).amount  # a body of another form raises BodyInvalid
            count += 1
            if count == 2:
                break
        print("total:", total)


asyncio.run(main())
