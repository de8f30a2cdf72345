"""Consume in order until Ctrl-C; a message whose listener raises is tried again before later ones of its queue."""

from orderlymq import OrderedResult
from orderlymq.blocking import Consumer


def listener(messages, context):
    for message in messages:
        print(
            f"{context.queue.queue_id}@{message.queue_offset} {message.key}: {message.text}",
            flush=True,
        )
        if message.text == "not yet" and message.reconsume_times < 3:
            context.suspend_current_queue_time = 0.5
            return OrderedResult.SUSPEND  # only this queue waits
    return None  # done


Consumer("billing", topics="orders", ordered=True, consume_from="first", listener=listener).run()
