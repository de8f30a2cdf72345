"""Every member gets every message; offsets are kept in a file under ~/.rocketmq_offsets."""

from orderlymq import ConcurrentResult, MessageModel
from orderlymq.blocking import Consumer


def listener(messages, context):
    for message in messages:
        print(message.text, flush=True)
    return ConcurrentResult.SUCCESS


Consumer(
    "displays", topics="prices", message_model=MessageModel.BROADCASTING, listener=listener
).run()
