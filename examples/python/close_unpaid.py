"""Close orders that were not paid in time: 30 minutes in a shop (delay=timedelta(minutes=30)), five seconds here."""

import queue
from datetime import timedelta

from orderlymq import Message
from orderlymq.blocking import Consumer, Producer

PATIENCE = timedelta(seconds=5)
paid, verdicts = set(), queue.Queue()


def listener(messages, context):
    """Handle an order's messages in order; the deadline is added to its queue when its time is over."""
    for message in messages:
        if message.text == "paid":
            paid.add(message.key)
        elif message.text == "deadline":
            verdicts.put(f"{message.key}: {'kept' if message.key in paid else 'closed, unpaid'}")


consumer = Consumer(
    "cashier", topics="deadlines", ordered=True, consume_from="first", listener=listener
)
with Producer("shop") as producer, consumer:
    for order in ("order-1", "order-2"):
        producer.send("deadlines", "created", key=order)
        late = Message(topic="deadlines", body=b"deadline", key=order, delay=PATIENCE)
        producer.send(late)
        if order == "order-1":
            producer.send("deadlines", "paid", key=order)
    for line in sorted(verdicts.get(timeout=20) for _ in range(2)):
        print(line)
