"""
Messages as users see them: sent messages, results of sends, received messages.

Rule: a `Message` gets its unique key once, at its first send. Every further send of the same object carries the same
key, so that a broker can recognise a repeat. `wire` holds the wire form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

from orderlymq.durations import Duration, milliseconds
from orderlymq.errors import SettingError
from orderlymq_protocol.body.messagequeue import MessageQueue
from orderlymq_protocol.message import properties as names
from orderlymq_protocol.message.ids import is_offset_message_id
from orderlymq_protocol.message.record import StoredMessage

BodyLike: TypeAlias = bytes | bytearray | memoryview | str
"""What a body may be given as: bytes, or text that becomes UTF-8."""


def body_bytes(body: object) -> bytes:
    """Return the body of a message as its own bytes, so that later changes of a buffer do not reach it.

    Raises:
        SettingError: It is neither bytes nor text.
    """
    if isinstance(body, bytes):
        return body
    if isinstance(body, bytearray | memoryview):
        return bytes(body)
    if not isinstance(body, str):
        raise SettingError(
            f"the body is bytes or text, not {type(body).__name__}; encode it first, "
            "for example with json.dumps() or orderlymq.Json"
        )
    try:
        return body.encode()
    except UnicodeEncodeError as error:
        raise SettingError(f"the body cannot be encoded as UTF-8: {error.reason}") from error


@dataclass(slots=True, kw_only=True)
class Message:
    """A message to be sent.

    Attributes:
        topic: the topic to send to.
        body: bytes, opaque to the broker; text is encoded as UTF-8.
        tags: one tag that subscriptions may select by.
        keys: index keys, for queries; a text or several.
        key: sharding key; messages with one key stay in order. A number is stored as its text: 17 and
            "17" are one key.
        properties: the user's own, visible to consumers and to SQL subscriptions.
        delay_level: 1 to 18 delays the delivery (1 s to 2 h); 0 delivers immediately.
        delay: delivers after this time, seconds or a `timedelta`, up to three days; to the millisecond.
        deliver_at: delivers at this moment; a `datetime` without a zone is local time.
        cancels: unique key (`SendResult.message_id`) of a waiting timer message, which is then never delivered. The
            cancelling message needs `delay` or `deliver_at` too, and is not delivered either.
        flag: 32 bits for the user, returned unchanged.
        unique_key: given by the SDK at the first send.
        marks: properties of the protocol that the SDK sets itself, for transactions and requests.
        maybe_stored: whether an earlier send of this object may have stored it; a later refusal does not undo that.
    """

    topic: str
    body: bytes
    tags: str = ""
    keys: str | tuple[str, ...] = ""
    key: str | int | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    delay_level: int = 0
    delay: Duration = 0
    deliver_at: datetime | None = None
    cancels: str = ""
    flag: int = 0
    unique_key: str = ""
    wait_store_ok: bool = True
    marks: dict[str, str] = field(default_factory=dict, repr=False)
    maybe_stored: bool = field(default=False, init=False, repr=False, compare=False)

    if TYPE_CHECKING:
        # The same as at run time, except for the types that a body may have.
        def __init__(  # noqa: PLR0913
            self,
            *,
            topic: str,
            body: BodyLike,
            tags: str = "",
            keys: str | tuple[str, ...] = "",
            key: str | int | None = None,
            properties: Mapping[str, str] = {},
            delay_level: int = 0,
            delay: Duration = 0,
            deliver_at: datetime | None = None,
            cancels: str = "",
            flag: int = 0,
            unique_key: str = "",
            wait_store_ok: bool = True,
            marks: dict[str, str] = {},  # noqa: B006
        ) -> None: ...

    def __post_init__(self) -> None:
        self.body = body_bytes(self.body)
        own: object = self.properties
        if not isinstance(own, Mapping):
            raise SettingError(f"properties is a mapping of texts, not {type(own).__name__}")
        if self.deliver_at is not None:
            try:
                self.deliver_at.timestamp()
            except (AttributeError, OverflowError, OSError, ValueError) as error:
                text = (
                    f"deliver_at is {self.deliver_at!r}; it must be a datetime that has a timestamp"
                )
                raise SettingError(text) from error
        if milliseconds(self.delay) < 0:
            raise SettingError(f"delay is {self.delay!r}; it must not be negative")
        if sum(map(bool, (self.delay_level, self.delay, self.deliver_at))) > 1:
            raise SettingError("give one of delay_level, delay and deliver_at")
        if self.cancels and not (self.delay or self.deliver_at):
            raise SettingError(
                "a message that cancels another needs delay or deliver_at, not in the past"
            )
        if is_offset_message_id(self.cancels):
            raise SettingError(
                f"{self.cancels} is an offset message id, but a message that cancels another needs the "
                "message id: `message_id` of the result of its send"
            )
        for name in self.properties:
            if name in names.RESERVED_NAMES:
                raise SettingError(
                    f"the property name {name} is reserved by the protocol; choose another one"
                )
        named = self.properties.get(names.SHARDING_KEY)
        if named is not None and self.stored_key not in (None, named):
            raise SettingError(
                f"key is {self.key!r}, and the property {names.SHARDING_KEY} is {named!r}; give one of them"
            )

    @property
    def stored_key(self) -> str | None:
        """The sharding key as it is stored; it also chooses the queue."""
        return None if self.key is None else str(self.key)

    def wire_properties(self) -> dict[str, str]:
        """Return all properties of the stored message."""
        found = {**self.properties, **self.marks}
        if self.keys:
            found[names.KEYS] = self.keys if isinstance(self.keys, str) else " ".join(self.keys)
        if self.tags:
            found[names.TAGS] = self.tags
        if self.stored_key is not None:
            found[names.SHARDING_KEY] = self.stored_key
        if self.delay_level:
            found[names.DELAY] = str(self.delay_level)
        if self.delay:
            found[names.TIMER_DELAY_MS] = str(milliseconds(self.delay))
        if self.deliver_at is not None:
            found[names.TIMER_DELIVER_MS] = str(round(self.deliver_at.timestamp() * 1000))
        if self.cancels:
            found[names.TIMER_DEL_UNIQKEY] = self.cancels
        found[names.UNIQ_KEY] = self.unique_key
        found[names.WAIT] = "true" if self.wait_store_ok else "false"
        return found


class SendStatus(Enum):
    """How safely a message was stored. With any of these it is stored, not only with OK."""

    OK = 0
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12


@dataclass(frozen=True, slots=True)
class SendResult:
    """Where a message is stored.

    Attributes:
        message_id: the unique key given by the client.
        offset_message_id: the id that leads to the stored record; several, joined by commas, for a batch.
        queue_offset: the position in the queue; of the first message for a batch.
        recall_handle: takes back a timer message, see `Producer.recall`; empty for other messages.
        places: queue and offset of each message, for a batch of which a part was stored before; else empty.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    recall_handle: str = ""
    places: tuple[tuple[MessageQueue, int], ...] = ()

    def place(self, number: int) -> tuple[MessageQueue, int]:
        """Return queue and offset of a message of a batch; the first one is number 0."""
        return self.places[number] if self.places else (self.queue, self.queue_offset + number)


