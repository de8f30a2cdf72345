"""
The header of a send, in its long form (codes 10, 324) and its one-letter form (310, 320, 325).

Hot path: one is read per message, so a straight-line function reads the one-letter form. A header
that it cannot read goes to the slow reader, which says what is wrong.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Final

from orderlymq_protocol.codes import RequestCode
from orderlymq_protocol.header.declaration import (
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    Header,
    read_fields,
    register,
    write_fields,
)
from orderlymq_protocol.integers import Int, Long, read_integer

# In the order of the fields below.
_NAMES_V1: Final = (
    *("producerGroup", "topic", "defaultTopic", "defaultTopicQueueNums", "queueId", "sysFlag"),
    *("bornTimestamp", "flag", "properties", "reconsumeTimes", "unitMode", "maxReconsumeTimes"),
    *("batch", "bname"),
)
_NAMES_V2: Final = tuple("abcdefghijklmn")
# RocketMQ's broker accepts a send without these, though Java's producer always writes them.
_ABSENT_V1: Final = {"producerGroup": "", "defaultTopic": "", "defaultTopicQueueNums": "0"}
_ABSENT_V2: Final = {"a": "", "c": "", "d": "0"}
# Packing is the cheapest way to find out whether all numbers fit their Java types.
_RANGES: Final = Struct(">iiiqiii")
_LONG_FORM_CODES: Final = frozenset({RequestCode.SEND_MESSAGE, RequestCode.SEND_REPLY_MESSAGE})
SEND_CODES: Final = (
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE,
    RequestCode.SEND_REPLY_MESSAGE_V2,
)


# Not frozen, because one is built for every message, and freezing would double its cost.
@dataclass(slots=True)
class SendMessageHeader(Header):
    """The header of a send; `max_reconsume_times` is None if the header does not set it."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: Int
    queue_id: Int
    sys_flag: Int
    born_timestamp: Long
    flag: Int
    properties: str = ""
    reconsume_times: Int = 0
    unit_mode: bool = False
    max_reconsume_times: Int | None = None
    batch: bool = False
    broker_name: str | None = None

    @classmethod
    def from_request(cls, code: int, ext: Mapping[str, str]) -> "SendMessageHeader":
        """Read the header in the form that belongs to *code*.

        Raises:
            HeaderError: As `from_ext`.
        """
        return cls.from_ext(ext) if code in _LONG_FORM_CODES else cls.from_ext_v2(ext)

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> "SendMessageHeader":
        """Read the long form.

        Raises:
            HeaderError: A required field is missing, or a number is malformed or too large for its type.
        """
        return cls(*read_fields(cls, {**_ABSENT_V1, **ext}, _NAMES_V1))

    @classmethod
    def from_ext_v2(cls, ext: Mapping[str, str]) -> "SendMessageHeader":
        """Read the one-letter form.

        Raises:
            HeaderError: As `from_ext`, naming the letter.
        """
        get = ext.get
        try:
            # Signs, and texts that Java does not accept as numbers, are left to the slow reader.
            d, e, f, g, h, j = ext["d"], ext["e"], ext["f"], ext["g"], ext["h"], get("j", "0")
            if not f"{d}{e}{f}{g}{h}{j}".isdecimal():
                raise ValueError
            queue_nums, queue_id = int(d), int(e)
            sys_flag, born, flag = int(f), int(g), int(h)
            reconsume_times = int(j)
            maximum = get("l")
            max_reconsume_times = None if maximum is None else read_integer(maximum)
            _RANGES.pack(
                queue_nums,
                queue_id,
                sys_flag,
                born,
                flag,
                reconsume_times,
                max_reconsume_times or 0,
            )
            return cls(
                ext["a"],
                ext["b"],
                ext["c"],
                queue_nums,
                queue_id,
                sys_flag,
                born,
                flag,
                get("i", ""),
                reconsume_times,
                get("k", "").lower() == "true",
                max_reconsume_times,
                get("m", "").lower() == "true",
                get("n"),
            )
        except (KeyError, ValueError, struct.error):
            # The slow reader below accepts fields that may be absent; otherwise it raises with the name of the field.
            pass
        return cls(*read_fields(cls, {**_ABSENT_V2, **ext}, _NAMES_V2))

    def to_ext(self) -> dict[str, str]:
        """Return the long form."""
        return write_fields(self, _NAMES_V1)

    def to_ext_v2(self) -> dict[str, str]:
        """Return the one-letter form."""
        ext = {
            "a": self.producer_group,
            "b": self.topic,
            "c": self.default_topic,
            "d": str(self.default_topic_queue_nums),
            "e": str(self.queue_id),
            "f": str(self.sys_flag),
            "g": str(self.born_timestamp),
            "h": str(self.flag),
            "i": self.properties,
            "j": str(self.reconsume_times),
            "k": "true" if self.unit_mode else "false",
            "m": "true" if self.batch else "false",
        }
        if self.max_reconsume_times is not None:
            ext["l"] = str(self.max_reconsume_times)
        if self.broker_name is not None:
            ext["n"] = self.broker_name
        return ext


register(SendMessageHeader, "request", SEND_CODES, REQUEST_HEADERS)


@dataclass(slots=True)
class SendMessageResponseHeader(Header):
    """The place of the message. For a batch, `msg_id` holds all ids joined by commas, and the offset is the first one.

    `places` is our own: `queue:offset` of each message, joined by commas, if they do not follow each other.
    """

    msg_id: str
    queue_id: Int
    queue_offset: Long
    transaction_id: str | None = None
    recall_handle: str | None = None
    places: str | None = None

    def to_ext(self) -> dict[str, str]:
        """Return the fields as text."""
        ext = {
            "msgId": self.msg_id,
            "queueId": str(self.queue_id),
            "queueOffset": str(self.queue_offset),
        }
        if self.transaction_id is not None:
            ext["transactionId"] = self.transaction_id
        if self.recall_handle is not None:
            ext["recallHandle"] = self.recall_handle
        if self.places is not None:
            ext["places"] = self.places
        return ext


register(SendMessageResponseHeader, "response", SEND_CODES, RESPONSE_HEADERS)
