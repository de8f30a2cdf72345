"""Requests of an administrator about single messages: by their place, by a key, and to send a dead letter again."""

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
        own = {name: value for name, value in message.properties.items() if name not in _OF_LETTERS}
        fresh = Message(
            topic=target,
            body=message.body,
            tags=message.tags or "",
            keys=message.keys,
            key=message.key,
            properties=own,
            flag=message.flag,
        )
        async with Producer("orderlymq-resend", instance=self._instance) as producer:
            return await producer.send(fresh)
