"""Send many messages as one batch: up to 1,024 are stored with consecutive offsets, all or none."""

from orderlymq import Message, split_batch
from orderlymq.blocking import Producer

messages = [
    Message(topic="orders", body=f"line {n}".encode(), keys="ORDER-20260101-1") for n in range(50)
]

with Producer("shop") as producer:
    for part in split_batch(messages, key="order-1"):
        result = producer.send_batch(part, key="order-1")
        print(f"{len(part)} messages from offset {result.queue_offset} on in {result.queue}")
