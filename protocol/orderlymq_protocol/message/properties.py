r"""
The properties of a message: `key \x01 value \x02 key \x01 value [\x02]` in UTF-8.

Rules: the bytes of properties that nobody asked about are never changed. An entry that Java's parser drops
(no \x01, an empty key or an empty value) is dropped here, too. Of two entries with one key the last
counts. The trailing \x02 may be missing (4.9 clients leave it out). Nothing here fails on bytes that a client
sent; only writing a key or value that holds a separator is an error.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from orderlymq_protocol.names import RETRY_PREFIX

NAME_VALUE_SEPARATOR: Final = "\x01"
PROPERTY_SEPARATOR: Final = "\x02"

KEYS: Final = "KEYS"
TAGS: Final = "TAGS"
WAIT: Final = "WAIT"
DELAY: Final = "DELAY"
RETRY_TOPIC: Final = "RETRY_TOPIC"
REAL_TOPIC: Final = "REAL_TOPIC"
REAL_QID: Final = "REAL_QID"
TRAN_MSG: Final = "TRAN_MSG"
PGROUP: Final = "PGROUP"
UNIQ_KEY: Final = "UNIQ_KEY"
MIN_OFFSET: Final = "MIN_OFFSET"
MAX_OFFSET: Final = "MAX_OFFSET"
CONSUME_START_TIME: Final = "CONSUME_START_TIME"
RECONSUME_TIME: Final = "RECONSUME_TIME"
MAX_RECONSUME_TIMES: Final = "MAX_RECONSUME_TIMES"
ORIGIN_MESSAGE_ID: Final = "ORIGIN_MESSAGE_ID"
CLUSTER: Final = "CLUSTER"
MSG_REGION: Final = "MSG_REGION"
TRACE_ON: Final = "TRACE_ON"
INSTANCE_ID: Final = "INSTANCE_ID"
SHARDING_KEY: Final = "__SHARDINGKEY"
TRAN_PREPARED_QUEUE_OFFSET: Final = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_CHECK_TIMES: Final = "TRANSACTION_CHECK_TIMES"
CHECK_IMMUNITY_TIME_IN_SECONDS: Final = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRANSACTION_ID: Final = "__transactionId__"
CORRELATION_ID: Final = "CORRELATION_ID"
REPLY_TO_CLIENT: Final = "REPLY_TO_CLIENT"
TTL: Final = "TTL"
ARRIVE_TIME: Final = "ARRIVE_TIME"
PUSH_REPLY_TIME: Final = "PUSH_REPLY_TIME"
MSG_TYPE: Final = "MSG_TYPE"
DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID: Final = "DLQ_ORIGIN_MESSAGE_ID"
TIMER_DELAY_SEC: Final = "TIMER_DELAY_SEC"
TIMER_DELAY_MS: Final = "TIMER_DELAY_MS"
TIMER_DELIVER_MS: Final = "TIMER_DELIVER_MS"
TIMER_OUT_MS: Final = "TIMER_OUT_MS"
TIMER_DEL_UNIQKEY: Final = "TIMER_DEL_UNIQKEY"
# OrderlyMQ's own: the id of the letter behind which a dead letter of a held key stands.
HELD_BEHIND: Final = "OMQ_HELD_BEHIND"
# OrderlyMQ's own: the checksums of a body that was deflated, before and after (8 hexadecimal digits each, with a comma between).
BODY_CHECKSUMS: Final = "OMQ_BODY_CRC"

# Names that a 4.x client refuses for a user property, and our own; the SDK refuses them.
RESERVED_NAMES: Final = frozenset(
    {
        *(KEYS, TAGS, WAIT, DELAY, RETRY_TOPIC, REAL_TOPIC, REAL_QID, TRAN_MSG, PGROUP, UNIQ_KEY),
        *(MIN_OFFSET, MAX_OFFSET, CONSUME_START_TIME, RECONSUME_TIME, MAX_RECONSUME_TIMES),
        *(ORIGIN_MESSAGE_ID, CLUSTER, MSG_REGION, TRACE_ON, INSTANCE_ID, MSG_TYPE, TTL),
        *(TRAN_PREPARED_QUEUE_OFFSET, TRANSACTION_CHECK_TIMES, CHECK_IMMUNITY_TIME_IN_SECONDS),
        *(TRANSACTION_ID, CORRELATION_ID, REPLY_TO_CLIENT, ARRIVE_TIME, PUSH_REPLY_TIME),
        *("BUYER_ID", "TRANSFER_FLAG", "CORRECTION_FLAG", "MQ2_FLAG", "EXTEND_UNIQ_INFO"),
        *(HELD_BEHIND, BODY_CHECKSUMS),
    }
)

_NAME_VALUE: Final = b"\x01"
_SEPARATOR: Final = b"\x02"
# Brokers look for a few dozen keys; any other key belongs to one user.
_NEEDLE_CACHE_SIZE: Final = 1024


class PropertyError(ValueError):
    """A property cannot be written: its name is empty, or its name or value holds a separator."""


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Return the stored form, with the trailing separator; empty values are left out.

    Raises:
        PropertyError: A name is empty, or a name or value holds a separator.
    """
    return b"".join(_entry(key, value) for key, value in properties.items() if value)


