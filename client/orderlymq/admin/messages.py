"""Requests of an administrator about single messages: by their place, by a key, and to send a dead letter again; what that is sent as."""

from typing import Final

from orderlymq.admin.messageplace import QUERY_MAX, find_by_key, find_message, read_found
from orderlymq.admin.operations import Operations
from orderlymq.errors import BodyUnreadable, SettingError
from orderlymq.message import Message, ReceivedMessage, SendResult
from orderlymq.producer.producer import Producer
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties

# What a message has from where it was, not from its program.
_OF_LETTERS: Final = properties.RESERVED_NAMES | {
    properties.SHARDING_KEY,
    properties.DLQ_ORIGIN_TOPIC,
    properties.DLQ_ORIGIN_MESSAGE_ID,
}
REDRIVES: Final = "OMQ_REDRIVES"
"""The property that counts how often a message was redriven."""
_DIGITS_MAX: Final = 10  # a longer number was written by no redrive


class MessageOperations(Operations):
    """Single messages of a cluster."""

    async def view_message(self, message_id: str, *, unreadable: bool = False) -> ReceivedMessage:
        """Return one message by its offset id.

        Args:
            message_id: where it lies.
            unreadable: return also one whose body cannot be inflated, flagged as `ReceivedMessage.unreadable`.

        Raises:
            SettingError: The text is no offset id.
            BrokerError: There is no such message.
            BodyUnreadable: Its body cannot be inflated.
        """
        brokers = await self.brokers()
        found_at, stored = await find_message(self._instance, message_id, brokers.values())
        broker = next((name for name, address in brokers.items() if address == found_at), "")
        queue = MessageQueue(stored.topic, broker, stored.queue_id)
        return read_found(stored, queue, unreadable=unreadable)

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        count: int = QUERY_MAX,
        unreadable: bool = False,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic with an index key, or with a unique key (message id).

        With *unreadable* those whose body cannot be inflated are among them, as `view_message` returns them.

        Raises:
            TopicNotFound: No broker has the topic.
            BodyUnreadable: The body of one cannot be inflated.
            BrokerUnreachable: None was found, and a broker that may have one has no leader now; or one does not answer, and
                *key* is no unique one that was found.
        """
        return await find_by_key(
            self._instance, topic, key, unique=unique, count=count, unreadable=unreadable
        )

    async def resend(self, message: ReceivedMessage, topic: str | None = None) -> SendResult:
        """Send a dead letter to its original topic again, as a new message.

        Raises:
            SettingError: The message does not name its original topic and none is given.
            BodyUnreadable: Its body cannot be inflated.
        """
        if message.unreadable:
            raise BodyUnreadable(message.queue, message.queue_offset, message.unreadable)
        target = topic or properties.origin_topic(message.properties)
        if not target:
            raise SettingError(
                f"message {message.message_id} of {message.topic} does not name its original topic; pass one"
            )
        async with Producer("orderlymq-resend", instance=self._instance) as producer:
            return await producer.send(_sent_again(message, target))


def redrives_of(message: ReceivedMessage) -> int:
    """Return how often a message was redriven."""
    text = message.properties.get(REDRIVES, "0")
    return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else 0


def redriven(letter: ReceivedMessage, topic: str, identity: str) -> Message:
    """Return the message that a dead letter is redriven to a topic as; *identity* is its unique key, whoever redrives it."""
    message = _sent_again(letter, topic)
    message.properties = {**message.properties, REDRIVES: str(redrives_of(letter) + 1)}
    message.unique_key = identity
    return message


def _sent_again(letter: ReceivedMessage, topic: str) -> Message:
    own = {name: value for name, value in letter.properties.items() if name not in _OF_LETTERS}
    return Message(
        topic=topic,
        body=letter.body,
        tags=letter.tags or "",
        keys=letter.keys,
        key=letter.key,
        properties=own,
        flag=letter.flag,
    )
