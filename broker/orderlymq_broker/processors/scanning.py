"""
Finding and removing single properties in the text of a message, at the speed a send needs.

The rule: the results are those of ``orderlymq_protocol.message.properties``, and a test compares them; whatever
is not the plain case (a name that is the end of a longer one, a repeated or empty entry) is left to
that module. Text, because searching text is several times faster than searching bytes.
"""

from typing import Final, NamedTuple

from orderlymq_protocol.message.properties import (
    PROPERTY_SEPARATOR,
    append_property,
    decode_properties,
    remove_property,
)


class PropertyName(NamedTuple):
    """A property's name and what its entry begins with."""

    name: str
    start: str


def _named(name: str) -> PropertyName:
    return PropertyName(name, name + "\x01")


CHECK_IMMUNITY: Final = _named("CHECK_IMMUNITY_TIME_IN_SECONDS")
DELAY: Final = _named("DELAY")
KEYS: Final = _named("KEYS")
ORIGIN_MESSAGE_ID: Final = _named("ORIGIN_MESSAGE_ID")
REAL_QID: Final = _named("REAL_QID")
REAL_TOPIC: Final = _named("REAL_TOPIC")
PGROUP: Final = _named("PGROUP")
PREPARED_OFFSET: Final = _named("TRAN_PREPARED_QUEUE_OFFSET")
REPLY_TO_CLIENT: Final = _named("REPLY_TO_CLIENT")
RETRY_TOPIC: Final = _named("RETRY_TOPIC")
SHARDING_KEY: Final = _named("__SHARDINGKEY")
TAGS: Final = _named("TAGS")
TIMER_DELAY_MS: Final = _named("TIMER_DELAY_MS")
TIMER_DELAY_SEC: Final = _named("TIMER_DELAY_SEC")
TIMER_DELIVER_MS: Final = _named("TIMER_DELIVER_MS")
TIMER_DEL_UNIQKEY: Final = _named("TIMER_DEL_UNIQKEY")
TIMER_OUT_MS: Final = _named("TIMER_OUT_MS")
TRAN_CHECKS: Final = _named("TRANSACTION_CHECK_TIMES")
TRAN_MSG: Final = _named("TRAN_MSG")
UNIQ_KEY: Final = _named("UNIQ_KEY")
WAIT: Final = _named("WAIT")


def find_text(text: str, wanted: PropertyName) -> str | None:
    """Return the value of a property, None when there is none."""
    name, start = wanted
    at = text.rfind(start)
    if at < 0:
        return None
    if at and text[at - 1] != PROPERTY_SEPARATOR:
        return decode_properties(text).get(name)
    at += len(start)
    end = text.find(PROPERTY_SEPARATOR, at)
    value = text[at:end] if end >= 0 else text[at:]

    return value or decode_properties(text).get(name)


def without(text: str, unwanted: PropertyName) -> str:
    """Return *text* without a property; every other character stays as it is."""
    name, start = unwanted
    at = text.find(start)
    if at < 0:
        return text
    end = text.find(PROPERTY_SEPARATOR, at)
    if end < 0 or (at and text[at - 1] != PROPERTY_SEPARATOR) or text.find(start, end) >= 0:
        return remove_property(text.encode(), name).decode()

    return text[:at] + text[end + 1 :]


def extended(text: str, name: str, value: str) -> str:
    """Return *text* with one more property.

    Raises:
        PropertyError: the name is empty, or name or value hold a separator.
    """
    return append_property(text.encode(), name, value).decode()
