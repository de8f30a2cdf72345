"""Close an order that was not paid: a message that arrives 30 minutes later (level 16), or here 5 s (2)."""

from orderlymq.blocking import Producer

with Producer("shop") as producer:
    producer.send("orders", "created", key="order-1")
    producer.send("orders", "close unless paid", key="order-1", delay_level=2)
