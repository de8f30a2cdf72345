"""Requests about single messages: by their place, by a key, and to resend a dead letter, with the message for that."""

from contextlib import suppress
from typing import Final

from orderlymq.admin.messageplace import QUERY_MAX, find_by_key, find_message, read_found
from orderlymq.admin.operations import Operations
from orderlymq.errors import BodyUnreadable, BrokerError, SettingError, TopicNotFound
from orderlymq.message import Message, ReceivedMessage, SendResult
from orderlymq.producer.producer import Producer
from orderlymq.settings import ProducerSettings
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties

# Properties that belong to the message's former place, not to its program.
_OF_LETTERS: Final = properties.RESERVED_NAMES | {
    properties.SHARDING_KEY,
    properties.DLQ_ORIGIN_TOPIC,
    properties.DLQ_ORIGIN_MESSAGE_ID,
}
REDRIVES: Final = "OMQ_REDRIVES"
"""The property that counts how often a message was redriven."""
RESENDS: Final = ProducerSettings(max_message_size_bytes=15 * 1024 * 1024)
"""Settings of producers that resend dead letters: a body may be as large as its first producer allowed; the broker checks the deflated size."""
_DIGITS_MAX: Final = 10  # no redrive writes a longer number


class MessageOperations(Operations):
    """Single messages of a cluster."""

    async def view_message(
        self, message_id: str, *, unreadable: bool = False, body_max: int | None = None
    ) -> ReceivedMessage:
        """Return one message by its offset id.

        Args:
            message_id: its offset id.
            unreadable: return also one whose body cannot be inflated, flagged as `ReceivedMessage.unreadable`.
            body_max: return at most this many first bytes of its body; no more is inflated.

        Raises:
            SettingError: The text is not an offset id.
            BrokerError: There is no such message.
            BodyUnreadable: Its body cannot be inflated.
        """
        brokers = await self.brokers()
        found_at, stored = await find_message(self._instance, message_id, brokers.values())
        broker = next((name for name, address in brokers.items() if address == found_at), "")
        queue = MessageQueue(stored.topic, broker, stored.queue_id)
        return read_found(stored, queue, unreadable=unreadable, body_max=body_max)

    async def find_messages(
        self,
        topic: str,
        key: str,
        *,
        unique: bool = False,
        count: int = QUERY_MAX,
        unreadable: bool = False,
        body_max: int | None = None,
    ) -> list[ReceivedMessage]:
        """Return the messages of a topic with an index key, or with a unique key (message id).

        With *unreadable* the result includes messages whose body cannot be inflated, as in `view_message`. *body_max*
        works as there.

        Raises:
            TopicNotFound: No broker has the topic.
            BodyUnreadable: The body of one cannot be inflated.
            BrokerUnreachable: None was found, and a broker that may have one has no leader now; or one does not
                answer, unless *key* is a unique key and was found.
        """
        return await find_by_key(
            self._instance,
            topic,
            key,
            unique=unique,
            count=count,
            unreadable=unreadable,
            body_max=body_max,
        )

    async def find_origin(self, letter: ReceivedMessage, topic: str) -> ReceivedMessage | None:
        """Return the message of a topic that a dead letter is a copy of; None if no message there has the same content.

        In that case retention has deleted it, or a client forged the letter: a client that may consume for a group
        can write letters that name any topic and the id of any message.

        Raises:
            BrokerUnreachable: As `find_messages`.
        """
        for key in origin_ids(letter) if topic else ():
            found = [each for each in await self._named(topic, key) if _says_the_same(letter, each)]
            if found:
                return min(found, key=lambda one: (one.queue, one.queue_offset))
        return None

    async def _named(self, topic: str, key: str) -> list[ReceivedMessage]:
        """Return the messages of a topic with a unique key, or else the one with that offset id.

        The offset id is needed because not every client gives unique keys.
        """
        with suppress(TopicNotFound):
            if found := await self.find_messages(topic, key, unique=True, unreadable=True):
                return found
        with suppress(SettingError, BrokerError):
            one = await self.view_message(key, unreadable=True)
            return [one] if one.topic == topic else []
        return []

    async def resend(self, message: ReceivedMessage, topic: str | None = None) -> SendResult:
        """Send a dead letter to its original topic again, as a new message.

        Raises:
            SettingError: No topic is given, and the letter names none, or one that has no message
                with the same content.
            BodyUnreadable: Its body cannot be inflated.
        """
        if message.unreadable:
            raise BodyUnreadable(message.queue, message.queue_offset, message.unreadable)
        target = topic or properties.origin_topic(message.properties)
        if not target:
            raise SettingError(
                f"message {message.message_id} of {message.topic} does not name its original topic; pass a topic"
            )
        if topic is None and await self.find_origin(message, target) is None:
            raise SettingError(
                f"{target} has no message with the same content as {message.message_id}: the original has aged out, or a client forged the "
                f"dead letter; check it, and pass the topic"
            )
        async with Producer(
            "orderlymq-resend", settings=RESENDS, instance=self._instance
        ) as producer:
            return await producer.send(_sent_again(message, target))


def redrives_of(message: ReceivedMessage) -> int:
    """Return how often a message was redriven."""
    text = message.properties.get(REDRIVES, "0")
    return int(text) if text.isdecimal() and len(text) < _DIGITS_MAX else 0


def origin_ids(letter: ReceivedMessage) -> list[str]:
    """Return the ids that the original message of a dead letter may have."""
    said = (
        properties.UNIQ_KEY,
        properties.ORIGIN_MESSAGE_ID,
        properties.DLQ_ORIGIN_MESSAGE_ID,
    )
    return [letter.properties[name] for name in said if letter.properties.get(name)]


def redriven(letter: ReceivedMessage, topic: str, identity: str) -> Message:
    """Return the message that redrives a dead letter to a topic; *identity* is its unique key in every redrive."""
    message = _sent_again(letter, topic)
    message.properties = {**message.properties, REDRIVES: str(redrives_of(letter) + 1)}
    message.unique_key = identity
    return message


def _says_the_same(letter: ReceivedMessage, other: ReceivedMessage) -> bool:
    """Return whether both would be resent as the same message."""
    return _sent_again(letter, other.topic) == _sent_again(other, other.topic)


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
