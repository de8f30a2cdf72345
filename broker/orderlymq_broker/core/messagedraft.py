"""
A message that has no place in a queue yet, and its properties, which are parsed once.

The rules: a name finds the same property as in ``orderlymq_protocol.message.properties``. Changing one
property leaves every other character of the text unchanged. Properties are text, because searching text is
several times faster than searching bytes. The stored record is encoded once, when the message is handed in,
without the three fields that depend on its place. ``place`` writes these when the entry is built. A message
that cannot be encoded is refused before it can delay others.
"""

from dataclasses import dataclass, field
from struct import Struct
from typing import Final, final

from orderlymq_broker.state.records import Append
from orderlymq_broker.state.topics.topics import Topic
from orderlymq_protocol.message.properties import (
    KEYS,
    NAME_VALUE_SEPARATOR,
    PROPERTY_SEPARATOR,
    TAGS,
    UNIQ_KEY,
    append_property,
    remove_property,
)
from orderlymq_protocol.message.record import (
    MAGIC_V1,
    PROPERTIES_BYTES_MAX,
    TOPIC_V1_BYTES_MAX,
    RecordTemplate,
    StoredMessage,
    body_crc,
    encode_with_positions,
    pack_host,
)
from orderlymq_protocol.message.sysflag import BORN_HOST_IPV6, STORE_HOST_IPV6
from orderlymq_protocol.message.tags import tags_code

_HEAD: Final = Struct(">IIIiiqqiq8sq8siqi")
_HEAD_SIZE: Final = _HEAD.size
_UINT16: Final = Struct(">H")
_IPV4_SIZE: Final = 8
_HOST_BITS: Final = BORN_HOST_IPV6 | STORE_HOST_IPV6

# The positions of the fields that depend on the place. The two offsets follow size, magic, checksum, queue id and
# flag; the store time follows sysFlag, born time and born host.
_OFFSETS: Final = Struct(">qq")
_OFFSETS_AT: Final = 20
_TIME: Final = Struct(">q")
_BORN_HOST_AT: Final = 48

# The largest size of a message's record in an entry, without its texts.
APPEND_SIZE: Final = 80

_LONG_MIN: Final = -(1 << 63)
_LONG_MAX: Final = (1 << 63) - 1
_NATURAL_BITS: Final = 31


@final
class Properties:
    """The properties of a message.

    Attributes:
        text: the stored text.
        by_name: values by name; of two entries with one name the last counts, empty ones do not.
    """

    __slots__ = ("by_name", "text")

    def __init__(self, text: str, by_name: dict[str, str] | None = None) -> None:
        self.text = text
        if by_name is None:
            by_name = {}
            for entry in text.split(PROPERTY_SEPARATOR):
                name, _, value = entry.partition(NAME_VALUE_SEPARATOR)
                if name and value:
                    by_name[name] = value
        self.by_name: Final[dict[str, str]] = by_name

    def before(self, others: "Properties") -> "Properties":
        """Return these properties followed by *others*, without parsing either again."""
        text = self.text
        if text and text[-1] != PROPERTY_SEPARATOR:
            text += PROPERTY_SEPARATOR

        return Properties(text + others.text, self.by_name | others.by_name)

    def add(self, name: str, value: str) -> None:
        """Add one property at the end, where it takes precedence.

        Raises:
            PropertyError: the name is empty, or name or value contain a separator.
        """
        self.text = append_property(self.text.encode(), name, value).decode()
        self.by_name[name] = value

    def drop(self, *names: str) -> None:
        """Remove every entry with one of these names."""
        for name in names:
            if self.by_name.pop(name, None) is not None:
                self.text = _without(self.text, name)


def _without(text: str, name: str) -> str:
    """Return *text* without the entries of a name; fast if the name occurs once, as in most sends."""
    start = name + NAME_VALUE_SEPARATOR
    at = text.find(start)
    end = text.find(PROPERTY_SEPARATOR, at)
    if end < 0 or (at and text[at - 1] != PROPERTY_SEPARATOR) or text.find(start, end) >= 0:
        return remove_property(text.encode(), name).decode()

    return text[:at] + text[end + 1 :]


def properties_of(stored: bytes | memoryview) -> Properties:
    """Return stored properties; invalid UTF-8 becomes U+FFFD."""
    return Properties(bytes(stored).decode(errors="replace"))