@dataclass(slots=True)
class ReceivedMessage:
    """A message as a consumer gets it; a redelivered message has its original topic.

    Attributes:
        queue: the queue it was read from, a `%RETRY%` queue for a redelivered message.
        born_timestamp, store_timestamp: milliseconds since the epoch.
        reconsume_times: how often it was tried before.
        properties: all of them, the protocol's included, except the checksums of a compressed body.
        size_bytes: of the inflated body; of the inflated part if only the first bytes of a
            compressed body were wanted.
        unreadable: why the body could not be inflated and is given as stored; listeners get no such message.
    """

    topic: str
    body: bytes
    queue: MessageQueue
    queue_offset: int
    properties: dict[str, str]
    message_id: str
    offset_message_id: str
    born_timestamp: int
    store_timestamp: int
    born_host: tuple[str, int]
    store_host: tuple[str, int]
    reconsume_times: int
    flag: int
    sys_flag: int
    physical_offset: int
    size_bytes: int
    unreadable: str = ""

    @property
    def text(self) -> str:
        """The body as UTF-8 text.

        Raises:
            UnicodeDecodeError: The body is not UTF-8.
        """
        return self.body.decode()

    @property
    def tags(self) -> str | None:
        """The tag, if there is one."""
        return self.properties.get(names.TAGS)

    @property
    def keys(self) -> tuple[str, ...]:
        """The index keys."""
        return tuple(self.properties.get(names.KEYS, "").split())

    @property
    def key(self) -> str | None:
        """The sharding key, if the sender gave one."""
        return self.properties.get(names.SHARDING_KEY)

    def __repr__(self) -> str:
        # Bodies may be private and large, so logs never show them.
        return (
            f"ReceivedMessage({self.topic} {self.queue.broker_name}:{self.queue.queue_id}"
            f"@{self.queue_offset} {self.message_id} tries={self.reconsume_times})"
        )


def received(
    stored: StoredMessage, body: bytes, queue: MessageQueue, id_text: str
) -> ReceivedMessage:
    """Build the user's view of a stored record.

    Args:
        stored: the record.
        body: its inflated body.
        queue: the queue it was read from; the record of a view by id carries no broker name.
        id_text: its offset message id.
    """
    found = names.decode_properties(stored.properties)
    return ReceivedMessage(
        topic=stored.topic,
        body=body,
        queue=queue,
        queue_offset=stored.queue_offset,
        properties=found,
        message_id=found.get(names.UNIQ_KEY, id_text),
        offset_message_id=id_text,
        born_timestamp=stored.born_timestamp,
        store_timestamp=stored.store_timestamp,
        born_host=stored.born_host,
        store_host=stored.store_host,
        reconsume_times=stored.reconsume_times,
        flag=stored.flag,
        sys_flag=stored.sys_flag,
        physical_offset=stored.physical_offset,
        size_bytes=len(body),
    )