def decode_properties(raw: bytes | str) -> dict[str, str]:
    """Return the properties by name; malformed entries are left out, bad UTF-8 becomes U+FFFD."""
    text = raw if isinstance(raw, str) else raw.decode(errors="replace")
    properties: dict[str, str] = {}
    for entry in text.split(PROPERTY_SEPARATOR):
        key, _, value = entry.partition(NAME_VALUE_SEPARATOR)
        if key and value:
            properties[key] = value
    return properties


def origin_topic(properties: Mapping[str, str]) -> str:
    """Return the topic to which a dead letter was sent; empty if the letter does not name it.

    The process that makes a letter sets `RETRY_TOPIC`, and also `DLQ_ORIGIN_TOPIC` if the former is a retry topic. A producer
    may write either.
    """
    topic = properties.get(RETRY_TOPIC, "")
    if topic and not topic.startswith(RETRY_PREFIX):
        return topic

    return properties.get(DLQ_ORIGIN_TOPIC) or topic


def append_property(raw: bytes, key: str, value: str) -> bytes:
    """Return *raw* with one more property; if the last entry is not closed, close it first.

    Raises:
        PropertyError: The name is empty, or name or value holds a separator.
    """
    if raw and not raw.endswith(_SEPARATOR):
        return b"".join((raw, _SEPARATOR, _entry(key, value)))
    return raw + _entry(key, value)


def remove_property(raw: bytes, key: str) -> bytes:
    """Return *raw* without the entries of this name; every other byte stays unchanged."""
    first, _ = _needles(key)
    if first not in raw:
        return raw
    return _SEPARATOR.join(entry for entry in raw.split(_SEPARATOR) if not entry.startswith(first))


def find_property(raw: bytes, key: str | bytes) -> str | None:
    """Return the value of one property without reading the others; None if it is absent.

    The result is that of `decode_properties(raw).get(key)`.
    """
    first, later = _needles(key)
    end = len(raw)
    while (at := raw.rfind(later, 0, end)) >= 0:
        value = _value(raw, at + len(later))
        if value:
            return value
        # An empty value counts as absent, so an earlier entry of the same name may still be the one. The
        # separator that begins this entry may end the one before, so the next search includes it.
        end = at + 1
    if raw.startswith(first):
        return _value(raw, len(first)) or None
    return None


def _value(raw: bytes, start: int) -> str:
    end = raw.find(_SEPARATOR, start)
    return (raw[start:] if end < 0 else raw[start:end]).decode(errors="replace")


@lru_cache(maxsize=_NEEDLE_CACHE_SIZE)
def _needles(key: str | bytes) -> tuple[bytes, bytes]:
    """Return the beginning of an entry of this name: at the start of the text, and further on."""
    first = (key.encode() if isinstance(key, str) else key) + _NAME_VALUE
    return first, _SEPARATOR + first


def _entry(key: str, value: str) -> bytes:
    text = f"{key}\x01{value}\x02"
    if not key or text.count("\x01") != 1 or text.count("\x02") != 1:
        raise PropertyError(f"the property {key!r} is empty or contains a separator (0x01, 0x02)")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise PropertyError(f"the property {key!r} is not valid Unicode") from error
