"""Consume in parallel; a failed message comes back after 10 s, 30 s, 1 min, ... and ends as a dead letter."""

from orderlymq import ConsumerSettings
from orderlymq.blocking import Consumer


def listener(messages, context):
    for index, message in enumerate(messages):
        print(f"{message.text} (try {message.reconsume_times + 1})", flush=True)
        if message.text == "fails":
            context.ack_index = index - 1  # messages before it are done
            return


Consumer(
    "mailer",
    topics={"mail": "*"},
    consume_from="first",
    listener=listener,
    settings=ConsumerSettings(consume_message_batch_max_size=10, max_reconsume_times=3),
).run()
