"""Messages that depend on earlier ones: each step of an order is sent when the last one is done.

The next step has the same key, so it waits in the same queue after other messages that came meanwhile. A step
that fails is tried again before later messages, and its following steps are not sent yet.
"""

import queue

from orderlymq.blocking import Consumer, Producer

NEXT = {"reserve": "charge", "charge": "ship"}
done = queue.Queue()
producer = Producer("workflow")


def listener(messages, context):
    for message in messages:
        if message.text == "charge" and message.reconsume_times == 0:
            raise TimeoutError("the bank does not answer")  # try again in a moment
        done.put(f"{message.key} {message.text}")
        if message.text in NEXT:
            producer.send("steps", NEXT[message.text], key=message.key)


with (
    producer,
    Consumer("workers", topics="steps", ordered=True, consume_from="first", listener=listener),
):
    producer.send("steps", "reserve", key="order-1")
    for _ in range(3):
        print(done.get(timeout=20))
