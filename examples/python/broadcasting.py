"""Every member gets every message; offsets are kept in a file under ~/.rocketmq_offsets."""

from orderlymq import MessageModel
from orderlymq.blocking import Consumer


def listener(messages, context):
    for message in messages:
        print(message.text, flush=True)


Consumer(
    "displays", topics="prices", message_model=MessageModel.BROADCASTING, listener=listener
).run()