@final
@dataclass(slots=True)
class MessageDraft:
    """A message without a place; fields as in the stored record.

    Life cycle: created, put into another queue by ``wait_in`` if it has to wait, encoded once by ``lay_out``,
    placed by the entry builder, and placed again if the entry could not be proposed.

    Attributes:
        topic, queue_id: the real queue of the message, which the answer to its sender names.
        properties: parsed once; their text is encoded with the record.
        born_host: packed address of the producer.
        store_host: packed address that the record names, None for our own.
        body_crc: checksum of the body, -1 if it is not known yet.
        prepared_offset: physical offset of the half message that this message commits, else 0.
        into, into_queue: the queue that it is stored in: its real queue, unless it waits in another one.
        code: the tags code of its entry in the queue; in topics of waiting messages the due time.
        delay_ms: how long after its store time it is due, -1 if *code* is final.
        stored: the encoded record, complete except for its place.
        size: approximate bytes that the message takes in an entry, 0 until it is encoded.
    """

    topic: Topic
    queue_id: int
    body: bytes
    properties: Properties
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: bytes
    reconsume_times: int = 0
    unique_key: str = ""
    identity: bytes = b""
    store_host: bytes | None = None
    body_crc: int = -1
    prepared_offset: int = 0
    delay_ms: int = -1
    waits_in: Topic | None = None
    into_queue: int = 0
    code: int = 0
    size: int = field(default=0, init=False, compare=False)
    # Set by `lay_out`.
    into: Topic = field(init=False, repr=False, compare=False)
    keys: str = field(init=False, repr=False, compare=False)
    stored: bytearray = field(init=False, repr=False, compare=False)

    @classmethod
    def of_stored(
        cls, message: StoredMessage, topic: Topic, queue_id: int, properties: Properties
    ) -> "MessageDraft":
        """Return a copy of a stored message for another queue, with other properties."""
        return cls(
            topic,
            queue_id,
            message.body,
            properties,
            message.flag,
            message.sys_flag,
            message.born_timestamp,
            pack_host(*message.born_host),
            message.reconsume_times,
            properties.by_name.get(UNIQ_KEY, ""),
            store_host=pack_host(*message.store_host),
            body_crc=message.body_crc,
        )

    def wait_in(self, topic: Topic, queue_id: int, code: int) -> "MessageDraft":
        """Store the message in another queue than its real one; return the message."""
        self.waits_in, self.into_queue, self.code = topic, queue_id, code

        return self

    def lay_out(self, own_host: bytes) -> int:
        """Encode the stored record; return the approximate bytes that the message takes in an entry.

        Raises:
            RecordError: topic or properties are too long.
            ValueError: a number is not an integer or does not fit its field, or a text is not valid Unicode.
            struct.error: the same.
        """
        by_name, waits_in = self.properties.by_name, self.waits_in
        if waits_in is None:
            # The path of nearly every message.
            self.into, self.into_queue = self.topic, self.queue_id
            self.code = tags_code(by_name.get(TAGS))
        else:
            self.into = waits_in
        code, queue_id, reply_queue = self.code, self.into_queue, self.queue_id
        # The record of the message stores these numbers unchecked, so check them here. Encoding checks the rest.
        if (
            type(reply_queue) is not int
            or type(queue_id) is not int
            or type(code) is not int
            or (reply_queue | queue_id) >> _NATURAL_BITS
            or not _LONG_MIN <= code <= _LONG_MAX
        ):
            raise ValueError(f"queue {queue_id!r} for {reply_queue!r}, tags code {code!r}")
        self.keys = by_name.get(KEYS, "")
        stored = self.stored = _stored(self, self.into, self.store_host or own_host)

        texts = len(self.unique_key) + len(self.keys) + len(self.identity)
        self.size = len(stored) + texts + APPEND_SIZE

        return self.size

    def place(self, into: Topic, queue_offset: int, physical: int, timestamp: int) -> Append:
        """Write the place into the stored record; return the message's log record."""
        stored = self.stored
        _OFFSETS.pack_into(stored, _OFFSETS_AT, queue_offset, physical)
        _TIME.pack_into(stored, _BORN_HOST_AT + len(self.born_host), timestamp)

        return Append(
            into.id,
            self.into_queue,
            queue_offset,
            physical,
            len(stored),
            self.code if self.delay_ms < 0 else timestamp + self.delay_ms,
            timestamp,
            self.unique_key,
            self.keys,
            self.identity,
            self.queue_id,
        )


def _stored(draft: MessageDraft, into: Topic, store_host: bytes) -> bytearray:
    """Return the stored record with zeros for its place.

    The usual case, IPv4 and a short topic, is encoded here directly: with a template it would take a fifth of
    the time of a send. A test compares the two.
    """
    name, body, properties = into.name_bytes, draft.body, draft.properties.text.encode()
    name_size, body_size, properties_size = len(name), len(body), len(properties)
    if (
        len(draft.born_host) != _IPV4_SIZE
        or len(store_host) != _IPV4_SIZE
        or name_size > TOPIC_V1_BYTES_MAX
        or properties_size > PROPERTIES_BYTES_MAX
    ):
        template = RecordTemplate(
            topic=name,
            queue_id=draft.into_queue,
            body=body,
            properties=properties,
            flag=draft.flag,
            sys_flag=draft.sys_flag,
            born_timestamp=draft.born_timestamp,
            born_host=draft.born_host,
            store_timestamp=0,
            store_host=store_host,
            reconsume_times=draft.reconsume_times,
            prepared_transaction_offset=draft.prepared_offset,
        )
        return bytearray(encode_with_positions(template, 0, 0))
    head = _HEAD.pack(
        _HEAD_SIZE + body_size + 1 + name_size + 2 + properties_size,
        MAGIC_V1,
        draft.body_crc if draft.body_crc >= 0 else body_crc(body),
        draft.into_queue,
        draft.flag,
        0,
        0,
        draft.sys_flag & ~_HOST_BITS,
        draft.born_timestamp,
        draft.born_host,
        0,
        store_host,
        draft.reconsume_times,
        draft.prepared_offset,
        body_size,
    )

    return bytearray().join(
        (head, body, into.name_prefix, name, _UINT16.pack(properties_size), properties)
    )
