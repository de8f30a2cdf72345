"""Poll messages; a later poll commits the messages of an earlier one."""

from orderlymq.blocking import LitePullConsumer

consumer = LitePullConsumer("poller", consume_from="first")
consumer.subscribe("orders")
with consumer:
    while messages := consumer.poll(timeout=10):
        for message in messages:
            print(message.queue.queue_id, message.queue_offset, message.text)
