"""Prints the messages of `consume` and `tail`."""

from orderlymq.cli.session import iso, print_json_line, say
from orderlymq.message import ReceivedMessage


def print_message(message: ReceivedMessage, *, as_json: bool) -> None:
    """Print one message: as a line of text, or of JSON."""
    body = message.body.decode(errors="replace")
    if as_json:
        print_json_line(
            {
                "topic": message.topic,
                "brokerGroup": message.queue.broker_name,
                "queue": message.queue.queue_id,
                "offset": message.queue_offset,
                "key": message.key,
                "tag": message.tags,
                "keys": message.keys,
                "messageId": message.message_id,
                "offsetMessageId": message.offset_message_id,
                "reconsumeTimes": message.reconsume_times,
                "storedAt": iso(message.store_timestamp),
                "body": body,
            }
        )
        return
    place = f"{message.queue.broker_name}:{message.queue.queue_id}@{message.queue_offset}"
    facts = [
        f"key={message.key}" if message.key else "",
        f"tag={message.tags}" if message.tags else "",
    ]
    say(" ".join(filter(None, [place, *facts, body])))
