"""Messages and queues for tests of the cores."""

from orderlymq.message import ReceivedMessage
from orderlymq_protocol.body.messagequeue import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)
OTHER = MessageQueue("orders", "broker-a", 1)


def message(
    offset: int, *, queue: MessageQueue = QUEUE, tries: int = 0, size: int = 10
) -> ReceivedMessage:
    """Return the message at *offset*."""
    return ReceivedMessage(
        topic=queue.topic,
        body=b"x" * size,
        queue=queue,
        queue_offset=offset,
        properties={},
        message_id=f"M{offset}",
        offset_message_id=f"P{offset}",
        born_timestamp=0,
        store_timestamp=0,
        born_host=("127.0.0.1", 1),
        store_host=("127.0.0.1", 10911),
        reconsume_times=tries,
        flag=0,
        sys_flag=0,
        physical_offset=offset * 100,
        size_bytes=size,
    )


def messages(*offsets: int, queue: MessageQueue = QUEUE) -> tuple[ReceivedMessage, ...]:
    """Return the messages at *offsets*."""
    return tuple(message(offset, queue=queue) for offset in offsets)
